"""What waits to be sent to one peer, and what was sent and may have to be sent again. No sockets, no clock.

Numbered envelopes (calls, answers, and what else must arrive exactly once) are counted from the begin of a session, on
both ends alike, without a number on the wire: a stream keeps their order. When a session may outlive its stream, they
are retained until the peer says that it has received them; on the next stream each end begins where the other stopped,
so nothing is lost and nothing arrives twice.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from sluice.runtime.rpc import envelope as wire
from sluice.runtime.rpc.errors import ProtocolViolation


class Outbox:
    """Encoded envelopes in the order in which they go out."""

    def __init__(self) -> None:
        self._urgent: dict[type[wire.Envelope], bytes] = {}
        self._waiting: deque[bytes] = deque()
        self._retained: deque[bytes] | None = None
        self._sent = 0
        self.size = 0
        """Bytes that are kept, waiting or retained."""

    def __bool__(self) -> bool:
        return bool(self._waiting or self._urgent)

    @property
    def sent(self) -> int:
        """Numbered envelopes sent since the begin of the session."""
        return self._sent

    def retain(self) -> None:
        """From now on keep what is sent until it is acknowledged; to be called before anything numbered is sent."""
        if self._retained is None:
            self._retained = deque()

    def add(self, data: bytes) -> None:
        """Append a numbered envelope."""
        self._waiting.append(data)
        self.size += len(data)

    def add_urgent(self, envelope: wire.Envelope) -> None:
        """Keep an envelope that concerns this stream alone; it goes before all numbered ones, one of each kind."""
        self._urgent[type(envelope)] = wire.encode_envelope(envelope)

    def drop_urgent(self) -> None:
        """The stream is gone, and what concerned it."""
        self._urgent.clear()

    def next_batch(self, *, urgent_only: bool = False) -> bytes:
        """Whatever waits, up to the bounds of one message: under load many envelopes share one. Empty: nothing."""
        waiting, retained = self._waiting, self._retained
        if not self._urgent and (urgent_only or not waiting):
            return b""
        batch = list(self._urgent.values())
        self._urgent.clear()
        size = 0
        before = len(batch)
        while waiting and not urgent_only and len(batch) < wire.MAX_BATCH_ENVELOPES:
            data = waiting[0]
            if size and size + len(data) > wire.BATCH_TARGET_BYTES:
                break
            batch.append(waiting.popleft())
            size += len(data)
        self._sent += len(batch) - before
        if retained is None:
            self.size -= size
        else:
            retained.extend(islice(batch, before, None))
        return wire.join_batch(batch)

    def acknowledged(self, received: int) -> None:
        """The peer has received so many in all; raises :class:`ProtocolViolation` when that cannot be."""
        retained = self._retained
        kept = 0 if retained is None else len(retained)
        if not self._sent - kept <= received <= self._sent:
            raise ProtocolViolation(
                f"it acknowledges {received} envelopes, between {self._sent - kept} and {self._sent}"
            )
        if retained is not None:
            for _ in range(received - (self._sent - kept)):
                self.size -= len(retained.popleft())

    def rewind(self, received: int) -> None:
        """The next stream begins: what the peer has not received is sent again, before what waits."""
        self.acknowledged(received)
        self._urgent.clear()
        if self._retained is not None:
            self._waiting.extendleft(reversed(self._retained))
            self._retained.clear()
            self._sent = received

    def clear(self) -> None:
        """Nothing will be sent any more."""
        self._urgent.clear()
        self._waiting.clear()
        if self._retained is not None:
            self._retained.clear()
        self.size = 0
