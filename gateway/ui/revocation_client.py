"""Asks the certificate authority to revoke a certificate, with the auth service's own identity."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sluice.gateway.credentials import FOREVER, Revocations
from sluice.pki import CaUnavailable
from sluice.pki.assertions import CertificateId
from sluice.pki.ca import RevokedAnswer
from sluice.pki.enrolment import Failover, Locate, revoke
from sluice.pki.revocation import Reason
from sluice.pki.tls import TlsIdentity
from sluice.pki.x509 import AuthorityKind

REASONS = (
    Reason.KEY_COMPROMISE,
    Reason.SUPERSEDED,
    Reason.PRIVILEGE_WITHDRAWN,
    Reason.CESSATION_OF_OPERATION,
    Reason.UNSPECIFIED,
)
"""Reasons to revoke a certificate, the most urgent first."""


@dataclass(frozen=True, slots=True)
class RevocationClient:
    """A client of the authorities that have the signing key.

    Attributes:
        identity: directory of the auth service's own identity.
        locate: where the online authorities are; raises ``CaUnavailable`` when nobody knows.
        revocations: the gateway's own, by which open connections of a user's certificate end.
    """

    identity: Path
    locate: Locate
    revocations: Revocations
    _authorities: Failover = field(init=False)

    def __post_init__(self) -> None:
        """What did not answer lately is asked last."""
        object.__setattr__(self, "_authorities", Failover(self.locate))

    @property
    def possible(self) -> bool:
        """Whether there is an authority to ask, and an identity to ask with."""
        if not self.identity.exists():
            return False
        try:
            self.locate()
        except CaUnavailable:
            return False
        return True

    def revoke(self, serial: str, reason: Reason, by: str) -> RevokedAnswer:
        """Have it revoked for ``by``; see :func:`sluice.pki.enrolment.client.revoke`. Blocking."""
        identity = TlsIdentity(self.identity)
        answer = self._authorities.call(lambda address: revoke(identity, address.mutual, serial, reason, by))
        # The list counts in handshakes. A user's certificate is known to the gateway by its fingerprint, too.
        if answer.authority is AuthorityKind.EDGE and answer.fingerprint:
            until = FOREVER if answer.not_after is None else answer.not_after
            self.revocations.revoke(("certificate", CertificateId(answer.fingerprint)), until=until, by=by)
        return answer
