"""Receipts of jobs for a JobManager that shares a home with the auth service: writes its audit log directly."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from sluice.core import Home
from sluice.gateway import AUTH_NAME
from sluice.gateway.audit_log import prove_receipt, receipt_detail, record_act
from sluice.pki import Role
from sluice.pki.attestations import RECEIPT_ISSUED, AuditProof, ProofOrder
from sluice.pki.tls import TlsIdentity


def proving(home: Home) -> Callable[[ProofOrder, str], Awaitable[AuditProof]]:
    """Records receipts of a JobManager of ``home``, signed with the identity of its auth service.

    The second argument is the SPIFFE ID of the JobManager. Raises when it cannot be recorded, or there is no such
    identity.
    """

    def prove(order: ProofOrder, by: str) -> AuditProof:
        identity = TlsIdentity(home.identity(Role.AUTH, AUTH_NAME))
        recorded = record_act(home, RECEIPT_ISSUED, order.principal, receipt_detail(order, by))
        return prove_receipt(recorded, identity)

    async def proof_of(order: ProofOrder, by: str) -> AuditProof:
        return await asyncio.to_thread(prove, order, by)

    return proof_of
