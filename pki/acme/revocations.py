"""Revocations by clients (RFC 8555, section 7.6): by the account, or by whoever holds the certificate's key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cryptography import x509

from sluice.pki.acme.jwk import decode, of_public_key, thumbprint
from sluice.pki.acme.objects import Account, Certificate, Status
from sluice.pki.acme.payloads import RevokeCert, read
from sluice.pki.acme.problems import AcmeProblem, ProblemType, malformed
from sluice.pki.acme.requester import Requester
from sluice.pki.acme.store import AcmeStore
from sluice.pki.revocation import Reason
from sluice.pki.x509 import DAMAGED, check_strength, fingerprint

REASONS = {
    0: Reason.UNSPECIFIED,
    1: Reason.KEY_COMPROMISE,
    3: Reason.AFFILIATION_CHANGED,
    4: Reason.SUPERSEDED,
    5: Reason.CESSATION_OF_OPERATION,
}
"""Reasons that a client may give (RFC 5280, 5.3.1): only authorities give others."""
ORDERS_LOOKED_AT = 200
"""Most orders of an account that are searched for its authorizations."""


@dataclass(frozen=True, slots=True)
class GrantedRevocation:
    """A revocation that the requester may request."""

    certificate: Certificate
    reason: Reason
    by: str


class Revocations:
    """Decides about revocations; ``clock`` gives seconds since the epoch."""

    def __init__(self, store: AcmeStore, *, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock

    def grant(self, requester: Requester) -> GrantedRevocation:
        """Check a request to revoke.

        Raises:
            AcmeProblem: it is not of this server, has expired, or the requester has no right to have it revoked.
        """
        asked = read(requester.payload, RevokeCert)
        reason = REASONS.get(asked.reason)
        if reason is None:
            allowed = ", ".join(str(each) for each in REASONS)
            raise AcmeProblem(ProblemType.BAD_REVOCATION_REASON, f"the reason is one of {allowed}")
        leaf, key = _certificate(asked.certificate)
        # 1. Exactly what was issued here: a certificate with the same number is not enough.
        found = self._store.certificate(f"{leaf.serial_number:x}")
        if found is None or found.sha256 != fingerprint(leaf):
            raise malformed("this certificate was not issued here, or it has expired", status=404)
        # 2. By its account, by one that controls all its names, or by the holder of its key.
        account = requester.account
        if account is None:
            if thumbprint(requester.jwk) != key:
                raise AcmeProblem(ProblemType.UNAUTHORIZED, "the request is not signed with the certificate's key")
        elif account.id != found.account and not self._controls(account, found):
            raise AcmeProblem(ProblemType.UNAUTHORIZED, "this is a certificate of another account")
        by = "the holder of its key" if account is None else f"account {account.id} ({account.name})"
        return GrantedRevocation(found, reason, by)

    def done(self, granted: GrantedRevocation) -> None:
        """Remember the key of a certificate that was revoked as compromised, which is never certified again (7.6)."""
        if granted.reason is not Reason.KEY_COMPROMISE:
            return
        leaf = x509.load_pem_x509_certificates(granted.certificate.chain_pem.encode())[0]
        with self._store.change():
            self._store.put_compromised(thumbprint(of_public_key(check_strength(leaf.public_key()))))

    def _controls(self, account: Account, certificate: Certificate) -> bool:
        now = self._clock()
        shown = {
            identifier
            for order in self._store.orders_of(account.id, ORDERS_LOOKED_AT)
            if order.expires > now
            for identifier, each in zip(order.identifiers, order.authorizations, strict=True)
            if each.status is Status.VALID
        }
        return set(certificate.identifiers) <= shown


def _certificate(text: str) -> tuple[x509.Certificate, str]:
    """The certificate of a request, and the thumbprint of its key."""
    der = decode(text, "the certificate")
    try:
        leaf = x509.load_der_x509_certificate(der)
        return leaf, thumbprint(of_public_key(check_strength(leaf.public_key())))
    except DAMAGED:
        raise malformed("this is not a certificate in DER") from None
