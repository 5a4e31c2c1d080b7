"""Follows the X.509 identity in the directory of a job's process."""

from __future__ import annotations

from pathlib import Path

from sluice.core import Clock
from sluice.pki.agent import PublishedIdentities
from sluice.pki.identities import IdentityMaterial, Stamp, read_identity, stamp_of
from sluice.pki.revocation import RevocationList, RevokedPeers


class IdentityWatch:
    """Reads an identity directory, and publishes changes to the clients that wait for them."""

    def __init__(self, directory: Path, board: PublishedIdentities, clock: Clock) -> None:
        self._directory = directory
        self._board = board
        self._clock = clock
        self._stamp: Stamp | None = None
        self._material: IdentityMaterial | None = None
        self._revoked: RevokedPeers | None = None
        self._lists_seen = 0

    def read(self) -> tuple[IdentityMaterial, tuple[RevocationList, ...]] | None:
        """Identity and CRLs if they changed, else None. Blocks; raises :class:`~sluice.core.errors.StoreError`."""
        stamp = stamp_of(self._directory)
        changed = stamp != self._stamp
        if changed or self._material is None:
            self._material, self._stamp = read_identity(self._directory)
        material = self._material
        if self._revoked is None:
            self._revoked = RevokedPeers(
                self._directory, lambda: (self._material or material).anchors, clock=self._clock, pace_seconds=0
            )
        version = self._revoked.look()
        if not changed and version == self._lists_seen:
            return None
        self._lists_seen = version
        # Clients of the Workload API do not support delta CRLs.
        return material, tuple(each for each in self._revoked.lists if each.base is None)

    def publish(self, news: tuple[IdentityMaterial, tuple[RevocationList, ...]] | None) -> None:
        """Publish the result of :meth:`read`. Call it in the board's event loop."""
        if news is not None:
            self._board.publish(*news)
