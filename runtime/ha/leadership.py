"""Who leads: the contract between the JobManager and the services that elect.

A process asks for leadership and gets a :class:`Leadership`, which is good until it is lost or given back. A
leadership that was lost never comes back; the next one has a higher epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from sluice.runtime.ha.errors import EntryDamaged
from sluice.runtime.ha.pointers import PointerStore

MAX_INFORMATION_BYTES = 16 << 10


class LeaderInformation(msgspec.Struct, frozen=True, kw_only=True):
    """What the leader says of itself, for those who look for it. It proves nothing: certificates do.

    Attributes:
        name: process name in its certificate.
        epoch: of its leadership; the higher one is the later one.
        origin: the home it runs in (see :func:`sluice.runtime.ha.home_id.origin_of`).
        rpc: its RPC listener.
        rest: path of its REST socket, for processes of the same home.
        rest_tls: where it serves REST over mutual TLS, if it does.
    """

    name: str
    epoch: int
    origin: str
    rpc: tuple[str, int]
    rest: str
    rest_tls: tuple[str, int] | None = None

    def encode(self) -> bytes:
        """Encode it for the election service."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> LeaderInformation:
        """Raises :class:`EntryDamaged` when ``data`` is something else."""
        try:
            return msgspec.json.decode(data[:MAX_INFORMATION_BYTES], type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise EntryDamaged(f"the leader's address cannot be read: {error}") from error


class Leadership(Protocol):
    """One term of one leader."""

    @property
    def epoch(self) -> int:
        """Higher than that of every term before."""
        ...

    @property
    def granted_at(self) -> float:
        """When it began, by the monotonic clock."""
        ...

    @property
    def pointers(self) -> PointerStore:
        """Written under this leadership."""
        ...

    def check(self) -> None:
        """Return while this process surely leads; raise ``LeadershipLost`` when it does not, or cannot know."""
        ...

    async def lost(self) -> str:
        """Wait until it is lost; returns why."""
        ...

    async def publish(self, information: LeaderInformation) -> None:
        """Let others know where the leader is."""
        ...

    async def resign(self) -> None:
        """Give it back, or leave it lost; nothing is written after that."""
        ...


class LeaderElection(Protocol):
    """Elects one leader among the JobManagers of a cluster, and tells who it is."""

    @property
    def across_machines(self) -> bool:
        """Whether a JobManager of another machine could lead."""
        ...

    async def elect(self, standing_by: Callable[[], None]) -> Leadership:
        """Wait until this process leads; ``standing_by`` is called as soon as another one is known to."""
        ...

    async def leader(self) -> LeaderInformation | None:
        """The leader; None when none is known."""
        ...

    async def standbys(self) -> tuple[str, ...] | None:
        """Names of those who take part and do not lead, None where that is not known. They prove nothing."""
        ...

    async def close(self) -> None:
        """Leave the election."""
        ...
