"""Identities on their way into Envoy: checked, then given as files that change atomically (file SDS).

Envoy could read key and chain from an identity directory itself, but between the renames of two files it would see a
pair that does not match; and it takes revocation lists unseen, of which a damaged one makes it refuse everybody. So
the set is read and checked here and each secret written into one file; what does not pass is never given to Envoy,
and what it had before stays.
"""

from __future__ import annotations

import datetime as dt
import enum
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from cryptography import x509

from gateway.errors import EnvoyIdentityError
from gateway.upstreams import CERTIFICATE_SECRET, TRUST_SECRET, InternalSecrets
from pki.authority import to_pem
from pki.crl import RevocationList
from pki.due import purposes_of
from pki.files import write_secret
from pki.identity import Role
from pki.identity_files import IdentityMaterial, Stamp, read_identity, stamp_of
from pki.profiles import Purpose
from pki.revoked_peers import RevokedPeers

_LOG = logging.getLogger(__name__)

EDGE_SECRET = "edge"  # noqa: S105  the name of the secret in envoy/bootstrap.jsonc, not a secret

_SECRET_TYPE = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"  # noqa: S105  a type


class Side(enum.StrEnum):
    """Which of Envoy's two identities."""

    EDGE = "edge"
    """The public certificate: for servers alone, signed by the edge authority."""
    INTERNAL = "internal"
    """What Envoy shows to REST and to the auth service."""


@dataclass(frozen=True, slots=True)
class Given:
    """What Envoy was given last.

    Inside, the anchors are those of ``material`` that Envoy trusts: see :func:`trusted_anchors`. At the edge it
    verifies nobody, and they are all of them.
    """

    material: IdentityMaterial
    anchors: tuple[x509.Certificate, ...]
    lists: tuple[RevocationList, ...] = ()


def certificate_secret(name: str, chain_pem: bytes, key_pem: bytes) -> dict[str, object]:
    """The pair as Envoy reads it from a file (an SDS DiscoveryResponse)."""
    return _response(
        name,
        "tls_certificate",
        {
            "certificate_chain": {"inline_string": chain_pem.decode("ascii")},
            "private_key": {"inline_string": key_pem.decode("ascii")},
        },
    )


def trust_secret(name: str, anchors: Sequence[x509.Certificate], lists: Sequence[RevocationList]) -> dict[str, object]:
    """What Envoy verifies peers with. The anchors are intermediates: nobody has a list about *them*."""
    context: dict[str, object] = {"trusted_ca": {"inline_string": to_pem(*anchors).decode("ascii")}}
    if lists:
        crl = b"".join(each.pem for each in lists).decode("ascii")
        context |= {"crl": {"inline_string": crl}, "only_verify_leaf_cert_crl": True}
    return _response(name, "validation_context", context)


def trusted_anchors(
    anchors: Sequence[x509.Certificate], lists: Sequence[RevocationList]
) -> tuple[tuple[x509.Certificate, ...], tuple[RevocationList, ...]]:
    """Anchors and lists that go together.

    Once Envoy has a list it refuses everybody whose issuer has none. Lists are not given up for that: an authority
    without one, while others have theirs, is not trusted until its list is there. When there is no list at all,
    nobody was revoked yet, as everywhere else.
    """
    subjects = {anchor.subject.public_bytes() for anchor in anchors}
    counting = tuple(each for each in lists if each.issuer_key in subjects)
    listed = {each.issuer_key for each in counting}
    covered = tuple(anchor for anchor in anchors if anchor.subject.public_bytes() in listed)
    return covered or tuple(anchors), counting


def _response(name: str, field: str, secret: dict[str, object]) -> dict[str, object]:
    return {"resources": [{"@type": _SECRET_TYPE, "name": name, field: secret}]}


class SecretFeed:
    """Brings what an identity directory holds to Envoy whenever it changes."""

    def __init__(
        self,
        directory: Path,
        side: Side,
        trust_domain: str,
        certificate: Path,
        trust: Path | None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """See :meth:`edge` and :meth:`internal`."""
        self.directory = directory
        self.side = side
        self._trust_domain = trust_domain
        self._certificate = certificate
        self._trust = trust
        self._seen: Stamp | None = None
        self._material: IdentityMaterial | None = None
        self._revoked: RevokedPeers | None = None
        self._lists_seen = -1
        self._monotonic = monotonic
        self._now = dt.datetime.min.replace(tzinfo=dt.UTC)

    @classmethod
    def edge(cls, directory: Path, target: Path, trust_domain: str) -> SecretFeed:
        """The public certificate; ``target`` is the SDS file, written 0600."""
        return cls(directory, Side.EDGE, trust_domain, target, None)

    @classmethod
    def internal(
        cls,
        directory: Path,
        targets: InternalSecrets,
        trust_domain: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> SecretFeed:
        """The internal identity, with the anchors and revocation lists beside it.

        ``monotonic`` is for the pace at which lists are looked at.
        """
        return cls(directory, Side.INTERNAL, trust_domain, targets.certificate, targets.trust, monotonic=monotonic)

    def update(self, now: dt.datetime) -> Given | None:
        """Read the set; give a new one to Envoy and return it, or return None when nothing changed.

        Raises :class:`~pki.errors.SluiceError` when the set cannot be read or used; it is looked at
        again only after it changed again.
        """
        self._now = now
        renewed = self._read(now)
        if self._material is None:
            return None
        if self._trust is None:
            if not renewed:
                return None
            self._give_certificate(self._material)
            return Given(self._material, self._material.anchors)
        return self._update_internal(self._material, self._trust, renewed=renewed)

    def withdraw(self) -> None:
        """Remove the files: they hold a key."""
        for path in (self._certificate, self._trust):
            if path is not None:
                path.unlink(missing_ok=True)

    def _read(self, now: dt.datetime) -> bool:
        stamp = stamp_of(self.directory)
        if stamp == self._seen:
            return False
        self._seen = stamp
        # 1. Whole, and key and leaf of the same generation. 2. Valid now.
        material, self._seen = read_identity(self.directory)
        material.check_valid_at(now)
        # 3. The gateway's own, of the right side, and not any other certificate that lay around.
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
                "the public one belongs into gateway/edge, the internal one into gateway/envoy: "
                "restart the cluster, or see `sluice pki issue --help`",
            )
        self._material = material
        return True

    def _update_internal(self, material: IdentityMaterial, target: Path, *, renewed: bool) -> Given | None:
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
                "Envoy does not trust %s yet: it has no revocation list, while another authority has one",
                left_out.subject.rfc4514_string(),
            )
        # Trust first: whoever is met with the new certificate may have one of the new authority.
        write_secret(target, msgspec.json.encode(trust_secret(TRUST_SECRET, anchors, lists)))
        if renewed:
            self._give_certificate(material)
        self._lists_seen = version
        return Given(material, anchors, lists)

    def _anchors(self) -> tuple[x509.Certificate, ...]:
        return () if self._material is None else self._material.anchors

    def _give_certificate(self, material: IdentityMaterial) -> None:
        name = EDGE_SECRET if self.side is Side.EDGE else CERTIFICATE_SECRET
        secret = certificate_secret(name, material.chain_pem, material.key_pem)
        write_secret(self._certificate, msgspec.json.encode(secret))
