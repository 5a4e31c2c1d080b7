"""What Envoy is to have: resources by kind and name, each kind with a version that follows from its content. No I/O."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from sluice.gateway.xds.api import Message, encode

_VERSION_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of one kind, encoded."""

    by_name: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))
    version: str = ""

    @classmethod
    def of(cls, messages: Mapping[str, Message]) -> Resources:
        """Encode ``messages``; equal content gives an equal version."""
        encoded = {name: encode(messages[name]) for name in sorted(messages)}
        digest = hashlib.sha256()
        for name, data in encoded.items():
            for part in (name.encode(), data):
                digest.update(len(part).to_bytes(8, "big"))
                digest.update(part)
        return cls(MappingProxyType(encoded), digest.hexdigest()[:_VERSION_CHARACTERS])


class SnapshotBoard:
    """Where those who know publish, and the streams to Envoy look. Belongs to one event loop."""

    def __init__(self) -> None:
        self._kinds: dict[str, Resources] = {}
        self._changed = asyncio.Event()

    def publish(self, kinds: Mapping[str, Resources]) -> tuple[str, ...]:
        """Replace these kinds as a whole, at once; returns those that are different now."""
        different = tuple(kind for kind, resources in kinds.items() if self._kinds.get(kind) != resources)
        if different:
            self._kinds.update({kind: kinds[kind] for kind in different})
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()
        return different

    def get(self, kind: str) -> Resources | None:
        """The resources of ``kind``; None until somebody has published it."""
        return self._kinds.get(kind)

    def change(self) -> Coroutine[Any, Any, object]:
        """Waits for the next publication after this call that changes something, however late it is awaited."""
        return self._changed.wait()
