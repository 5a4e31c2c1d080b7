"""Signed requests (RFC 8555, section 6.2): parsing, then verifying with a key that the caller chose. No I/O."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import Any

import msgspec

from sluice.pki.acme.jwk import Jwk, canonical, decode, public_key, thumbprint, verify
from sluice.pki.acme.problems import AcmeProblem, ProblemType, malformed
from sluice.pki.x509 import DAMAGED_JSON

MAX_REQUEST_BYTES = 64 << 10
"""Largest body of a request."""
ALGORITHMS = frozenset({"ES256", "ES384", "EdDSA", "RS256"})
MAX_HEADER_CHARACTERS = 16 << 10
MAX_VALUE_CHARACTERS = 1024
"""Longest kid, url or nonce."""


class _Flattened(msgspec.Struct, forbid_unknown_fields=True):
    """The only accepted form: no unprotected header, no several signatures (RFC 8555, 6.2)."""

    protected: str
    payload: str
    signature: str


class _Header(msgspec.Struct):
    alg: str
    url: str
    nonce: str = ""
    kid: str | None = None
    jwk: dict[str, Any] | None = None
    crit: Any = None
    b64: Any = True


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A request whose signature has not been verified; exactly one of ``kid`` and ``jwk`` is set."""

    algorithm: str
    url: str
    nonce: str
    kid: str
    jwk: Jwk | None
    payload: bytes
    signature: bytes
    signed: bytes

    def verify(self, jwk: Jwk) -> None:
        """Refuse a signature that is not of ``jwk``; :class:`AcmeProblem`."""
        if self.algorithm not in ALGORITHMS:
            raise AcmeProblem(ProblemType.BAD_SIGNATURE_ALGORITHM, "the algorithm is not accepted")
        verify(public_key(jwk), self.algorithm, self.signature, self.signed)


def parse_request(body: bytes | Any, *, nonce: bool = True, symmetric: bool = False) -> SignedRequest:  # noqa: ANN401
    """Parse a request.

    Args:
        body: JSON, or an object decoded from it.
        nonce: whether it must have one; a JWS inside another one must have none.
        symmetric: it is an external account binding: HS256 with a key id.

    Raises:
        AcmeProblem: it is not of the form that RFC 8555 asks for.
    """
    try:
        flattened = (
            msgspec.json.decode(body, type=_Flattened)
            if isinstance(body, bytes)
            else msgspec.convert(body, type=_Flattened)
        )
    except DAMAGED_JSON:
        raise malformed("this is not a JWS with protected, payload and signature") from None
    if len(flattened.protected) > MAX_HEADER_CHARACTERS:
        raise malformed("the protected header is too long")
    try:
        header = msgspec.json.decode(decode(flattened.protected, "the protected header"), type=_Header)
    except DAMAGED_JSON:
        raise malformed("the protected header is not one of ACME: alg, url, nonce, and jwk or kid") from None
    # RFC 7515, 4.1.11 and RFC 7797: extensions that must be understood.
    if header.crit is not None or header.b64 is not True:
        raise malformed("the protected header demands extensions")
    if max(len(header.url), len(header.nonce), len(header.kid or "")) > MAX_VALUE_CHARACTERS:
        raise malformed("a value of the protected header is too long")
    if nonce and not header.nonce:
        raise AcmeProblem(ProblemType.BAD_NONCE, "the request has no nonce")
    if not nonce and header.nonce:
        raise malformed("a JWS within another one must have no nonce")
    # 1. The algorithm before the key: "none" and MACs are never accepted (RFC 8555, 6.2).
    if header.alg not in ({"HS256"} if symmetric else ALGORITHMS):
        raise AcmeProblem(ProblemType.BAD_SIGNATURE_ALGORITHM, f"the algorithm {header.alg[:20]!r} is not accepted")
    # 2. Exactly one way to name the key.
    if (header.jwk is None) == (not header.kid):
        raise malformed("exactly one of jwk and kid says which key signed")
    return SignedRequest(
        header.alg,
        header.url,
        header.nonce,
        header.kid or "",
        None if header.jwk is None else canonical(header.jwk),
        decode(flattened.payload, "the payload"),
        decode(flattened.signature, "the signature"),
        f"{flattened.protected}.{flattened.payload}".encode(),
    )


def check_binding(binding: SignedRequest, *, secret: bytes, account: Jwk, url: str) -> None:
    """Refuse an external account binding that is not of ``secret``, for the key ``account`` (RFC 8555, 7.3.4).

    Raises:
        AcmeProblem: one of the rules of that section does not hold.
    """
    expected = hmac.digest(secret, binding.signed, hashlib.sha256)
    if not hmac.compare_digest(expected, binding.signature):
        raise AcmeProblem(ProblemType.UNAUTHORIZED, "the external account binding is not of its key")
    if binding.url != url:
        raise malformed("the external account binding is for another URL")
    try:
        bound = canonical(msgspec.json.decode(binding.payload, type=dict[str, Any]))
    except DAMAGED_JSON:
        raise malformed("the external account binding binds no key") from None
    if thumbprint(bound) != thumbprint(account):
        raise AcmeProblem(ProblemType.UNAUTHORIZED, "the external account binding is for another account key")
