"""Revokes leaves on behalf of administrators, at the request of the auth service only.

The auth service can end connections and block renewals this way, but gets no certificate and no key. The log of the
authority shows each request (docs/adr/0062-*).
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable

from sluice.core import Home, PeerRefused, utc_now
from sluice.pki.ca.protocol import RevokedAnswer
from sluice.pki.ca.revocable_certificates import fingerprints, in_home
from sluice.pki.config import PkiConfig
from sluice.pki.errors import CertificateUnknown, IssuanceRefused
from sluice.pki.revocation import Reason, RevocationStore, push_crls
from sluice.pki.spiffe_id import Role, SpiffeId

_LOG = logging.getLogger(__name__)


class Revoker:
    """Revokes leaves that this authority knows; not thread-safe."""

    def __init__(self, home: Home, config: PkiConfig, *, clock: Callable[[], dt.datetime] = utc_now) -> None:
        self._home = home
        self._clock = clock
        self._store = RevocationStore(home.pki, config, clock=clock)

    def revoke(self, requester: SpiffeId, serial: int, reason: Reason, by: str) -> RevokedAnswer:
        """Revoke the certificate with this number, and install the new CRL in every identity directory of the home.

        Args:
            requester: the authenticated requester; only an auth service is allowed.
            by: the administrator, as named by the requester.

        Raises:
            PeerRefused: the requester is not an auth service.
            CertificateUnknown: there is no such unexpired certificate.
            IssuanceRefused: it is the authority's own certificate, which is needed to recover.
            CertificateRejected: the reason is not allowed for a leaf.
        """
        if requester.role is not Role.AUTH:
            raise PeerRefused(f"{requester} may not have certificates revoked")
        now = self._clock()
        found = next(in_home(self._home, now, serial=serial), None)
        if found is None:
            raise CertificateUnknown(
                f"no certificate with serial {serial:x} is known here, or it has expired",
                "`sluice pki revoke SERIAL --authority …` revokes what is not known",
            )
        kind, target = found
        # Certificates of the ACME server have host names as their identity.
        if target.identity.startswith("spiffe://") and SpiffeId.parse(target.identity).role is Role.CA:
            raise IssuanceRefused(
                "the authority's own certificate is not revoked from a page", f"sluice pki revoke {serial:x}"
            )
        added = self._store.revoke(kind, [target], reason)
        push_crls(self._home, self._store.lists(), now)
        # `by` comes from outside: printed with repr, so that it cannot forge a log line.
        _LOG.warning("revoked %s, serial %x, %s: %s asked for %r", target.identity, serial, reason, requester, by)
        known = dict(fingerprints(self._home))
        return RevokedAnswer(
            identity=target.identity,
            authority=kind,
            new=bool(added),
            fingerprint=known.get(serial, ""),
            not_after=None if target.not_after is None else target.not_after.timestamp(),
        )
