"""Lists files below a folder that other processes change meanwhile."""

from __future__ import annotations

from glob import glob
from pathlib import Path


def paths_matching(root: Path, pattern: str) -> list[Path]:
    """The paths below ``root`` that match ``pattern``, sorted; ``*`` matches no name that begins with a dot.

    Unlike :meth:`pathlib.Path.glob`, it tolerates that folders disappear meanwhile: nothing below them is returned.
    """
    return sorted(root / name for name in glob(pattern, root_dir=root))  # noqa: PTH207  Path.glob raises
