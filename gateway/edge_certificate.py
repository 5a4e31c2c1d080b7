"""The edge certificate on its way into Envoy: checked, then given as one secret that changes atomically.

Envoy would also read key and chain from two files, but a reader between two renames sees a pair that
does not match. So they are checked here and written into one file (file SDS); what does not pass the
check is never given to Envoy, and the pair before it stays.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from gateway.errors import EdgeCertificateError
from pki.errors import PkiError
from pki.files import read_bounded, read_secret, write_secret
from pki.identity import Role, SpiffeId

MAX_CHAIN_CERTIFICATES = 8
_RENEW = "issue it again with `sluice pki issue`, or restart the cluster"


@dataclass(frozen=True, slots=True)
class EdgeCertificate:
    """A chain and its key that belong together, both PEM."""

    chain_pem: bytes
    key_pem: bytes
    not_after: dt.datetime

    def sds(self) -> dict[str, object]:
        """The secret ``edge`` as Envoy reads it from a file (SDS DiscoveryResponse)."""
        return {
            "resources": [
                {
                    "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
                    "name": "edge",
                    "tls_certificate": {
                        "certificate_chain": {"inline_string": self.chain_pem.decode()},
                        "private_key": {"inline_string": self.key_pem.decode()},
                    },
                }
            ]
        }

    def __repr__(self) -> str:
        return f"EdgeCertificate(not_after={self.not_after.isoformat()})"


def check(chain_pem: bytes, key_pem: bytes, *, trust_domain: str, now: dt.datetime) -> EdgeCertificate:
    """Accept a pair that Envoy can serve; raises :class:`EdgeCertificateError` with what is wrong."""
    try:
        chain = x509.load_pem_x509_certificates(chain_pem)
        key = load_pem_private_key(key_pem, password=None)
    except (ValueError, TypeError) as error:
        raise EdgeCertificateError(f"the edge certificate or its key is damaged: {error}", _RENEW) from error
    if not 1 <= len(chain) <= MAX_CHAIN_CERTIFICATES:
        raise EdgeCertificateError(f"the edge certificate chain has {len(chain)} certificates", _RENEW)
    leaf = chain[0]
    # 1. Key and leaf of the same generation.
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if leaf.public_key().public_bytes(*form) != key.public_key().public_bytes(*form):
        raise EdgeCertificateError("the edge certificate and its key do not belong together", _RENEW)
    # 2. Valid now.
    if not leaf.not_valid_before_utc <= now < leaf.not_valid_after_utc:
        raise EdgeCertificateError(
            f"the edge certificate is valid from {leaf.not_valid_before_utc} until {leaf.not_valid_after_utc}, not now",
            _RENEW,
        )
    # 3. The gateway's own, and not any other certificate that lay around.
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        (uri,) = names.get_values_for_type(x509.UniformResourceIdentifier)
        identity = SpiffeId.parse(uri)
    except (x509.ExtensionNotFound, ValueError, PkiError) as error:
        raise EdgeCertificateError("the edge certificate has no single SPIFFE ID", _RENEW) from error
    if identity.trust_domain != trust_domain or identity.role is not Role.GATEWAY:
        raise EdgeCertificateError(f"the edge certificate is that of {identity}, not of a gateway", _RENEW)
    return EdgeCertificate(chain_pem, key_pem, leaf.not_valid_after_utc)


class EdgeCertificateFeed:
    """Brings an identity directory's current pair to Envoy whenever it changes."""

    def __init__(self, directory: Path, target: Path, trust_domain: str) -> None:
        """``target`` is the SDS file, written 0600."""
        self._directory = directory
        self._target = target
        self._trust_domain = trust_domain
        self._seen: tuple[bytes, bytes] | None = None

    def update(self, now: dt.datetime) -> EdgeCertificate | None:
        """Read the pair; give a new one to Envoy and return it, or return None when nothing changed.

        Raises :class:`~pki.errors.SluiceError` when the pair cannot be read or used; it is looked at
        again only after it changed again.
        """
        pair = (read_bounded(self._directory / "chain.pem"), read_secret(self._directory / "key.pem"))
        if pair == self._seen:
            return None
        self._seen = pair
        certificate = check(*pair, trust_domain=self._trust_domain, now=now)
        write_secret(self._target, msgspec.json.encode(certificate.sds()))
        return certificate
