"""What is below a folder while others change it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def paths_below(root: Path) -> Iterator[Path]:
    """Each file and folder; unlike :meth:`Path.rglob`, it does not mind that one goes away meanwhile."""
    for folder, folders, files in os.walk(root):
        yield from (Path(folder, name) for name in (*folders, *files))
