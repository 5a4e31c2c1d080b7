"""The online authority's routes and bodies, for both sides of the wire: JSON over HTTPS."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sluice.core import CertificateRejected, InvalidIdentity, PeerRefused, SluiceError
from sluice.pki.errors import (
    AttestationUnavailable,
    CertificateSuperseded,
    CertificateUnknown,
    EnrolmentRefused,
    IssuanceRefused,
    LedgerError,
    RateLimited,
)
from sluice.pki.jwt import MAX_AUDIENCES, TokenRejected
from sluice.pki.revocation import Reason
from sluice.pki.spiffe_id import MAX_SPIFFE_ID_BYTES
from sluice.pki.trust import TrustReport
from sluice.pki.x509 import AuthorityKind

AUTHORITY_PATH = "/v1/authority"
ENROL_PATH = "/v1/enrol"
ATTEST_PATH = "/v1/attest"
RENEW_PATH = "/v1/renew"
JOB_PATH = "/v1/jobs/identities"
TOKEN_PATH = "/v1/jobs/tokens"  # noqa: S105  a path
TOKEN_KEYS_PATH = "/v1/jobs/token-keys"  # noqa: S105  a path
EDGE_RENEW_PATH = "/v1/edge/renew"
TRUST_PATH = "/v1/trust"
REVOKE_PATH = "/v1/revoke"

ALPN = ("http/1.1",)
MAX_REQUEST_BYTES = 128 << 10
"""Largest request body, in bytes."""
MAX_TRUST_REQUEST_BYTES = 32 << 10
"""Largest trust request, in bytes: it contains what the processes of an identity have in memory."""
MAX_TOLD = 8
"""Most processes of an identity whose reports are in a trust request; more are only counted."""
MAX_VERSION_CHARACTERS = 64
MAX_NAME_CHARACTERS = 256
MAX_ANSWER_BYTES = 6 << 20
"""Largest answer that a client reads, in bytes."""
MAX_TRUST_ANSWER_BYTES = 12 << 20
"""Largest trust answer: the CRLs of both sides, each of at most ``MAX_CRL_BYTES``."""
TRUST_WAIT_SECONDS = 25.0
"""How long a trust request waits for a change."""

ERROR_STATUS: dict[type[SluiceError], int] = {
    CertificateRejected: 422,
    InvalidIdentity: 422,
    EnrolmentRefused: 403,
    IssuanceRefused: 403,
    CertificateSuperseded: 403,
    CertificateUnknown: 404,
    PeerRefused: 403,
    RateLimited: 429,
    TokenRejected: 422,
    LedgerError: 503,
    AttestationUnavailable: 503,
}
"""The errors that a requester sees, with their HTTP status; any other one becomes an internal error (500)."""


class _Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class EnrolRequest(_Body, frozen=True):
    """``token`` is a secret: sent only to a server that was verified."""

    token: str
    csr_pem: str


class AttestRequest(_Body, frozen=True):
    """``evidence`` is a secret, for the attestor of this name: sent only to a server that was verified.

    ``edge_server``: for a gateway's public certificate.
    """

    attestor: Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARACTERS)]
    evidence: str
    identity: Annotated[str, msgspec.Meta(max_length=MAX_SPIFFE_ID_BYTES)]
    csr_pem: str
    edge_server: bool = False

    def __repr__(self) -> str:
        return f"AttestRequest({self.attestor!r}, {self.identity!r}, ...)"


class RenewRequest(_Body, frozen=True):
    """The client certificate identifies the requester."""

    csr_pem: str


class EdgeRenewRequest(_Body, frozen=True):
    """``chain_pem`` is the present public certificate, with its authority; ``proof``: its key signed the request."""

    chain_pem: str
    csr_pem: str
    proof: bytes


class JobRequest(_Body, frozen=True):
    """``lifetime_seconds`` 0: as long as the profile says."""

    spiffe_id: str
    csr_pem: str
    lifetime_seconds: float = 0


class TokenRequest(_Body, frozen=True):
    """A JWT-SVID of a job's process; the token contains the job's ``owner``."""

    spiffe_id: Annotated[str, msgspec.Meta(max_length=MAX_SPIFFE_ID_BYTES)]
    audience: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=MAX_AUDIENCES)]
    owner: Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARACTERS)] = ""


class SignedToken(_Body, frozen=True):
    """``token`` is a secret: whoever has it is the job, for its audience, until it expires."""

    token: str

    def __repr__(self) -> str:
        return "SignedToken(...)"


class TokenKeysAnswer(_Body, frozen=True):
    """The public keys of JWT-SVIDs: ``jwks`` as a SPIFFE bundle. ``issuer``: of OpenID Connect; empty: none."""

    jwks: str
    issuer: str = ""


class RevokeRequest(_Body, frozen=True):
    """``serial`` is hexadecimal; ``by`` is the administrator, as named by the requester."""

    serial: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{1,40}$")]
    reason: Reason
    by: Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARACTERS)]


class RevokedAnswer(_Body, frozen=True):
    """What was revoked. ``new``: it was not before; ``fingerprint``: SHA-256, empty when only the number is known."""

    identity: str
    authority: AuthorityKind
    new: bool
    fingerprint: str = ""
    not_after: float | None = None


class AuthorityAnswer(_Body, frozen=True):
    """The trust anchors: not trusted before their fingerprint is compared."""

    ca_pem: str


class TrustRequest(_Body, frozen=True):
    """Asks for trust anchors and CRLs, and reports those in use. The client certificate identifies the requester.

    ``known`` is the version of an earlier answer; empty: answer at once. ``in_use`` are the reports of the processes
    that use this identity, ``unreadable`` how many more there are without a readable report.
    """

    known: Annotated[str, msgspec.Meta(max_length=MAX_VERSION_CHARACTERS)] = ""
    in_use: Annotated[tuple[TrustReport, ...], msgspec.Meta(max_length=MAX_TOLD)] = ()
    unreadable: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)] = 0


class TrustSide(_Body, frozen=True):
    """The trust of one side: its anchors, of which the first signs now, and their CRLs.

    ``crl_pem`` is empty while no CRL was signed.
    """

    ca_pem: str
    crl_pem: str = ""


class TrustAnswer(_Body, frozen=True):
    """The current trust; without ``internal``: nothing changed.

    ``version`` changes with the content; ``edge`` is for gateways only.
    """

    version: str
    internal: TrustSide | None = None
    edge: TrustSide | None = None


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An error: ``title`` is its name."""

    status: int
    title: str
    detail: str = ""
    remedy: str = ""
    retry_after: float = 0
