"""Problem documents (RFC 7807) of the ACME server, and the error that becomes one."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from sluice.core import PkiError
from sluice.pki.acme.identifiers import Identifier

URN = "urn:ietf:params:acme:error:"
MAX_DETAIL_CHARACTERS = 400


class ProblemType(enum.StrEnum):
    """The error types of RFC 8555, section 6.7, that this server uses."""

    ACCOUNT_DOES_NOT_EXIST = "accountDoesNotExist"
    ALREADY_REVOKED = "alreadyRevoked"
    BAD_CSR = "badCSR"
    BAD_NONCE = "badNonce"
    BAD_PUBLIC_KEY = "badPublicKey"
    BAD_REVOCATION_REASON = "badRevocationReason"
    BAD_SIGNATURE_ALGORITHM = "badSignatureAlgorithm"
    CONNECTION = "connection"
    DNS = "dns"
    EXTERNAL_ACCOUNT_REQUIRED = "externalAccountRequired"
    INCORRECT_RESPONSE = "incorrectResponse"
    INVALID_CONTACT = "invalidContact"
    MALFORMED = "malformed"
    ORDER_NOT_READY = "orderNotReady"
    RATE_LIMITED = "rateLimited"
    REJECTED_IDENTIFIER = "rejectedIdentifier"
    SERVER_INTERNAL = "serverInternal"
    TLS = "tls"
    UNAUTHORIZED = "unauthorized"
    UNSUPPORTED_CONTACT = "unsupportedContact"
    UNSUPPORTED_IDENTIFIER = "unsupportedIdentifier"
    USER_ACTION_REQUIRED = "userActionRequired"


_STATUS = {
    ProblemType.UNAUTHORIZED: 403,
    ProblemType.ORDER_NOT_READY: 403,
    ProblemType.REJECTED_IDENTIFIER: 403,
    ProblemType.EXTERNAL_ACCOUNT_REQUIRED: 403,
    ProblemType.RATE_LIMITED: 429,
    ProblemType.SERVER_INTERNAL: 500,
}


class AcmeProblem(PkiError):
    """A refused request or validation; the client sees ``what``, so it must contain no secret.

    Args:
        kind: of the error.
        what: for the client.
        status: of the HTTP answer; by default the one that fits ``kind``.
        retry_after: in seconds; 0: the answer does not say.
        subproblems: one for each identifier that is refused.
        location: URL of the existing resource.
    """

    def __init__(
        self,
        kind: ProblemType,
        what: str,
        *,
        status: int = 0,
        retry_after: float = 0.0,
        subproblems: Sequence[tuple[Identifier, str]] = (),
        location: str = "",
    ) -> None:
        super().__init__(what[:MAX_DETAIL_CHARACTERS])
        self.kind = kind
        self.status = status or _STATUS.get(kind, 400)
        self.retry_after = retry_after
        self.subproblems = tuple(subproblems)
        self.location = location

    def document(self) -> dict[str, object]:
        """As JSON."""
        found: dict[str, object] = {"type": URN + self.kind, "detail": self.what, "status": self.status}
        if self.kind is ProblemType.BAD_SIGNATURE_ALGORITHM:
            found["algorithms"] = ["ES256", "ES384", "EdDSA", "RS256"]  # RFC 8555, 6.2
        if self.subproblems:
            found["subproblems"] = [
                {
                    "type": URN + self.kind,
                    "detail": detail[:MAX_DETAIL_CHARACTERS],
                    "identifier": {"type": identifier.type, "value": identifier.value[:255]},
                }
                for identifier, detail in self.subproblems
            ]
        return found


def malformed(what: str, *, status: int = 400) -> AcmeProblem:
    """The problem of a request that breaks the protocol."""
    return AcmeProblem(ProblemType.MALFORMED, what, status=status)
