"""The contract between the JobManager and the election services.

A process asks for leadership and gets a :class:`Leadership`, which is valid until it is lost or resigned. A lost
leadership never comes back; the next one has a higher epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from sluice.runtime.ha.errors import EntryDamaged
from sluice.runtime.ha.pointers import PointerStore

MAX_INFORMATION_BYTES = 16 << 10


class LeaderInformation(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses that the leader publishes. They are not authenticated: only its certificate proves who it is.

    Attributes:
        name: process name in its certificate.
        epoch: epoch of its leadership; a later leadership has a higher epoch.
        origin: ID of the home it runs in (see :func:`sluice.runtime.ha.origin.origin_of`).
        rpc: host and port of its RPC listener.
        rest: path of its REST socket, for processes of the same home.
        rest_tls: host and port at which it serves REST over mutual TLS, if it does.
    """

    name: str
    epoch: int
    origin: str
    rpc: tuple[str, int]
    rest: str
    rest_tls: tuple[str, int] | None = None

    def encode(self) -> bytes:
        """Encode as JSON for the election service."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> LeaderInformation:
        """Decode :meth:`encode`'s output; raises :class:`EntryDamaged` when ``data`` is something else."""
        try:
            return msgspec.json.decode(data[:MAX_INFORMATION_BYTES], type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise EntryDamaged(f"the leader's address cannot be read: {error}") from error


class Leadership(Protocol):
    """One term of one leader."""

    @property
    def epoch(self) -> int:
        """The number of this term; higher than that of every earlier term."""
        ...

    @property
    def granted_at(self) -> float:
        """When the term began, in monotonic seconds."""
        ...

    @property
    def pointers(self) -> PointerStore:
        """The pointer store; its writes are fenced by this leadership."""
        ...

    def check(self) -> None:
        """Return if this process certainly leads; raise ``LeadershipLost`` if it does not or cannot know."""
        ...

    async def lost(self) -> str:
        """Wait until the leadership is lost; return the reason."""
        ...

    async def publish(self, information: LeaderInformation) -> None:
        """Publish the leader's address."""
        ...

    async def resign(self) -> None:
        """Give up the leadership if it is still held; no write follows."""
        ...


class LeaderElection(Protocol):
    """Elects one leader among the JobManagers of a cluster and returns its address."""

    @property
    def across_machines(self) -> bool:
        """Whether a JobManager on another machine can lead."""
        ...

    async def elect(self, standing_by: Callable[[], None]) -> Leadership:
        """Wait until this process leads. ``standing_by`` is called as soon as another process is known to lead."""
        ...

    async def leader(self) -> LeaderInformation | None:
        """The current leader, or None when it is unknown."""
        ...

    async def standbys(self) -> tuple[str, ...] | None:
        """Names of the candidates that do not lead, or None when unknown. The names are not authenticated."""
        ...

    async def close(self) -> None:
        """Leave the election."""
        ...
