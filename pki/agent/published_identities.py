"""The agent's current identities and CRLs, and notification of changes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sluice.core import Clock
from sluice.pki.identities import IdentityMaterial
from sluice.pki.revocation import RevocationList
from sluice.pki.spiffe_id import SpiffeId


class PublishedIdentities:
    """The latest good material of each identity; belongs to one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._materials: dict[SpiffeId, IdentityMaterial] = {}
        self._lists: dict[SpiffeId, tuple[RevocationList, ...]] = {}
        self._changed = asyncio.Event()
        self.generation = 0
        """Counts every change."""

    def publish(self, material: IdentityMaterial, lists: tuple[RevocationList, ...] = ()) -> None:
        """Publish new material with the CRLs of its anchors, and wake waiting callers."""
        self._materials[material.spiffe_id] = material
        self._lists[material.spiffe_id] = lists
        self.touch()

    def touch(self) -> None:
        """Report a change that is stored elsewhere (the JWT keys)."""
        self.generation += 1
        waiting, self._changed = self._changed, asyncio.Event()
        waiting.set()

    def valid(self, identities: Sequence[SpiffeId]) -> list[IdentityMaterial]:
        """The material of ``identities`` in their order, without missing or currently invalid ones."""
        now = self._clock()
        found = [self._materials[identity] for identity in identities if identity in self._materials]
        return [
            material
            for material in found
            if material.leaf.not_valid_before_utc <= now < material.leaf.not_valid_after_utc
        ]

    def lists(self, materials: Sequence[IdentityMaterial]) -> list[RevocationList]:
        """The newest revocation list of each issuer that one of ``materials`` trusts, in a fixed order."""
        newest: dict[bytes, RevocationList] = {}
        for material in materials:
            for each in self._lists.get(material.spiffe_id, ()):
                known = newest.get(each.issuer_key)
                if known is None or each.number > known.number:
                    newest[each.issuer_key] = each
        return [newest[issuer] for issuer in sorted(newest)]

    async def change(self, seen: int) -> int:
        """Wait until there is a generation other than ``seen``; returns it."""
        while self.generation == seen:
            await self._changed.wait()
        return self.generation
