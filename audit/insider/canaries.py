"""Worthless files and sockets of the audit that certainly exist, and that a job must not reach."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import socket
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sluice.audit.insider.payload import Target

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  the audit makes its own directory in it
CONTENT_BYTES = 32
KEPT = "open/kept"
"""A file beside a canary, in a directory that everybody may write; nobody has a reason to remove it."""


@dataclass(frozen=True, slots=True)
class Canaries:
    """The canaries of a run.

    Attributes:
        targets: for the job.
        file: one readable only by the cluster's user, whose content must never come back; its path for a job.
        content: of the files.
        files: all of them, as the audit sees them.
    """

    targets: tuple[Target, ...]
    file: str
    content: str
    files: tuple[Path, ...]

    def __repr__(self) -> str:
        return f"Canaries({self.file})"


@dataclass(frozen=True, slots=True)
class CanarySite:
    """A file system with shared directories: of this machine, or of a container.

    Attributes:
        root: its path for the audit.
        owner: the owner of the canary's file; None: this user.
    """

    root: Path = Path("/")
    owner: int | None = None

    def directories(self) -> Iterator[Path]:
        """The directories for temporary files that this process can write."""
        own = [Path(tempfile.gettempdir())] if self.root == Path("/") else []
        for parent in dict.fromkeys((*own, self.root / "tmp", self.root / SHARED_MEMORY.relative_to("/"))):
            if os.access(parent, os.W_OK):
                yield parent

    def inside(self, path: Path) -> str:
        """The path of ``path`` for a job."""
        return str(path) if self.root == Path("/") else f"/{path.relative_to(self.root)}"


HERE = (CanarySite(),)


@contextlib.contextmanager
def canaries(nonce: str, sites: Iterable[CanarySite] = HERE) -> Iterator[Canaries]:
    """Create files and directories in the shared temporary directories, and an abstract socket, for the block."""
    content = secrets.token_hex(CONTENT_BYTES)
    with contextlib.ExitStack() as stack:
        targets: list[Target] = []
        files: list[tuple[Path, str]] = []
        for site in sites:
            for parent in site.directories():
                made = stack.enter_context(tempfile.TemporaryDirectory(prefix=f"sluice-canary-{nonce}-", dir=parent))
                directory = Path(made)
                file = directory / "canary"
                file.touch(mode=0o600)
                file.write_text(f"canary:{content}\n", encoding="ascii")
                open_to_all = directory / "open"
                open_to_all.mkdir()
                open_to_all.chmod(0o1777)
                (directory / KEPT).touch()
                directory.chmod(0o755)
                if site.owner is not None:
                    os.chown(file, site.owner, -1)
                files.append((file, site.inside(file)))
                status = open_to_all.stat()
                digest = hashlib.sha256(file.read_bytes()).hexdigest()
                targets += [
                    Target("marker", site.inside(file), f"canary in {site.inside(parent)}", digest),
                    Target(
                        "open directory",
                        site.inside(open_to_all),
                        site.inside(parent),
                        f"{status.st_dev}:{status.st_ino}",
                    ),
                ]
        listening = stack.enter_context(socket.socket(socket.AF_UNIX))
        with contextlib.suppress(OSError):
            name = f"sluice-canary-{nonce}"
            listening.bind(f"\0{name}")
            listening.listen(64)
            targets.append(Target("abstract socket", name, "socket of the audit"))
        yield Canaries(tuple(targets), files[0][1] if files else "", content, tuple(file for file, _ in files))
