"""A test pipeline without Spark: writes a marker, waits for a file, and succeeds or fails as told."""

from __future__ import annotations

import sys
import time
from pathlib import Path

folder, ending = Path(sys.argv[1]), sys.argv[2]
(folder / "running").touch()
while not (folder / "stop").exists():
    time.sleep(0.05)
if ending == "fail":
    try:
        int("twelve")
    except ValueError as error:
        raise RuntimeError("the pipeline does not like twelve") from error
