"""The identity directory that a process of a job sees.

The process that started it keeps the original and renews it. Where the job has its own uid, its processes cannot read
the original: they get a copy, which is updated within a second. They own the copied files but not the directory.
Elsewhere they see the original, read-only.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from sluice.core import FileStamp, StoreError, file_stamp, make_private_directory, read_bounded, remove_leftovers
from sluice.pki.revocation import CRL_FILE
from sluice.runtime.sandbox import Sandbox, write_for

FILES = ("ca.pem", CRL_FILE, "peers", "key.pem", "chain.pem")
"""The files that a JVM reads, in the order in which they are replaced: trust first."""
MAX_FILE_BYTES = 64 << 20
LOOK_SECONDS = 1.0
_COPY = "-of-job"
_OTHERS_MAY_PASS = 0o711

_LOG = logging.getLogger(__name__)


class JobIdentity:
    """An identity directory for a process of a job.

    Args:
        directory: the complete identity; only the process that starts the job's process writes it.
        sandbox: knows the job's uid.
        job_id: ID of the job.
        place: the directory that the process sees, if the caller has chosen it; None: it is chosen here.
    """

    def __init__(self, directory: Path, sandbox: Sandbox, job_id: str, place: Path | None = None) -> None:
        self._directory = directory
        self._uid = sandbox.uid(job_id)
        self._copied: dict[str, FileStamp | None] = {}
        elsewhere = directory if self._uid is None else directory.with_name(f"{directory.name}{_COPY}")
        self.visible_directory = place or elsewhere
        """The directory that the process sees."""

    def refresh(self) -> None:
        """Update the copy, if there is one; raises :class:`StoreError`. Blocks."""
        if self.visible_directory == self._directory:
            return
        if not self._copied:
            make_private_directory(self.visible_directory).chmod(_OTHERS_MAY_PASS)
            remove_leftovers(self.visible_directory)
        for name in FILES:
            stamp = file_stamp(self._directory / name)
            if name not in self._copied or stamp != self._copied[name]:
                self._copy(name, gone=stamp is None)
                self._copied[name] = stamp

    async def keep_fresh(self) -> None:
        """Keep the copy up to date until cancelled; return at once when there is no copy."""
        complaint = ""
        while self.visible_directory != self._directory:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await asyncio.to_thread(self.refresh)
                complaint = ""
            except (StoreError, OSError) as error:  # the process keeps its present identity
                if str(error) != complaint:
                    _LOG.error("cannot update a job's copy of its identity: %s", error)
                complaint = str(error)

    def _copy(self, name: str, *, gone: bool) -> None:
        target = self.visible_directory / name
        if gone:
            target.unlink(missing_ok=True)
            return
        write_for(self._uid, target, read_bounded(self._directory / name, MAX_FILE_BYTES))
