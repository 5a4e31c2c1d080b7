"""Lists files below a folder that other processes change."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def paths_below(root: Path) -> Iterator[Path]:
    """Yield all files and folders. Unlike :meth:`Path.rglob`, it tolerates that one disappears in the meantime."""
    for folder, folders, files in os.walk(root):
        yield from (Path(folder, name) for name in (*folders, *files))
