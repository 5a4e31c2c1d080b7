"""Where the resources for Envoy are published, by kind. No I/O."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from sluice.core.xds.resources import Resources


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
        """The resources of ``kind``; None until it is published."""
        return self._kinds.get(kind)

    def change(self) -> Coroutine[Any, Any, object]:
        """Waits for the next publication after this call that changes something, however late it is awaited."""
        return self._changed.wait()
