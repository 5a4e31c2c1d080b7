"""Records receipts in the gateway's audit log, and gets the proofs, through an auth service on another machine."""

from __future__ import annotations

import msgspec

from sluice.core import AssertionRefused
from sluice.pki.attestations import MAX_PROOF_BYTES, AuditProof, ProofOrder
from sluice.runtime.receipts import Prove
from sluice.runtime.rest.auth_service.client import AuthService

RECEIPTS_PATH = "/auth/receipts"
ANSWER_SECONDS = 10.0


def remote_prove(auth: AuthService) -> Prove:
    """A function that lets ``auth`` record receipts. It raises ``AssertionRefused`` unless ``auth`` proves the record.

    ``auth`` knows the caller from the client certificate, so ``by`` is not sent.
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
