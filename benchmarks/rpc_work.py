"""Server and client processes of :mod:`benchmarks.rpc`: the same call with the same content, ours and with grpc.aio.

``serve`` prints its port and serves until its standard input ends. ``drive`` reads loads from its standard input, one
JSON object per line, and answers each with its measurements.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
import msgspec

from benchmarks.worker import next_order, say
from sluice.pki import Role
from sluice.pki.tls import TlsIdentity
from sluice.runtime.rpc import RpcEndpoint, RpcService, rpc

METHOD = "/benchmark.Beat/Beat"
TIMEOUT_SECONDS = 30.0


class Beat(msgspec.Struct, frozen=True, array_like=True):
    """A message of the size of a heartbeat of a TaskManager with four slots."""

    name: str
    number: int
    slots: tuple[tuple[int, str, str, str], ...]


BEAT = Beat("taskmanager-17", 4711, tuple((slot, "ACTIVE", f"{slot:032x}", "f" * 32) for slot in range(4)))


class BeatGateway(Protocol):
    """The interface with the measured call."""

    @rpc(allow={Role.TASKMANAGER}, timeout=TIMEOUT_SECONDS)
    async def beat(self, beat: Beat) -> int:
        """Return the number of ``beat``."""
        ...


class BeatEndpoint(RpcEndpoint):
    """Serves :class:`BeatGateway`."""

    def __init__(self) -> None:
        super().__init__("beat", BeatGateway)

    async def beat(self, beat: Beat) -> int:
        """See :class:`BeatGateway`."""
        return beat.number


Ask = Callable[[], Awaitable[int]]


async def serve_sluice(directory: Path) -> None:
    """Serve with ``sluice.runtime.rpc``."""
    service = RpcService(TlsIdentity(directory))
    await service.start(BeatEndpoint())
    _, port = await service.listen("127.0.0.1", 0)
    await _until_told(port)
    await service.close()


async def serve_grpc(directory: Path) -> None:
    """Serve with ``grpc.aio``; the same content is decoded into the same type."""
    decode, encode = msgspec.msgpack.Decoder(Beat).decode, msgspec.msgpack.Encoder().encode

    async def beat(request: Beat, context: object) -> int:
        del context
        return request.number

    handler = grpc.unary_unary_rpc_method_handler(beat, request_deserializer=decode, response_serializer=encode)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("benchmark.Beat", {"Beat": handler}),))
    key, chain, anchors = _pem(directory)
    credentials = grpc.ssl_server_credentials([(key, chain)], root_certificates=anchors, require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    await _until_told(port)
    await server.stop(None)


@asynccontextmanager
async def sluice_peers(port: int, directories: Sequence[Path]) -> AsyncIterator[list[Ask]]:
    """Open one connection for each identity."""
    services = [RpcService(TlsIdentity(directory)) for directory in directories]
    peers = [await service.connect("127.0.0.1", port) for service in services]

    def ask_of(gateway: BeatGateway) -> Ask:
        return lambda: gateway.beat(BEAT)

    yield [ask_of(peer.gateway(BeatGateway, "beat")) for peer in peers]
    for service in services:
        await service.close()


@asynccontextmanager
async def grpc_peers(port: int, directories: Sequence[Path]) -> AsyncIterator[list[Ask]]:
    """Open one channel with its own connection for each identity."""
    decode, encode = msgspec.msgpack.Decoder(int).decode, msgspec.msgpack.Encoder().encode
    channels = []
    for directory in directories:
        key, chain, anchors = _pem(directory)
        credentials = grpc.ssl_channel_credentials(anchors, key, chain)
        options = [("grpc.ssl_target_name_override", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
        channels.append(grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options))

    def ask_of(channel: grpc.aio.Channel) -> Ask:
        call = channel.unary_unary(METHOD, request_serializer=encode, response_deserializer=decode)
        return lambda: call(BEAT, timeout=TIMEOUT_SECONDS)

    await asyncio.gather(*(channel.channel_ready() for channel in channels))
    yield [ask_of(channel) for channel in channels]
    for channel in channels:
        await channel.close()


async def measure(asks: Sequence[Ask], callers: int, seconds: float) -> dict[str, float]:
    """Run ``callers`` callers, spread over ``asks``. Each sends its next call as soon as one is answered."""
    latencies: list[float] = []
    clock = time.perf_counter
    deadline = clock() + seconds

    async def caller(ask: Ask) -> None:
        while (begun := clock()) < deadline:
            if await ask() != BEAT.number:
                raise SystemExit("a wrong answer")
            latencies.append(clock() - begun)

    started, cpu = clock(), time.process_time()
    await asyncio.gather(*(caller(asks[number % len(asks)]) for number in range(callers)))
    elapsed = clock() - started
    latencies.sort()
    return {
        "asks_per_s": len(latencies) / elapsed,
        "p50_ms": 1000 * latencies[len(latencies) // 2],
        "p99_ms": 1000 * latencies[len(latencies) * 99 // 100],
        "cpu_us_per_ask": 1e6 * (time.process_time() - cpu) / len(latencies),
    }


async def drive(kind: str, port: int, directories: Sequence[Path]) -> None:
    """Run the loads that standard input orders, until it ends."""
    connected = sluice_peers if kind == "sluice" else grpc_peers
    async with connected(port, directories) as asks:
        while load := await next_order():
            say(await measure(asks[: load["peers"]], load["callers"], load["seconds"]))


def _pem(directory: Path) -> tuple[bytes, bytes, bytes]:
    return tuple((directory / name).read_bytes() for name in ("key.pem", "chain.pem", "ca.pem"))  # type: ignore[return-value]


async def _until_told(port: int) -> None:
    say({"port": port})
    await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    """Run ``serve|drive sluice|grpc [PORT] DIRECTORY…``."""
    verb, kind, *rest = sys.argv[1:]
    if verb == "serve":
        work = (serve_sluice if kind == "sluice" else serve_grpc)(Path(rest[0]))
    else:
        work = drive(kind, int(rest[0]), [Path(each) for each in rest[1:]])
    asyncio.run(work)


if __name__ == "__main__":
    main()
