"""The queue of envelopes for one peer, packed into batches. No sockets, no clock."""

from __future__ import annotations

from collections import deque

from sluice.runtime.rpc import envelope as wire


class Outbox:
    """Encoded envelopes in the order in which they are sent."""

    def __init__(self) -> None:
        self._urgent: dict[type[wire.Envelope], bytes] = {}
        self._waiting: deque[bytes] = deque()
        self.size = 0
        """Number of waiting bytes, without urgent envelopes."""

    def __bool__(self) -> bool:
        return bool(self._waiting or self._urgent)

    def add(self, data: bytes) -> None:
        """Append an encoded envelope."""
        self._waiting.append(data)
        self.size += len(data)

    def add_urgent(self, envelope: wire.Envelope) -> None:
        """Add an envelope of the connection itself, which is sent before all others; at most one of each type waits."""
        self._urgent[type(envelope)] = wire.encode_envelope(envelope)

    def next_batch(self, *, urgent_only: bool = False) -> bytes:
        """Take the waiting envelopes up to the limits of one message; empty bytes when none waits."""
        waiting = self._waiting
        if not self._urgent and (urgent_only or not waiting):
            return b""
        batch = list(self._urgent.values())
        self._urgent.clear()
        size = 0
        while waiting and not urgent_only and len(batch) < wire.MAX_BATCH_ENVELOPES:
            data = waiting[0]
            if size and size + len(data) > wire.BATCH_TARGET_BYTES:
                break
            batch.append(waiting.popleft())
            size += len(data)
        self.size -= size
        return wire.join_batch(batch)

    def clear(self) -> None:
        """Drop everything that waits to be sent."""
        self._urgent.clear()
        self._waiting.clear()
        self.size = 0
