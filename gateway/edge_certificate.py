"""The edge certificate on its way into Envoy: checked, then given as one secret that changes atomically.

Envoy could read key and chain from the identity directory itself, but between the renames of two files it
would see a pair that does not match. So the pair is read and checked here and written into one file (file
SDS); what does not pass is never given to Envoy, and the pair before it stays.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import msgspec

from gateway.errors import EdgeCertificateError
from pki.files import write_secret
from pki.identity import Role
from pki.identity_files import IdentityMaterial, Stamp, read_identity, stamp_of

SECRET_NAME = "edge"  # noqa: S105  the name of the secret in envoy/bootstrap.jsonc, not a secret


def sds_secret(chain_pem: bytes, key_pem: bytes) -> dict[str, object]:
    """The pair as Envoy reads it from a file (an SDS DiscoveryResponse)."""
    return {
        "resources": [
            {
                "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
                "name": SECRET_NAME,
                "tls_certificate": {
                    "certificate_chain": {"inline_string": chain_pem.decode("ascii")},
                    "private_key": {"inline_string": key_pem.decode("ascii")},
                },
            }
        ]
    }


class EdgeCertificateFeed:
    """Brings an identity directory's current pair to Envoy whenever it changes."""

    def __init__(self, directory: Path, target: Path, trust_domain: str) -> None:
        """``target`` is the SDS file, written 0600."""
        self._directory = directory
        self._target = target
        self._trust_domain = trust_domain
        self._seen: Stamp | None = None

    def update(self, now: dt.datetime) -> IdentityMaterial | None:
        """Read the pair; give a new one to Envoy and return it, or return None when nothing changed.

        Raises :class:`~pki.errors.SluiceError` when the pair cannot be read or used; it is looked at
        again only after it changed again.
        """
        stamp = stamp_of(self._directory)
        if stamp == self._seen:
            return None
        self._seen = stamp
        # 1. Whole, and key and leaf of the same generation. 2. Valid now.
        material, self._seen = read_identity(self._directory)
        material.check_valid_at(now)
        # 3. The gateway's own, and not any other certificate that lay around.
        identity = material.spiffe_id
        if identity.trust_domain != self._trust_domain or identity.role is not Role.GATEWAY:
            raise EdgeCertificateError(
                f"the edge certificate is that of {identity}, not of a gateway in {self._trust_domain}",
                "issue it again: restart the cluster, or see `sluice pki issue --help`",
            )
        secret = sds_secret(material.chain_pem, material.key_pem)
        write_secret(self._target, msgspec.json.encode(secret))
        return material
