"""A simulated election service in memory, with a clock that tests advance.

It has sessions, latches, fenced pointers and broken connections, and behaves like ZooKeeper: a session
ends when nothing was heard from it for its timeout, its latch is removed with it, and a write is carried
out only if the latch that it names exists when the write *arrives*.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sluice.runtime.ha.errors import (
    EntryMissing,
    LeadershipLost,
    OutcomeUnknown,
    PointerConflict,
    PointerExists,
    StorageUnavailable,
)
from sluice.runtime.ha.pointers import Pointer, check_pointer

Operation = Callable[[], None]


@dataclass
class Session:
    """The service's state for one candidate's session."""

    latch: int
    heard_at: float


@dataclass
class Service:
    """The simulated election service; see the module's documentation."""

    timeout: float
    now: float = 0.0
    pointers: dict[tuple[str, str], Pointer] = field(default_factory=dict)
    sessions: dict[int, Session] = field(default_factory=dict)
    written_by: list[int] = field(default_factory=list)
    """The latches whose writes were carried out, in order."""
    _latches: int = 0

    def open(self) -> int:
        """Open a new session with a latch and return the latch's number."""
        self._latches += 1
        self.sessions[self._latches] = Session(self._latches, self.now)
        return self._latches

    def pass_time(self, seconds: float) -> None:
        """Advance the clock and end sessions that have been silent for the timeout."""
        self.now += seconds
        for latch in [each for each, s in self.sessions.items() if self.now - s.heard_at >= self.timeout]:
            del self.sessions[latch]

    def hear(self, latch: int) -> bool:
        """Record a heartbeat; return whether the session still exists."""
        session = self.sessions.get(latch)
        if session is not None:
            session.heard_at = self.now
        return session is not None

    def first(self) -> int | None:
        """Return the latch that leads, or None."""
        return min(self.sessions, default=None)

    def write(self, latch: int, operation: Operation) -> None:
        """Carry out a fenced write that has arrived."""
        if not self.hear(latch):
            raise LeadershipLost(f"there is no latch {latch}")
        operation()
        self.written_by.append(latch)


class Lines:
    """How a candidate's next requests travel: ``ok``, ``no request``, ``no answer``, ``late``."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._late: list[Callable[[], None]] = []
        self.fate = "ok"

    def send(self, latch: int, operation: Operation) -> None:
        """Send a write; raises the error that the candidate sees."""

        def arrive() -> None:
            self._service.write(latch, operation)

        match self.fate:
            case "ok":
                arrive()
            case "no answer":
                arrive()
                raise OutcomeUnknown("the answer was lost")
            case "late":
                self._late.append(arrive)
                raise OutcomeUnknown("no answer yet")
            case _:
                raise OutcomeUnknown("the request was lost")

    def deliver_late(self) -> None:
        """Deliver the delayed writes now."""
        late, self._late = self._late, []
        for arrive in late:
            try:
                arrive()
            except (LeadershipLost, PointerConflict, PointerExists):
                continue  # nobody waits for it any more


class SimulatedPointers:
    """A simulated :class:`~sluice.runtime.ha.pointers.PointerStore`."""

    def __init__(self, service: Service, lines: Lines, latch: int, check: Callable[[], None]) -> None:
        self._service = service
        self._lines = lines
        self._latch = latch
        self._check = check

    async def names(self, folder: str) -> list[str]:
        self._readable()
        return sorted(name for where, name in self._service.pointers if where == folder)

    async def get(self, folder: str, name: str) -> Pointer | None:
        self._readable()
        return self._service.pointers.get((folder, name))

    async def create(self, folder: str, name: str, value: bytes) -> None:
        check_pointer(folder, name, value)

        def operation() -> None:
            if (folder, name) in self._service.pointers:
                raise PointerExists(name)
            self._service.pointers[folder, name] = Pointer(value, 0)

        self._send(operation)

    async def replace(self, folder: str, name: str, value: bytes, version: int) -> None:
        def operation() -> None:
            present = self._service.pointers.get((folder, name))
            if present is None or present.version != version:
                raise PointerConflict(name)
            self._service.pointers[folder, name] = Pointer(value, version + 1)

        self._send(operation)

    async def remove(self, folder: str, name: str) -> None:
        def operation() -> None:
            self._service.pointers.pop((folder, name), None)

        self._send(operation)

    def _send(self, operation: Operation) -> None:
        self._check()
        self._lines.send(self._latch, operation)

    def _readable(self) -> None:
        self._check()
        if self._lines.fate != "ok":
            raise OutcomeUnknown("no answer")


@dataclass
class MemoryStorage:
    """An in-memory :class:`~sluice.runtime.ha.storage.HaStorage`; ``away`` makes it unavailable."""

    entries: dict[str, bytes] = field(default_factory=dict)
    away: bool = False

    def write(self, name: str, data: bytes) -> None:
        self._there()
        assert name not in self.entries, "a name is used once"
        self.entries[name] = data

    def read(self, name: str) -> bytes:
        self._there()
        if name not in self.entries:
            raise EntryMissing(name)
        return self.entries[name]

    def put_file(self, name: str, source: object) -> None:
        self._there()
        self.entries[name] = str(source).encode()

    def chunks(self, name: str):  # type: ignore[no-untyped-def]  # noqa: ANN201  # an iterator of bytes
        yield self.read(name)

    def names(self, folder: str) -> list[str]:
        self._there()
        prefix = f"{folder}/"
        below = [name.removeprefix(prefix) for name in list(self.entries) if name.startswith(prefix)]
        return sorted({name.split("/")[0] for name in below})

    def remove(self, name: str) -> None:
        self._there()
        for each in [e for e in list(self.entries) if e == name or e.startswith(f"{name}/")]:
            self.entries.pop(each, None)  # another thread may remove it as well

    def _there(self) -> None:
        if self.away:
            raise StorageUnavailable("away")
