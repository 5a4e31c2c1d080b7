from .audit_proof import (
    MAX_ORDER_BYTES as MAX_ORDER_BYTES,
    MAX_PROOF_BYTES as MAX_PROOF_BYTES,
    RECEIPT_ISSUED as RECEIPT_ISSUED,
    AuditProof as AuditProof,
    ProofOrder as ProofOrder,
    Proven as Proven,
    check_proof as check_proof,
    make_proof as make_proof,
)
from .certificates import AttestationRejected as AttestationRejected
from .dsse import (
    IN_TOTO as IN_TOTO,
    MAX_ENVELOPE_BYTES as MAX_ENVELOPE_BYTES,
    Envelope as Envelope,
    canonical as canonical,
    decode_canonical as decode_canonical,
    open_envelope as open_envelope,
    sign as sign,
)
