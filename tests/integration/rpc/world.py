"""Identities of one PKI, and RPC endpoints that talk over real mutual TLS sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

import msgspec

from sluice.core.errors import SluiceError
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.connections import ConnectionLog
from sluice.pki.tls.contexts import TlsIdentity
from sluice.runtime.rpc import (
    FencedRpcEndpoint,
    RemotePeer,
    RpcEndpoint,
    RpcService,
    StreamTimeouts,
    remotable,
    rpc,
)
from tests.hostile import TRUST_DOMAIN, TestPki

JOB = "0123456789abcdef0123456789abcdef"
OTHER_JOB = "f" * 32
TIMEOUTS = StreamTimeouts(hello=5.0, ping_interval=5.0, ping_timeout=20.0)


@remotable
class SlotBusy(SluiceError):
    """An error type that the tests send over RPC."""


class Sample(msgspec.Struct, frozen=True):
    """A structured value."""

    name: str
    numbers: tuple[int, ...]


class EchoGateway(Protocol):
    """The calls that the serving endpoint offers."""

    @rpc(allow={Role.TASKMANAGER, Role.DRIVER, Role.JOBMANAGER})
    async def echo(self, sample: Sample) -> Sample: ...

    @rpc(allow={Role.TASKMANAGER})
    async def add(self, left: int, right: int = 1) -> int: ...

    @rpc(allow={Role.TASKMANAGER})
    async def record(self, number: int) -> int: ...

    @rpc(allow={Role.TASKMANAGER}, oneway=True)
    async def note(self, number: int) -> None: ...

    @rpc(allow={Role.TASKMANAGER})
    async def notes(self) -> tuple[int, ...]: ...

    @rpc(allow={Role.TASKMANAGER})
    async def fail_typed(self) -> None: ...

    @rpc(allow={Role.TASKMANAGER})
    async def fail_untyped(self) -> None: ...

    @rpc(allow={Role.TASKMANAGER}, timeout=0.2)
    async def hang_briefly(self) -> None: ...

    @rpc(allow={Role.TASKMANAGER}, timeout=60.0)
    async def hang(self) -> None: ...

    @rpc(allow={Role.TASKMANAGER}, timeout=60.0)
    async def blob(self, data: bytes) -> bytes: ...

    @rpc(allow={Role.JOBMANAGER})
    async def with_jobmanager_api(self) -> None: ...

    @rpc(allow={Role.DRIVER}, own_job=True)
    async def for_own_driver(self) -> str: ...

    @rpc(allow={Role.TASKMANAGER})
    async def call_me_back(self, number: int) -> int: ...

    @rpc(allow={Role.TASKMANAGER})
    async def who_am_i(self) -> str: ...


class CallbackGateway(Protocol):
    """The calls that the connecting side offers over the stream it opened."""

    @rpc(allow={Role.JOBMANAGER})
    async def double(self, number: int) -> int: ...


class Echo(RpcEndpoint):
    """Serves :class:`EchoGateway` for job :data:`JOB`."""

    def __init__(self, name: str = "echo") -> None:
        super().__init__(name, EchoGateway, job_id=JOB)
        self.seen: list[int] = []
        self.hanging = asyncio.Event()
        self.hang_cancelled = asyncio.Event()

    async def echo(self, sample: Sample) -> Sample:
        return sample

    async def add(self, left: int, right: int = 1) -> int:
        return left + right

    async def record(self, number: int) -> int:
        self.seen.append(number)
        return number

    async def note(self, number: int) -> None:
        self.seen.append(number)

    async def notes(self) -> tuple[int, ...]:
        return tuple(self.seen)

    async def fail_typed(self) -> None:
        raise SlotBusy("slot 3 is busy", "ask for another")

    async def fail_untyped(self) -> None:
        raise KeyError("nothing of that name")

    async def hang_briefly(self) -> None:
        return await self.hang()

    async def hang(self) -> None:
        async def forever() -> None:
            self.hanging.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.hang_cancelled.set()

        return self.deferred(forever())

    async def blob(self, data: bytes) -> bytes:
        return data

    async def with_jobmanager_api(self) -> None:
        raise AssertionError("must not be reached")

    async def for_own_driver(self) -> str:
        return str(self.caller.identity)

    async def call_me_back(self, number: int) -> int:
        peer = self.caller.peer
        assert peer is not None
        return self.deferred(peer.gateway(CallbackGateway, "callback").double(number))

    async def who_am_i(self) -> str:
        return str(self.caller.identity)


class Callback(RpcEndpoint):
    """Serves :class:`CallbackGateway`."""

    def __init__(self) -> None:
        super().__init__("callback", CallbackGateway)

    async def double(self, number: int) -> int:
        assert self.caller.identity.role is Role.JOBMANAGER
        return 2 * number


class FencedEcho(Echo, FencedRpcEndpoint):
    """An :class:`Echo` endpoint with fencing."""


class World:
    """Services with identities of one PKI, all closed at the end of the test."""

    def __init__(self, root: Path) -> None:
        self.pki = TestPki(root)
        self._services: list[RpcService] = []

    def service(
        self,
        identity: SpiffeId | TlsIdentity,
        timeouts: StreamTimeouts = TIMEOUTS,
        connections: ConnectionLog | None = None,
    ) -> RpcService:
        """Create an RPC service with this identity."""
        tls_identity = self.pki.identity(identity) if isinstance(identity, SpiffeId) else identity
        service = RpcService(tls_identity, timeouts=timeouts, connections=connections)
        self._services.append(service)
        return service

    async def close(self) -> None:
        """Close all services."""
        for service in reversed(self._services):
            await service.close()


def jobmanager(name: str = "jm") -> SpiffeId:
    return SpiffeId.process(TRUST_DOMAIN, Role.JOBMANAGER, name)


def taskmanager(name: str = "tm-1") -> SpiffeId:
    return SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, name)


class Pair:
    """A JobManager with an :class:`Echo`, and a TaskManager connected to it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.echo = Echo()
        self.server = world.service(jobmanager())
        self.client = world.service(taskmanager())
        self.address = ("", 0)
        self.peer: RemotePeer

    async def start(self) -> None:
        await self.server.start(self.echo)
        self.address = await self.server.listen("127.0.0.1", 0)
        self.peer = await self.client.connect(*self.address)

    @property
    def gateway(self) -> EchoGateway:
        return self.peer.gateway(EchoGateway, "echo")
