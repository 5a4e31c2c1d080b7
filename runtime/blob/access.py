"""Who may read or write which blob: decided from the certificate alone. No I/O."""

from __future__ import annotations

from pki.errors import PeerRefused
from pki.identity import Role, SpiffeId

_READ_ANY = frozenset({Role.JOBMANAGER, Role.TASKMANAGER})
_READ_OWN = frozenset({Role.DRIVER, Role.EXECUTOR})


def check_read(peer: SpiffeId, job_id: str) -> None:
    """Return when ``peer`` may read blobs of ``job_id``; raise :class:`PeerRefused` when not."""
    if peer.role in _READ_ANY or (peer.role in _READ_OWN and peer.job_id == job_id):
        return
    raise PeerRefused(f"{peer} may not read blobs of job {job_id}")


def check_write(peer: SpiffeId, job_id: str) -> None:
    """Return when ``peer`` may write blobs of ``job_id``; raise :class:`PeerRefused` when not."""
    if peer.role is not Role.JOBMANAGER:
        raise PeerRefused(f"{peer} may not write blobs of job {job_id}")
