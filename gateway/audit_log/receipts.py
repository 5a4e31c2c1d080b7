"""Records job receipts in the audit log. The digest of a receipt is recorded before the receipt is signed."""

from __future__ import annotations

from sluice.gateway.audit_log.log import SignedRecord
from sluice.gateway.errors import AuditLogError
from sluice.pki.attestations import AuditProof, ProofOrder, make_proof
from sluice.pki.tls import TlsIdentity


def receipt_detail(order: ProofOrder, by: str) -> dict[str, str]:
    """The detail of a receipt's record. ``by`` is the SPIFFE ID of the JobManager that requests the proof."""
    return {"job": order.job, "sha256": order.sha256, "by": by}


def prove_receipt(recorded: SignedRecord, identity: TlsIdentity) -> AuditProof:
    """The proof that a receipt is recorded, signed by the auth service with its current identity."""
    if not recorded.checkpoint:
        raise AuditLogError("the record of a receipt has no checkpoint")
    return make_proof(recorded.line, recorded.checkpoint, identity.material)
