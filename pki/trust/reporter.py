"""Reports the trust that this process has loaded, whenever its identity changes."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
from cryptography.hazmat.primitives import hashes

from sluice.core import IDENTITY_NOT_AFTER, IDENTITY_NOT_BEFORE, StoreError, end_tasks, repeat
from sluice.pki.identities import IdentityMaterial
from sluice.pki.revocation import LOOK_SECONDS
from sluice.pki.tls import TlsIdentity
from sluice.pki.trust.reports import DIRECTORY, TrustReport, remove_report, write_report
from sluice.pki.x509 import issuer_id, key_id

_LOG = logging.getLogger(__name__)


class Reporter:
    """The report of this process about one identity directory.

    Args:
        directory: the identity directory.
        program: what this process is called, as in ``jobmanager``.
    """

    def __init__(self, directory: Path, program: str) -> None:
        self._directory = directory
        self._program = program
        self._pid = os.getpid()
        self._written: TrustReport | None = None
        self._complained = False

    def tell(self, material: IdentityMaterial, loaded_at: dt.datetime, crls: Mapping[str, int]) -> None:
        """Write the report if it changed; a failure is logged and retried next time."""
        report = _report(material, self._program, loaded_at, crls)
        try:
            if report != self._written or not (self._directory / DIRECTORY / f"{self._pid}.json").exists():
                write_report(self._directory, report)
        except (StoreError, OSError) as error:
            if not self._complained:
                _LOG.warning("cannot report the trust that %s uses: %s", material.spiffe_id, error)
            self._complained = True
            return
        self._written, self._complained = report, False

    def close(self) -> None:
        """Remove the report when the process ends normally."""
        remove_report(self._directory, self._pid)


def in_memory(identity: TlsIdentity, program: str) -> TrustReport:
    """The trust that this process, called ``program``, has loaded of ``identity``, after a check of its files."""
    material = identity.material
    identity.revoked_peers.look()
    return _report(material, program, identity.loaded_at, identity.revoked_peers.numbers())


def _report(material: IdentityMaterial, program: str, loaded_at: dt.datetime, crls: Mapping[str, int]) -> TrustReport:
    return TrustReport(
        pid=os.getpid(),
        started=psutil.Process().create_time(),  # each time again: it follows changes of the clock
        identity=str(material.spiffe_id),
        program=program,
        leaf=material.leaf.fingerprint(hashes.SHA256()).hex(),
        issuer=issuer_id(material.leaf),
        anchors=tuple(key_id(anchor) for anchor in material.anchors),
        crls=dict(crls),
        loaded_at=loaded_at,
    )


@asynccontextmanager
async def reporting(identity: TlsIdentity, program: str, *, interval: float = LOOK_SECONDS) -> AsyncIterator[None]:
    """Check the files of ``identity`` every ``interval`` seconds and report what is in memory, within the block.

    This way a process without connections follows a rotation, too.
    """
    reporter = Reporter(identity.directory, program)

    def look() -> None:
        material = identity.material
        identity.revoked_peers.look()
        shown, leaf = str(material.spiffe_id), material.leaf
        IDENTITY_NOT_BEFORE.labels(shown).set(leaf.not_valid_before_utc.timestamp())
        IDENTITY_NOT_AFTER.labels(shown).set(leaf.not_valid_after_utc.timestamp())
        reporter.tell(material, identity.loaded_at, identity.revoked_peers.numbers())

    look()
    failure = f"cannot look at the identity of {program} now"
    looking = asyncio.create_task(repeat(look, interval, failure), name=f"in-use-{program}")
    try:
        yield
    finally:
        await end_tasks(looking)
        reporter.close()
