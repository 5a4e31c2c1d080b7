"""Builds the bubblewrap options for one box."""

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
"""The uid of a job inside its user namespace. Outside, it maps to the uid of the process that started the box."""
ENTRY_PATH = "/run/sluice/entry.pyc"
MINIMUM_TMP_MB = 16

_ROOTS_CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")
"""The capabilities that the entry program needs to switch to the job's uid. It drops all of them then."""


_SECRET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class BoxFile:
    """A small file that bubblewrap writes into the box."""

    path: str
    content: bytes = field(repr=False)
    mode: int = 0o444


def namespace_options(uid: int | None) -> Iterator[str]:
    """The options for namespaces and capabilities.

    Args:
        uid: the uid that the entry program switches to if root starts the box; None: the box has a user namespace.
    """
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
    """The options for all mounts, in this order: the machine's, the box's private ones, those of its view.

    Args:
        system: mounts of programs and their settings.
        own: the mounts of the view, sorted by :func:`sluice.runtime.sandbox.mounts.in_order`.
        files: files to write into the box, each with a descriptor of its content.
        tmp_mb: size of each tmpfs in MiB.
    """
    size = max(tmp_mb, MINIMUM_TMP_MB) * MIB
    yield from mounted(system, size)
    for folder in sorted({parent for _, file in files for parent in Path(file.path).parents if parent != Path("/")}):
        yield from _directory(folder)
    for fd, file in files:
        yield from ("--perms", f"{file.mode:04o}", "--file", str(fd), file.path)
    yield from ("--proc", "/proc", "--dev", "/dev")
    yield from ("--perms", "1777", "--size", str(size), "--tmpfs", "/tmp")  # noqa: S108 - private to the box
    yield from ("--perms", "1777", "--size", str(size), "--tmpfs", "/dev/shm")  # noqa: S108 - private to the box
    yield from mounted(own, size)
    for mount in own:
        if mount.kind is MountKind.EMPTY:
            yield from ("--remount-ro", str(mount.path))
    yield from ("--remount-ro", "/dev", "--remount-ro", "/")


def mounted(mounts: Sequence[Mount], size: int) -> Iterator[str]:
    """The options for ``mounts``, in order, and for their parent directories; ``size`` of each tmpfs in bytes."""
    for each in with_parents(mounts):
        yield from each.options(size) if isinstance(each, Mount) else _directory(each)


def _directory(path: Path) -> tuple[str, ...]:
    """The options that create a parent directory with mode 0755; bubblewrap's own default would allow only root."""
    return ("--perms", "0755", "--dir", str(path))


def secret_files(secrets: Iterable[SecretFile], uid: int | None) -> Iterator[BoxFile]:
    """The secret files of a box, readable only for the job.

    If root creates the box, root owns its files, while the job has another uid (``uid``). The files are then readable
    for every user, because only the job runs in the box; the job cannot change their modes.

    Raises:
        SandboxRefused: a secret's name cannot be a file name.
    """
    for each in secrets:
        if not _SECRET_NAME.fullmatch(each.name):
            raise SandboxRefused(f"{each.name[:80]!r} cannot be the file name of a secret", "use letters and digits")
        yield BoxFile(f"{SECRETS_DIRECTORY}/{each.name}", each.content, 0o400 if uid is None else 0o444)


def box_files(uid: int, home: Path, entry: bytes) -> tuple[BoxFile, ...]:
    """The user database files of a box, and its entry program."""
    users = f"root:x:0:0:root:/:/bin/false\njob:x:{uid}:{uid}:job:{home}:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n"
    groups = f"root:x:0:\njob:x:{uid}:\nnogroup:x:65534:\n"
    services = "passwd: files\ngroup: files\nhosts: files dns\nnetworks: files\nservices: files\nprotocols: files\n"
    return (
        BoxFile("/etc/passwd", users.encode()),
        BoxFile("/etc/group", groups.encode()),
        BoxFile("/etc/nsswitch.conf", services.encode()),
        BoxFile(ENTRY_PATH, entry),
    )
