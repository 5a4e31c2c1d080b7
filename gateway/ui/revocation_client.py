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
    """A client of the online authorities, which have the signing key.

    Attributes:
        identity: the directory of the auth service's own identity.
        locate: returns the addresses of the online authorities; raises ``CaUnavailable`` when they are unknown.
        revocations: the gateway's own revocations, which end the open connections of a user's certificate.
    """

    identity: Path
    locate: Locate
    revocations: Revocations
    _authorities: Failover = field(init=False)

    def __post_init__(self) -> None:
        """Use a failover that tries authorities last that did not answer recently."""
        object.__setattr__(self, "_authorities", Failover(self.locate))

    @property
    def possible(self) -> bool:
        """Whether there is an online authority, and an identity to call it with."""
        if not self.identity.exists():
            return False
        try:
            self.locate()
        except CaUnavailable:
            return False
        return True

    def revoke(self, serial: str, reason: Reason, by: str) -> RevokedAnswer:
        """Revoke a certificate on behalf of ``by``; see :func:`sluice.pki.enrolment.client.revoke`. Blocking."""
        identity = TlsIdentity(self.identity)
        answer = self._authorities.call(lambda address: revoke(identity, address.mutual, serial, reason, by))
        # The CRL is checked in handshakes only. To end open connections of a user's certificate, the gateway also
        # revokes its fingerprint.
        if answer.authority is AuthorityKind.EDGE and answer.fingerprint:
            until = FOREVER if answer.not_after is None else answer.not_after
            self.revocations.revoke(("certificate", CertificateId(answer.fingerprint)), until=until, by=by)
        return answer
