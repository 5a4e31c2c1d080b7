"""Holds the resources for Envoy by kind, and notifies streams of changes. No I/O."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from sluice.core.xds.resources import Resources


class SnapshotBoard:
    """The current resources: sources publish them, and the streams to Envoy read them. Belongs to one event loop."""

    def __init__(self) -> None:
        self._kinds: dict[str, Resources] = {}
        self._changed = asyncio.Event()

    def publish(self, kinds: Mapping[str, Resources]) -> tuple[str, ...]:
        """Replace these kinds as a whole, at once; returns the kinds that changed."""
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
        """Waits for the next change that is published after this call, however late it is awaited."""
        return self._changed.wait()
