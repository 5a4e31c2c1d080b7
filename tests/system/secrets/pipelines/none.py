"""A pipeline that asked for no secret and finds none in its sandbox, even while other jobs have some."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    """Look for secrets in their usual place and where those of other processes would be."""
    found = [str(path) for path in (Path("/run/secrets"), *Path("/proc").glob("*/root/run/secrets")) if path.exists()]
    sys.stdout.write(f"found {found}\n")


if __name__ == "__main__":
    main()
