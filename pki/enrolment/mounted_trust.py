"""Installs trust anchors and CRLs from mounted files, such as a ConfigMap, in an identity directory.

It is for pods of jobs, which cannot subscribe because the authority's mutual TLS port admits no job.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from sluice.core import Clock, FileStamp, PkiError, file_stamp, read_bounded, utc_now
from sluice.pki.trust import TrustBundle, install_trust

_LOG = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""How often to check the files for a change."""
MAX_CRL_BYTES = 1 << 20


class MountedTrust:
    """Keeps one identity directory in step with the files; ``run`` until cancelled.

    Args:
        anchors: PEM file; the CRLs are in the file ``crls``, which may be missing.
        directory: of the identity. It stays unchanged when the files cannot be used.
    """

    def __init__(self, anchors: Path, crls: Path, directory: Path, *, clock: Clock = utc_now) -> None:
        self._anchors = anchors
        self._crls = crls
        self._directory = directory
        self._clock = clock
        self._seen: tuple[FileStamp | None, FileStamp | None] | None = None
        self._complaint = ""

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(LOOK_SECONDS)

    def look(self) -> bool:
        """Install changes once; returns whether anything changed."""
        try:
            seen = (file_stamp(self._anchors), file_stamp(self._crls))
            if seen == self._seen or seen[0] is None:
                return False
            lists = read_bounded(self._crls, MAX_CRL_BYTES) if seen[1] is not None else b""
            changed = install_trust(
                self._directory, TrustBundle.parse(read_bounded(self._anchors), lists), self._clock()
            )
        except (PkiError, OSError) as error:
            # Do not end the job: the kubelet may just have replaced the files, or the disk may be full.
            if (complaint := str(error)) != self._complaint:
                _LOG.error("the mounted trust anchors and CRLs are not installed: %s", error)
            self._complaint = complaint
            return False
        self._seen, self._complaint = seen, ""
        if changed:
            _LOG.info("trust anchors and CRLs installed in %s", self._directory)
        return changed
