"""Proofs from the audit log of the gateway, where its auth service is on another machine."""

from __future__ import annotations

import msgspec

from sluice.core import AssertionRefused
from sluice.pki.attestations import MAX_PROOF_BYTES, AuditProof, ProofOrder
from sluice.runtime.receipts import Prove
from sluice.runtime.rest.auth_service.client import AuthService

RECEIPTS_PATH = "/auth/receipts"
ANSWER_SECONDS = 10.0


def prove_at(auth: AuthService) -> Prove:
    """Has ``auth`` record receipts; raises :class:`~sluice.core.errors.AssertionRefused` unless it proves that.

    Who asks, it sees from the certificate that is shown to it.
    """

    async def prove(order: ProofOrder, by: str) -> AuditProof:  # noqa: ARG001
        answer = await auth.request(
            "POST", RECEIPTS_PATH, body=msgspec.json.encode(order), max_bytes=MAX_PROOF_BYTES, seconds=ANSWER_SECONDS
        )
        try:
            return msgspec.json.decode(answer, type=AuditProof)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise AssertionRefused("the auth service did not prove that a receipt is recorded") from error

    return prove
