"""Evidence of mutual TLS connections: this process's own records, merged with what others report."""

from __future__ import annotations

from sluice.pki.tls import ConnectionLog
from sluice.runtime.messages import ConnectionEvidence, Evidence

MAX_EVIDENCE_ENTRIES = 1000
"""Maximum number of connections in one answer."""


def from_log(connections: ConnectionLog, job_id: str = "") -> Evidence:
    """The connections that this process has recorded; with ``job_id`` only those with that job's driver and executors.

    Times become epoch seconds, as in the JVMs' records.
    """
    found = tuple(
        ConnectionEvidence(
            channel=each.channel,
            local=each.local,
            peer=each.peer,
            direction=each.direction,
            protocol=each.protocol,
            cipher=each.cipher,
            address=each.address,
            opened_at=each.opened_at / 1000,
            certificate=each.certificate,
        )
        for each in connections.snapshot()
        if not job_id or f"/job/{job_id}/" in each.peer
    )
    return _bounded(found, 0)


def merge(*parts: Evidence) -> Evidence:
    """Merge the parts without duplicates, oldest first; keep the latest when there are too many connections."""
    unique = dict.fromkeys(each for part in parts for each in part.connections)
    ordered = tuple(sorted(unique, key=lambda each: each.opened_at))
    return _bounded(ordered, sum(part.dropped for part in parts))


def _bounded(connections: tuple[ConnectionEvidence, ...], dropped: int) -> Evidence:
    kept = connections[-MAX_EVIDENCE_ENTRIES:]
    return Evidence(kept, dropped + len(connections) - len(kept))
