"""Who may read which blob: decided from the certificate alone. No I/O."""

from __future__ import annotations

from sluice.core import PeerRefused
from sluice.pki import Role, SpiffeId


def check_read(peer: SpiffeId, job_id: str) -> None:
    """Return when ``peer`` may read blobs of ``job_id``, as its driver; raise :class:`PeerRefused` when not.

    The driver gives its executors what they need; TaskManagers have no business with what jobs bring.
    """
    if peer.role is not Role.DRIVER or peer.job_id != job_id:
        raise PeerRefused(f"{peer} may not read blobs of job {job_id}", "only the driver of a job may")
