"""Issues receipts: the leader composes the statement, has its digest recorded in the audit log, and signs it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sluice.core import Clock, SluiceError, utc_now
from sluice.pki.attestations import (
    IN_TOTO,
    AttestationRejected,
    AuditProof,
    Envelope,
    ProofOrder,
    canonical,
    check_proof,
    decode_canonical,
    sign,
)
from sluice.pki.tls import TlsIdentity
from sluice.runtime.jobmanager import EgressConnections, JobRecord
from sluice.runtime.receipts.compose import compose
from sluice.runtime.receipts.document import Statement, with_proof
from sluice.runtime.receipts.errors import ReceiptNotRecorded, ReceiptUnavailable

Prove = Callable[[ProofOrder, str], Awaitable[AuditProof]]
"""Makes the gateway record a receipt of the JobManager with this SPIFFE ID. Raises :class:`SluiceError`."""
LOST_DIGEST = "0" * 64
"""The digest in place of the pipeline's when the submission is lost."""


@dataclass(frozen=True, slots=True)
class ReceiptIssuer:
    """Issues receipts with the identity of this JobManager."""

    identity: TlsIdentity
    prove: Prove
    clock: Clock = utc_now

    async def issue(
        self, record: JobRecord, outside: EgressConnections | None, *, principal: str, disclose: bool
    ) -> Envelope:
        """Issue the receipt of an ended job.

        Args:
            record: record of the job.
            outside: its outbound connections; None: unknown.
            principal: who requests the receipt.
            disclose: whether to include arguments and settings.

        Raises:
            ReceiptUnavailable: the job has not ended, or its submission is not known any more.
            ReceiptNotRecorded: the audit log could not record it, so it is not issued.
        """
        detail = record.detail
        if not detail.state.terminal:
            raise ReceiptUnavailable(f"job {detail.id} is {detail.state}", "a receipt is issued when it has ended")
        if record.submission.pipeline.sha256 == LOST_DIGEST:
            raise ReceiptUnavailable(f"what job {detail.id} ran is not known any more: its record was damaged")
        material = self.identity.material
        bare = compose(record, outside, issued_by=material.spiffe_id, now=self.clock(), disclose=disclose)
        try:
            # Never record a receipt that a verifier would refuse.
            decode_canonical(canonical(bare), Statement, "the receipt")
            order = ProofOrder(detail.id, principal, bare.digest())
            try:
                proof = await self.prove(order, str(material.spiffe_id))
                proven = check_proof(proof, anchors=material.anchors)
            except SluiceError as error:
                raise ReceiptNotRecorded(
                    f"the receipt cannot be recorded in the audit log: {error.what}", "try again later"
                ) from error
            if proven.detail.get("sha256") != order.sha256:
                raise ReceiptNotRecorded("the audit log has recorded something else", "see `sluice audit-log verify`")
            return await asyncio.to_thread(sign, canonical(with_proof(bare, proof)), IN_TOTO, material)
        except AttestationRejected as error:
            raise ReceiptUnavailable(f"job {detail.id} does not fit into a receipt: {error.what}") from error
