"""The identity of a job's process as Envoy secrets: read again when its directory changes, checked, served over SDS."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from sluice.core import PeerRefused, utc_now
from sluice.core.xds import Message, certificate_secret, trust_secret
from sluice.pki import Role
from sluice.pki.authorities import to_pem
from sluice.pki.identities import IdentityMaterial, Stamp, read_identity, stamp_of
from sluice.pki.revocation import RevokedPeers, trusted_anchors
from sluice.runtime.egress_relay.documents import certificate_name, trust_name


class AttemptSecrets:
    """The Envoy secrets of one attempt, made from the identity in ``directory``.


    Raises:
        StoreError: the identity is missing or incomplete.
        PeerRefused: it is not the identity of a process of a job.
    """

    def __init__(self, name: str, directory: Path, trust_domain: str) -> None:
        self._name = name
        self._directory = directory
        self._trust_domain = trust_domain
        self._seen: Stamp | None = None
        self._lists_seen = -1
        self._material = self._read()
        self._revoked = RevokedPeers(directory, lambda: self._material.anchors, clock=self._now)
        self.secrets = self._made()

    def refresh(self) -> bool:
        """Read what has changed; return whether :attr:`secrets` changed. Blocks. Raises the constructor's errors.

        If it raises, the secrets stay unchanged and it reads again only after another change.
        """
        version, renewed = self._revoked.look(), stamp_of(self._directory) != self._seen
        if not renewed and version == self._lists_seen:
            return False
        if renewed:
            self._material = self._read()
        self.secrets = self._made()
        return True

    def _read(self) -> IdentityMaterial:
        self._seen = stamp_of(self._directory)
        material, self._seen = read_identity(self._directory)
        material.check_valid_at(self._now())
        identity = material.spiffe_id
        if identity.trust_domain != self._trust_domain or identity.role not in {Role.DRIVER, Role.EXECUTOR}:
            raise PeerRefused(f"{identity} is not a process of a job in {self._trust_domain}")
        return material

    def _made(self) -> dict[str, Message]:
        self._lists_seen = self._revoked.look()
        anchors, lists = trusted_anchors(self._material.anchors, self._revoked.lists)
        crls = b"".join(each.pem for each in lists)
        certificate, trust = certificate_name(self._name), trust_name(self._name)
        return {
            certificate: certificate_secret(certificate, self._material.chain_pem, self._material.key_pem),
            trust: trust_secret(trust, to_pem(*anchors), crls),
        }

    @staticmethod
    def _now() -> dt.datetime:
        return utc_now()
