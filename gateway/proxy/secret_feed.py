"""Reads and checks identities for Envoy, and provides them as secrets (SDS).

Envoy could read key and chain from an identity directory itself, but between the renames of the two files it would see
a pair that does not match. It also accepts CRLs without checks, and a damaged one makes it refuse every client. If an
identity fails a check here, Envoy keeps the previous one.
"""

from __future__ import annotations

import datetime as dt
import enum
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from sluice.core.xds import Message, certificate_secret, trust_secret
from sluice.gateway.errors import EnvoyIdentityError
from sluice.gateway.upstreams import CERTIFICATE_SECRET, EDGE_SECRET, EDGE_TRUST_SECRET, TRUST_SECRET
from sluice.pki import Role
from sluice.pki.authorities import to_pem
from sluice.pki.identities import IdentityMaterial, Stamp, read_identity, stamp_of
from sluice.pki.revocation import RevocationList, RevokedPeers, trusted_anchors
from sluice.pki.x509 import Purpose, purposes_of

_LOG = logging.getLogger(__name__)


class Side(enum.StrEnum):
    """Envoy's two identities."""

    EDGE = "edge"
    """The public certificate: for servers only, signed by the edge authority."""
    INTERNAL = "internal"
    """The certificate that Envoy presents to REST and to the auth service."""


@dataclass(frozen=True, slots=True)
class Given:
    """The secrets of one identity for Envoy.

    ``anchors`` are the trust anchors of ``material`` that Envoy uses, see :func:`trusted_anchors`. On the internal side
    it verifies REST and the auth service with them, at the edge the certificates of users.
    """

    side: Side
    material: IdentityMaterial
    anchors: tuple[x509.Certificate, ...]
    lists: tuple[RevocationList, ...] = ()

    @property
    def secrets(self) -> dict[str, Message]:
        """The SDS resources, by name."""
        chain, key = self.material.chain_pem, self.material.key_pem
        anchors, lists = to_pem(*self.anchors), b"".join(each.pem for each in self.lists)
        if self.side is Side.EDGE:
            # No check of the identity here: it would refuse clients without a certificate, whom Envoy must accept.
            # The auth service accepts only users, and this authority signs client certificates of no other role.
            return {
                EDGE_TRUST_SECRET: trust_secret(EDGE_TRUST_SECRET, anchors, lists),
                EDGE_SECRET: certificate_secret(EDGE_SECRET, chain, key),
            }
        return {
            TRUST_SECRET: trust_secret(TRUST_SECRET, anchors, lists),
            CERTIFICATE_SECRET: certificate_secret(CERTIFICATE_SECRET, chain, key),
        }


class SecretFeed:
    """Reads an identity directory for Envoy whenever it changes.

    Args:
        directory: the identity directory.
        side: which of Envoy's two identities it is.
        trust_domain: the trust domain of all identities.
        monotonic: the clock for the interval between checks of the CRLs.
    """

    def __init__(
        self,
        directory: Path,
        side: Side,
        trust_domain: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.directory = directory
        self.side = side
        self._trust_domain = trust_domain
        self._seen: Stamp | None = None
        self._material: IdentityMaterial | None = None
        self._revoked: RevokedPeers | None = None
        self._lists_seen = -1
        self._monotonic = monotonic
        self._now = dt.datetime.min.replace(tzinfo=dt.UTC)

    def update(self, now: dt.datetime) -> Given | None:
        """Read the identity and its CRLs; return them when they are new, or None when nothing changed.

        Raises :class:`~sluice.core.errors.SluiceError` when the identity is unreadable or invalid. It is read again
        only after another change.
        """
        self._now = now
        renewed = self._read(now)
        if self._material is None:
            return None
        return self._with_lists(self._material, renewed=renewed)

    def _read(self, now: dt.datetime) -> bool:
        stamp = stamp_of(self.directory)
        if stamp == self._seen:
            return False
        self._seen = stamp
        # 1. Complete, and key and leaf match. 2. Currently valid.
        material, self._seen = read_identity(self.directory)
        material.check_valid_at(now)
        # 3. The gateway's own certificate, of the right side.
        identity = material.spiffe_id
        if identity.trust_domain != self._trust_domain or identity.role is not Role.GATEWAY:
            raise EnvoyIdentityError(
                f"the {self.side} certificate is that of {identity}, not of a gateway in {self._trust_domain}",
                "issue it again: restart the cluster, or see `sluice pki issue --help`",
            )
        public = purposes_of(material.leaf) == (Purpose.SERVER,)
        if public is not (self.side is Side.EDGE):
            raise EnvoyIdentityError(
                f"{self.directory} holds the gateway's {'public' if public else 'internal'} certificate",
                "the public one belongs in gateway/edge, the internal one in gateway/envoy: "
                "restart the cluster, or see `sluice pki issue --help`",
            )
        self._material = material
        return True

    def _with_lists(self, material: IdentityMaterial, *, renewed: bool) -> Given | None:
        if self._revoked is None:
            self._revoked = RevokedPeers(
                self.directory, self._anchors, clock=lambda: self._now, monotonic=self._monotonic
            )
        version = self._revoked.look()
        if not renewed and version == self._lists_seen:
            return None
        anchors, lists = trusted_anchors(material.anchors, self._revoked.lists)
        for left_out in set(material.anchors) - set(anchors):
            _LOG.warning(
                "Envoy does not trust %s yet: it has no CRL, while another authority has one",
                left_out.subject.rfc4514_string(),
            )
        self._lists_seen = version
        return Given(self.side, material, anchors, lists)

    def _anchors(self) -> tuple[x509.Certificate, ...]:
        return () if self._material is None else self._material.anchors
