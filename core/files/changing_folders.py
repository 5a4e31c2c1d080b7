"""Lists files below a folder that other processes change meanwhile."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

_GONE = (FileNotFoundError, NotADirectoryError, PermissionError)


def paths_matching(root: Path, pattern: str) -> list[Path]:
    """The paths below ``root`` that match ``pattern``, sorted; ``*`` matches no name that begins with a dot.

    Unlike :meth:`pathlib.Path.glob`, it tolerates that folders disappear meanwhile: nothing below them is returned.
    ``**`` is not supported.

    Raises:
        OSError: a folder cannot be listed for another reason, such as a lack of descriptors.
    """
    found = [root]
    for part in pattern.split("/"):
        found = [path for folder in found for path in _matching(folder, part)]
    return sorted(path for path in found if os.path.lexists(path))


def files_below(root: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Walk as :func:`os.walk` does: each folder with its folders and its files; tolerates that folders disappear.

    Raises:
        OSError: as :func:`paths_matching`.
    """
    for folder, folders, files in os.walk(root, onerror=_unless_gone):
        yield Path(folder), folders, files


def _matching(folder: Path, part: str) -> list[Path]:
    if not any(each in part for each in "*?["):
        return [folder / part]
    names: list[str] = []
    with contextlib.suppress(*_GONE):
        names = [path.name for path in folder.iterdir()]
    hidden = part.startswith(".")
    return [folder / name for name in names if fnmatchcase(name, part) and (hidden or not name.startswith("."))]


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, _GONE):
        raise error
