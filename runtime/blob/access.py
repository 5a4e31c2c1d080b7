"""Decides from the peer's certificate alone which blobs it may read. No I/O."""

from __future__ import annotations

from sluice.core import PeerRefused
from sluice.pki import Role, SpiffeId


def check_read(peer: SpiffeId, job_id: str) -> None:
    """Raise :class:`PeerRefused` unless ``peer`` is the driver of ``job_id`` and so may read its blobs.

    The driver gives its executors the files that they need. TaskManagers need no files of jobs.
    """
    if peer.role is not Role.DRIVER or peer.job_id != job_id:
        raise PeerRefused(f"{peer} may not read blobs of job {job_id}", "only the driver of a job may")
