"""The identity of a job's process, as the process sees it.

Whoever started it keeps the identity to itself and renews it. Where the job has a uid of its own, its processes cannot
read that directory: they get a copy, whose files are theirs and whose directory is not, and which follows within a
second. Elsewhere they are shown the directory itself, read-only.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from sluice.core import FileStamp, StoreError, file_stamp, make_private_directory, read_bounded, remove_leftovers
from sluice.pki.revocation import CRL_FILE
from sluice.runtime.sandbox import Sandbox, write_for

FILES = ("ca.pem", CRL_FILE, "peers", "key.pem", "chain.pem")
"""What a JVM reads, in the order in which it is replaced: trust first."""
MAX_FILE_BYTES = 64 << 20
LOOK_SECONDS = 1.0
_COPY = "-of-job"
_OTHERS_MAY_PASS = 0o711

_LOG = logging.getLogger(__name__)


class JobIdentity:
    """An identity directory for a process of a job.

    Args:
        directory: the identity, complete; only whoever started the process writes it.
        place: the directory that the process sees, where that is decided already; None: it is decided here.
    """

    def __init__(self, directory: Path, sandbox: Sandbox, job_id: str, place: Path | None = None) -> None:
        self._directory = directory
        self._uid = sandbox.uid(job_id)
        self._copied: dict[str, FileStamp | None] = {}
        elsewhere = directory if self._uid is None else directory.with_name(f"{directory.name}{_COPY}")
        self.shown = place or elsewhere
        """The directory that the process sees."""

    def refresh(self) -> None:
        """Bring the copy up to date, if there is one; raises :class:`StoreError`. Blocks."""
        if self.shown == self._directory:
            return
        if not self._copied:
            make_private_directory(self.shown).chmod(_OTHERS_MAY_PASS)
            remove_leftovers(self.shown)
        for name in FILES:
            stamp = file_stamp(self._directory / name)
            if name not in self._copied or stamp != self._copied[name]:
                self._copy(name, gone=stamp is None)
                self._copied[name] = stamp

    async def keep_fresh(self) -> None:
        """Keep the copy up to date until cancelled; without one this ends at once."""
        complaint = ""
        while self.shown != self._directory:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await asyncio.to_thread(self.refresh)
                complaint = ""
            except (StoreError, OSError) as error:  # the process goes on with what it has
                if str(error) != complaint:
                    _LOG.error("cannot show a job its new identity: %s", error)
                complaint = str(error)

    def _copy(self, name: str, *, gone: bool) -> None:
        target = self.shown / name
        if gone:
            target.unlink(missing_ok=True)
            return
        write_for(self._uid, target, read_bounded(self._directory / name, MAX_FILE_BYTES))
