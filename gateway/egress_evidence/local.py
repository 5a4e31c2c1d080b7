"""The same for a JobManager in the gateway's home: it reads the policy and writes the audit log directly."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence

from sluice.core import EgressAnswer, EgressQuestion, Home
from sluice.gateway.audit_log import AuditLog, AuditRecord, audit_directory, audit_file, read_records
from sluice.gateway.authz import PolicyFile
from sluice.gateway.authz.policy_file import policy_file
from sluice.gateway.config import GatewayConfig
from sluice.gateway.egress_evidence.evidence import EgressEvidence

MAX_BATCH_RECORDS = 500


def egress_evidence_in(
    home: Home, config: GatewayConfig, operations: frozenset[str]
) -> Callable[[EgressQuestion], Awaitable[EgressAnswer]]:
    """Answers with the policy and the audit log of ``home``, which are opened on the first request."""
    policy = PolicyFile(lambda: policy_file(home, config.policy_file), lambda: operations)

    @functools.cache
    def log() -> AuditLog:
        return AuditLog(audit_file(home))

    def write(records: Sequence[AuditRecord]) -> None:
        for begin in range(0, len(records), MAX_BATCH_RECORDS):
            log().append_all(records[begin : begin + MAX_BATCH_RECORDS])

    async def append(records: Sequence[AuditRecord]) -> None:
        await asyncio.to_thread(write, records)

    return EgressEvidence(
        policy.get, append, lambda last: read_records(audit_directory(home), last=last) if log() else ()
    ).answer
