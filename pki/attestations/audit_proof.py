"""Proof that something is in the audit log, and since when: two of its lines, signed by the auth service.

No I/O. The first line is the record, with the digest of what was recorded. The second line is the checkpoint after it,
with the digest of the first line. The auth service signs the checkpoint with its X.509 identity, so that its time can
be verified without the key of the log. With that key or the log itself, the same two lines can be checked too.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
from cryptography import x509

from sluice.pki.attestations.certificates import (
    MAX_SIGNATURE_BYTES,
    AttestationRejected,
    Signer,
    certificates_of,
    decode_base64,
    encode_base64,
    sign_with,
)
from sluice.pki.identities import IdentityMaterial
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509 import DAMAGED_JSON

RECEIPT_ISSUED = "receipt.issued"
"""The kind of act that records a receipt."""
CHECKPOINT_TYPE = "application/vnd.sluice.audit-checkpoint+json"
MAX_LINE_CHARACTERS = 16 << 10
MAX_PROOF_BYTES = 128 << 10
MAX_ORDER_BYTES = 4 << 10


class ProofOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From a JobManager to the auth service: what to record.

    Attributes:
        job: id of the job that the receipt is about.
        principal: who asked for it.
        sha256: of the receipt without the proof.
    """

    job: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    principal: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class AuditProof(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The lines of record and checkpoint as they are in the log, and the auth service's signature of the checkpoint.

    `certificates` are its leaf and intermediates, in base64 of DER.
    """

    certificates: tuple[str, ...]
    checkpoint: str
    record: str
    signature: str


class _Line(msgspec.Struct, frozen=True):
    """The fields of a line that matter here; the log's own types have the rest."""

    event: str
    sequence: int
    time: dt.datetime
    previous: str
    kind: str = ""
    key: str = ""
    principal: str = ""
    detail: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Proven:
    """What a proof says.

    Attributes:
        at: when the record was written.
        record: its number in the log.
        checkpoint: the number of the checkpoint, which is how many lines it signs.
        head: the digest of the checkpoint.
        key: id of the log's key.
        witness: the auth service that has signed.
        expires_at: until when its certificate was valid.
        detail: what was recorded.
    """

    at: dt.datetime
    record: int
    checkpoint: int
    head: str
    key: str
    witness: SpiffeId
    expires_at: dt.datetime
    detail: dict[str, str]


def make_proof(record: bytes, checkpoint: bytes, material: IdentityMaterial) -> AuditProof:
    """The proof of ``record``, which ``checkpoint`` follows; both are lines without their newline."""
    signature = sign_with(material, CHECKPOINT_TYPE, checkpoint)
    return AuditProof(certificates_of(material), checkpoint.decode(), record.decode(), encode_base64(signature))


def check_proof(proof: AuditProof, *, anchors: Sequence[x509.Certificate]) -> Proven:
    """What ``proof`` proves; raises :class:`AttestationRejected` naming the first rule that is broken."""
    if max(len(proof.record), len(proof.checkpoint)) > MAX_LINE_CHARACTERS:
        raise AttestationRejected("a line of the audit log in the document is too long")
    record, checkpoint = _decoded(proof.record), _decoded(proof.checkpoint)
    # 1. A record, and right after it a checkpoint over it.
    if record.event != "act" or checkpoint.event != "checkpoint" or not checkpoint.key:
        raise AttestationRejected("the lines of the audit log in the document are not a record and its checkpoint")
    before = hashlib.sha256(proof.record.encode()).hexdigest()
    if checkpoint.previous != before or checkpoint.sequence != record.sequence + 1:
        raise AttestationRejected("the checkpoint in the document is not the one that follows its record")
    # 2. By the auth service, whose certificate was valid then.
    try:
        verified = Signer.decode(proof.certificates).verify(
            CHECKPOINT_TYPE,
            proof.checkpoint.encode(),
            decode_base64(proof.signature, MAX_SIGNATURE_BYTES),
            anchors=anchors,
            at=checkpoint.time,
            roles={Role.AUTH},
        )
    except AttestationRejected as error:
        raise AttestationRejected(f"the audit log's checkpoint: {error.what}", error.remedy) from error
    return Proven(
        at=record.time,
        record=record.sequence,
        checkpoint=checkpoint.sequence,
        head=hashlib.sha256(proof.checkpoint.encode()).hexdigest(),
        key=checkpoint.key,
        witness=verified.spiffe_id,
        expires_at=verified.expires_at,
        detail={**record.detail, "kind": record.kind, "principal": record.principal},
    )


def _decoded(line: str) -> _Line:
    try:
        found = msgspec.json.decode(line, type=_Line)
    except DAMAGED_JSON as error:
        raise AttestationRejected("a line of the audit log in the document is damaged") from error
    if found.time.tzinfo is None:
        raise AttestationRejected("a line of the audit log in the document has a time without a zone")
    return found
