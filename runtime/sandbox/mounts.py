"""The mounts of a box as values, and their order."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sluice.runtime.sandbox.errors import SandboxRefused


class MountKind(enum.Enum):
    """The kind of a mount in the box."""

    EMPTY = "empty"
    """An empty tmpfs that hides what the machine has at this path."""
    LINK = "link"
    READ_ONLY = "read-only"
    WRITABLE = "writable"


_NEVER = frozenset(
    map(Path, ("/", "/dev", "/dev/shm", "/etc", "/home", "/proc", "/root", "/run", "/sys", "/tmp", "/var", "/var/tmp"))  # noqa: S108
)
"""Directories that contain files of many users, so a job never sees all of them."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A path in the box and what is mounted there."""

    path: Path
    kind: MountKind
    source: str = ""

    @classmethod
    def read_only(cls, path: Path, *, source: Path | None = None) -> Mount:
        """Mount ``source`` (default: the same path) read-only."""
        return cls(path, MountKind.READ_ONLY, str(source or path))

    @classmethod
    def writable(cls, path: Path) -> Mount:
        """Mount ``path`` writable."""
        return cls(path, MountKind.WRITABLE, str(path))

    @classmethod
    def empty(cls, path: Path) -> Mount:
        """Hide the contents of ``path``."""
        return cls(path, MountKind.EMPTY)

    @classmethod
    def link(cls, path: Path, target: str) -> Mount:
        """Make ``path`` a symbolic link to ``target``."""
        return cls(path, MountKind.LINK, target)

    def options(self, size_bytes: int) -> tuple[str, ...]:
        """The bubblewrap options for this mount; ``size_bytes`` is the size of a tmpfs."""
        match self.kind:
            case MountKind.EMPTY:
                return ("--perms", "0755", "--size", str(size_bytes), "--tmpfs", str(self.path))
            case MountKind.LINK:
                return ("--symlink", self.source, str(self.path))
            case MountKind.READ_ONLY:
                return ("--ro-bind", self.source, str(self.path))
            case MountKind.WRITABLE:
                return ("--bind", self.source, str(self.path))


def in_order(mounts: Iterable[Mount]) -> list[Mount]:
    """Remove duplicates and sort, each directory before the paths below it.

    If a path occurs twice, the more restrictive mount wins.

    Raises:
        SandboxRefused: a mount lies below a path that the job can write, where the job could replace it by a link.
    """
    ranks = list(MountKind)
    chosen: dict[Path, Mount] = {}
    for mount in mounts:
        known = chosen.get(mount.path)
        if known is None or ranks.index(mount.kind) < ranks.index(known.kind):
            chosen[mount.path] = mount
    ordered = sorted(chosen.values(), key=lambda mount: (len(mount.path.parts), mount.path))
    writable = {mount.path for mount in ordered if mount.kind is MountKind.WRITABLE}
    result = []
    for mount in ordered:
        above = next((path for path in mount.path.parents if path in writable), None)
        if above is None:
            result.append(mount)
        elif mount.kind is not MountKind.WRITABLE:
            raise SandboxRefused(
                f"{mount.path} cannot be protected from a job that may write {above}", "put it into another directory"
            )
    return result


def with_parents(mounts: Sequence[Mount]) -> Iterator[Path | Mount]:
    """``mounts`` in order, each preceded by the parent directories that must be created for it."""
    kinds = {mount.path: mount.kind for mount in mounts}
    made = {Path("/")}
    for mount in mounts:
        for path in reversed(mount.path.parents):
            nearest = next((kinds[each] for each in (path, *path.parents) if each in kinds), MountKind.EMPTY)
            if path not in made and path not in kinds and nearest is MountKind.EMPTY:
                made.add(path)
                yield path
        yield mount


def check_path(path: Path, find_home: Callable[[], Path] = Path.home) -> Path:
    """Return ``path`` if a box may show it.

    Raises:
        SandboxRefused: the path is relative, or so high in the tree that it would show too much.
    """
    if not path.is_absolute() or ".." in path.parts:
        raise SandboxRefused(f"{path} is not an absolute path without ..", "use an absolute path")
    kernels = path.is_relative_to("/dev") and not path.is_relative_to("/dev/shm")  # noqa: S108 - tmpfs like /tmp
    if (
        path in _NEVER
        or path in _home_directories(find_home)
        or kernels
        or any(path.is_relative_to(top) for top in ("/proc", "/sys"))
    ):
        raise SandboxRefused(f"a job may not see all of {path}", "name directories below it")
    return path


def _home_directories(find: Callable[[], Path]) -> tuple[Path, ...]:
    """This user's home directory and its parents; empty for a user without a name, as in containers."""
    try:
        home = find()
    except RuntimeError:
        return ()
    return (home, *home.parents)
