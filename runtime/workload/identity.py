"""The X.509 identity of a job's process, as its directory has it now."""

from __future__ import annotations

from pathlib import Path

from sluice.core import Clock
from sluice.pki.agent import PublishedIdentities
from sluice.pki.identities import IdentityMaterial, Stamp, read_identity, stamp_of
from sluice.pki.revocation import RevocationList, RevokedPeers


class IdentityWatch:
    """Reads an identity directory, and puts what has changed up for those who wait."""

    def __init__(self, directory: Path, board: PublishedIdentities, clock: Clock) -> None:
        self._directory = directory
        self._board = board
        self._clock = clock
        self._stamp: Stamp | None = None
        self._material: IdentityMaterial | None = None
        self._revoked: RevokedPeers | None = None
        self._lists_seen = 0

    def read(self) -> tuple[IdentityMaterial, tuple[RevocationList, ...]] | None:
        """What is new; None: nothing. Blocks. Raises :class:`~sluice.core.errors.StoreError`."""
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
        # Clients of the Workload API know no delta lists.
        return material, tuple(each for each in self._revoked.lists if each.base is None)

    def publish(self, news: tuple[IdentityMaterial, tuple[RevocationList, ...]] | None) -> None:
        """Put it up; belongs to the event loop of the board."""
        if news is not None:
            self._board.publish(*news)
