"""DSSE envelopes signed by one X.509 identity. No I/O.

Source: DSSE 1.0.2 (https://github.com/secure-systems-lab/dsse); the certificates are in ``extension`` of the signature,
as version 1.1 of its schema (``envelope.proto``) has it. Stricter than DSSE: the document has exactly one encoding, so
that a duplicate or unknown field is an error.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence, Set as AbstractSet
from dataclasses import dataclass
from typing import TypeVar

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
from sluice.pki.spiffe_id import Role
from sluice.pki.x509 import DAMAGED_JSON, Verified

IN_TOTO = "application/vnd.in-toto+json"
"""The payload type of in-toto statements."""
MAX_ENVELOPE_BYTES = 6 << 20
MAX_PAYLOAD_BYTES = 4 << 20
CHAIN_KIND = "urn:sluice:x509-chain:v1"

_T = TypeVar("_T", bound=msgspec.Struct)


# All fields are in alphabetical order, so that plain encoding is canonical.
class CertificateChain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The signer's leaf and its intermediates, in base64 of DER."""

    certificates: tuple[str, ...]


class Extension(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What comes with a signature, unauthenticated."""

    ext: CertificateChain
    kind: str


class Signature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A signature; `keyid` is the SHA-256 of the signer's public key."""

    extension: Extension
    keyid: str
    sig: str


class Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A DSSE envelope: `payload` is in base64, signed together with its type."""

    payload: str
    payload_type: str
    signatures: tuple[Signature, ...]


def canonical(document: msgspec.Struct | dict[str, object]) -> bytes:
    """The canonical encoding of a document: JSON in UTF-8, keys in order, no space."""
    return msgspec.json.encode(document, order="sorted")


def decode_canonical(data: bytes, kind: type[_T], what: str) -> _T:
    """Decode a document in the form of :func:`canonical`; raises :class:`AttestationRejected`."""
    try:
        document = msgspec.json.decode(data, type=kind)
    except DAMAGED_JSON as error:
        raise AttestationRejected(f"{what} is malformed: {error}") from error
    if canonical(document) != data:
        raise AttestationRejected(
            f"{what} is not in its canonical form", "it has duplicate fields, or was rewritten: get the original"
        )
    return document


@dataclass(frozen=True, slots=True)
class Opened:
    """A well-formed envelope; trust nothing in it before :meth:`verify`."""

    payload_type: str
    payload: bytes
    signer: Signer
    signature: bytes

    def verify(self, *, anchors: Sequence[x509.Certificate], at: dt.datetime, roles: AbstractSet[Role]) -> Verified:
        """Who has signed the payload; raises :class:`AttestationRejected`."""
        return self.signer.verify(self.payload_type, self.payload, self.signature, anchors=anchors, at=at, roles=roles)


def sign(payload: bytes, payload_type: str, material: IdentityMaterial) -> Envelope:
    """An envelope with ``payload``, signed by ``material``; raises :class:`AttestationRejected` if it is too large."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise AttestationRejected(f"a statement of {len(payload)} bytes is larger than {MAX_PAYLOAD_BYTES}")
    chain = CertificateChain(certificates_of(material))
    signature = Signature(
        Extension(chain, CHAIN_KIND),
        Signer(material.leaf, material.chain).key_id,
        encode_base64(sign_with(material, payload_type, payload)),
    )
    return Envelope(encode_base64(payload), payload_type, (signature,))


def open_envelope(data: bytes, payload_type: str) -> Opened:
    """Parse an envelope; raises :class:`AttestationRejected` unless it has exactly the form above."""
    if len(data) > MAX_ENVELOPE_BYTES:
        raise AttestationRejected(f"the document is larger than {MAX_ENVELOPE_BYTES} bytes")
    envelope = decode_canonical(data.removesuffix(b"\n"), Envelope, "the envelope")
    if envelope.payload_type != payload_type:
        raise AttestationRejected(f"the envelope holds {envelope.payload_type[:80]!r}, not {payload_type}")
    if len(envelope.signatures) != 1:
        raise AttestationRejected(f"the envelope has {len(envelope.signatures)} signatures", "exactly one is expected")
    (signature,) = envelope.signatures
    if signature.extension.kind != CHAIN_KIND:
        raise AttestationRejected(f"the signature comes with {signature.extension.kind[:80]!r}, not {CHAIN_KIND}")
    signer = Signer.decode(signature.extension.ext.certificates)
    if signature.keyid != signer.key_id:
        raise AttestationRejected("the signature names another key than that of its certificate")
    return Opened(
        envelope.payload_type,
        decode_base64(envelope.payload, MAX_PAYLOAD_BYTES),
        signer,
        decode_base64(signature.sig, MAX_SIGNATURE_BYTES),
    )
