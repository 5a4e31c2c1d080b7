"""What waits to be sent to one peer, packed into batches. No sockets, no clock."""

from __future__ import annotations

from collections import deque

from sluice.runtime.rpc import envelope as wire


class Outbox:
    """Encoded envelopes in the order in which they go out."""

    def __init__(self) -> None:
        self._urgent: dict[type[wire.Envelope], bytes] = {}
        self._waiting: deque[bytes] = deque()
        self.size = 0
        """Bytes that wait."""

    def __bool__(self) -> bool:
        return bool(self._waiting or self._urgent)

    def add(self, data: bytes) -> None:
        """Append an encoded envelope."""
        self._waiting.append(data)
        self.size += len(data)

    def add_urgent(self, envelope: wire.Envelope) -> None:
        """Send an envelope of the connection itself before all others, and one of each kind."""
        self._urgent[type(envelope)] = wire.encode_envelope(envelope)

    def next_batch(self, *, urgent_only: bool = False) -> bytes:
        """Whatever waits, up to the bounds of one message: under load many envelopes share one. Empty: nothing."""
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
