"""The authorities that are trusted now: one of each kind, or two during a rotation, the signing one first.

``<pki>/trust/{internal,edge}.pem`` publishes them at stable paths whose content follows a rotation.
"""

from __future__ import annotations

from pathlib import Path

from cryptography import x509

from sluice.core import StoreError, locked, make_private_directory, read_bounded, remove_leftovers, write_public
from sluice.pki.authorities.bundle_files import bundle_file
from sluice.pki.authorities.rotation_store import read_rotation, rotation_directory
from sluice.pki.authorities.signing import to_pem
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.x509 import ISSUING, AuthorityKind, key_id

READ_ATTEMPTS = 5
"""How often the authorities are read again when a rotation changes them meanwhile."""


class TrustStore:
    """The trust anchors of each side, below one ``pki`` directory."""

    def __init__(self, pki: Path) -> None:
        self._pki = pki
        self._authorities = AuthorityStore(pki)
        self._others = AuthorityStore(rotation_directory(pki))

    def anchors(self, kind: AuthorityKind) -> tuple[x509.Certificate, ...]:
        """The authorities of ``kind`` that are trusted; the first one signs.

        Raises:
            StoreError: there is none, or the files contradict the stored rotation.
        """
        for _ in range(READ_ATTEMPTS):
            rotation = read_rotation(self._pki)
            signing = self._authorities.certificate(kind)
            if rotation is None or kind not in rotation.generations:
                return (signing,)
            both = rotation.generations[kind]
            if rotation.keep is not None:
                if key_id(signing) == both.of(rotation.keep):
                    return (signing,)
                continue
            try:
                other = self._others.certificate(kind)
            except StoreError:
                if read_rotation(self._pki) == rotation:
                    raise
                continue
            # Between the two reads they may have changed places.
            if {key_id(signing), key_id(other)} == {both.old, both.new}:
                return signing, other
        raise StoreError(
            f"{self._authorities.directory(kind)} and {rotation_directory(self._pki)} do not fit together",
            "restore both from one copy",
        )

    def pem(self, kind: AuthorityKind) -> bytes:
        """The trusted authorities of ``kind`` as PEM."""
        return to_pem(*self.anchors(kind))

    def publish(self) -> list[Path]:
        """Update the published files; returns those that changed."""
        changed = []
        for kind in ISSUING:
            if not self._authorities.exists(kind):
                continue
            path = bundle_file(self._pki, kind)
            with locked(make_private_directory(path.parent)):
                remove_leftovers(path.parent, path.name)
                content = self.pem(kind)  # with the lock: the last writer has also read last
                if not path.exists() or read_bounded(path) != content:
                    write_public(path, content)
                    changed.append(path)
        return changed
