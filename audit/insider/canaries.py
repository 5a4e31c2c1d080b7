"""Things of the audit's own that a job must not reach: they are there for certain, and worth nothing."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sluice.audit.insider.payload import Target

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  a directory of the audit's own is made in it
CONTENT_BYTES = 32


@dataclass(frozen=True, slots=True)
class Canaries:
    """What was put out.

    Attributes:
        targets: for the job.
        file: one readable only by this user, whose content must come back nowhere.
        content: of that file.
    """

    targets: tuple[Target, ...]
    file: Path
    content: str

    def __repr__(self) -> str:
        return f"Canaries({self.file})"


@contextlib.contextmanager
def canaries(nonce: str) -> Iterator[Canaries]:
    """Files and directories in the temporary directories that everybody shares, and an abstract socket; then gone."""
    content = secrets.token_hex(CONTENT_BYTES)
    with contextlib.ExitStack() as stack:
        targets: list[Target] = []
        files: list[Path] = []
        for parent in dict.fromkeys((Path(tempfile.gettempdir()), Path("/tmp"), SHARED_MEMORY)):  # noqa: S108
            if not os.access(parent, os.W_OK):
                continue
            made = stack.enter_context(tempfile.TemporaryDirectory(prefix=f"sluice-canary-{nonce}-", dir=parent))
            directory = Path(made)
            file = directory / "canary"
            file.touch(mode=0o600)
            file.write_text(f"canary:{content}\n", encoding="ascii")
            open_to_all = directory / "open"
            open_to_all.mkdir()
            open_to_all.chmod(0o1777)
            directory.chmod(0o755)
            files.append(file)
            status = open_to_all.stat()
            targets += [
                Target("marker", str(file), f"canary in {parent}", hashlib.sha256(file.read_bytes()).hexdigest()),
                Target("open directory", str(open_to_all), str(parent), f"{status.st_dev}:{status.st_ino}"),
            ]
        listening = stack.enter_context(socket.socket(socket.AF_UNIX))
        with contextlib.suppress(OSError):
            name = f"sluice-canary-{nonce}"
            listening.bind(f"\0{name}")
            listening.listen(64)
            targets.append(Target("abstract socket", name, "socket of the audit"))
        yield Canaries(tuple(targets), files[0], content)
