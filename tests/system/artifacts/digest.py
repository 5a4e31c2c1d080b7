"""A pipeline that writes the SHA-256 digest of a file in its working directory."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

if __name__ == "__main__":
    with Path(sys.argv[1]).open("rb") as file:
        Path(sys.argv[2]).write_text(hashlib.file_digest(file, "sha256").hexdigest())
