"""The options of bubblewrap for one box."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sluice.runtime.sandbox.errors import SandboxRefused
from sluice.runtime.sandbox.mounts import Mount, MountKind, with_parents
from sluice.runtime.sandbox.view import SECRETS_DIRECTORY, SecretFile

MIB = 1 << 20
INNER_UID = 1000
"""The uid of a job in its own user namespace; outside it is the uid of the process that started it."""
ENTRY_PATH = "/run/sluice/entry.pyc"
MINIMUM_TMP_MB = 16

_ROOTS_CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")
"""What the entry program needs to become the job's uid; it then has none."""


_SECRET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class BoxFile:
    """A small file that bubblewrap writes into the box."""

    path: str
    content: bytes = field(repr=False)
    mode: int = 0o444


def namespace_options(uid: int | None) -> Iterator[str]:
    """Namespaces and rights; ``uid``: what root's entry program becomes, None in a user namespace."""
    yield from ("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent")
    yield from ("--cap-drop", "ALL")
    if uid is None:
        yield from ("--unshare-user", "--disable-userns", "--uid", str(INNER_UID), "--gid", str(INNER_UID))
    else:
        for capability in _ROOTS_CAPABILITIES:
            yield from ("--cap-add", capability)


def mount_options(
    system: Sequence[Mount], own: Sequence[Mount], files: Sequence[tuple[int, BoxFile]], *, tmp_mb: int
) -> Iterator[str]:
    """All that is mounted, in this order: the machine, what is the box's alone, what it was given.

    Args:
        system: programs and their settings.
        own: in order, see :func:`sluice.runtime.sandbox.mounts.in_order`.
        files: descriptors with contents, and where these go.
        tmp_mb: size of each file system in memory.
    """
    size = max(tmp_mb, MINIMUM_TMP_MB) * MIB
    yield from mounted(system, size)
    for folder in sorted({parent for _, file in files for parent in Path(file.path).parents if parent != Path("/")}):
        yield from _directory(folder)
    for fd, file in files:
        yield from ("--perms", f"{file.mode:04o}", "--file", str(fd), file.path)
    yield from ("--proc", "/proc", "--dev", "/dev")
    yield from ("--perms", "1777", "--size", str(size), "--tmpfs", "/tmp")  # noqa: S108 - the box's own
    yield from ("--perms", "1777", "--size", str(size), "--tmpfs", "/dev/shm")  # noqa: S108 - the box's own
    yield from mounted(own, size)
    for mount in own:
        if mount.kind is MountKind.EMPTY:
            yield from ("--remount-ro", str(mount.path))
    yield from ("--remount-ro", "/dev", "--remount-ro", "/")


def mounted(mounts: Sequence[Mount], size: int) -> Iterator[str]:
    """The options for ``mounts``, in order, with the directories above them; ``size``: of each in memory, in bytes."""
    for each in with_parents(mounts):
        yield from each.options(size) if isinstance(each, Mount) else _directory(each)


def _directory(path: Path) -> tuple[str, ...]:
    """bubblewrap itself makes the directories above a mount or a file for root alone."""
    return ("--perms", "0755", "--dir", str(path))


def secret_files(secrets: Iterable[SecretFile], uid: int | None) -> Iterator[BoxFile]:
    """The secrets of a box: for its user alone.

    Where root makes the box its files are root's. The job has another uid (``uid``), and nobody else is in the box, so
    all who are may read them, and none may change their modes.
    """
    for each in secrets:
        if not _SECRET_NAME.fullmatch(each.name):
            raise SandboxRefused(f"{each.name[:80]!r} cannot be the file of a secret", "use letters and digits")
        yield BoxFile(f"{SECRETS_DIRECTORY}/{each.name}", each.content, 0o400 if uid is None else 0o444)


def box_files(uid: int, home: Path, entry: bytes) -> tuple[BoxFile, ...]:
    """The files that describe the users of a box, and the entry program."""
    users = f"root:x:0:0:root:/:/bin/false\njob:x:{uid}:{uid}:job:{home}:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n"
    groups = f"root:x:0:\njob:x:{uid}:\nnogroup:x:65534:\n"
    services = "passwd: files\ngroup: files\nhosts: files dns\nnetworks: files\nservices: files\nprotocols: files\n"
    return (
        BoxFile("/etc/passwd", users.encode()),
        BoxFile("/etc/group", groups.encode()),
        BoxFile("/etc/nsswitch.conf", services.encode()),
        BoxFile(ENTRY_PATH, entry),
    )
