"""The metrics of a process: one Prometheus registry, served on a unix socket that only its owner can open.

There is no TCP listener: the JobManager's ``GET /v1/metrics`` gathers all processes of its home through these sockets,
and the TaskManagers of other machines over RPC, and is reached through the gateway like everything else.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import web
from prometheus_client import (
    CollectorRegistry,
    Gauge,
    GCCollector,
    Metric,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from sluice.core.files import make_private_directory
from sluice.core.home import Home
from sluice.core.http_body import BodyTooLarge, read_body

_LOG = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_EXPOSITION_BYTES = 4 << 20
"""Of one process."""
ANSWER_SECONDS = 3.0
PROCESS = "process"
"""The label that says of which process a sample is."""

disable_created_metrics()  # type: ignore[no-untyped-call]
REGISTRY = CollectorRegistry(auto_describe=False)
"""Everything that this process counts."""
ProcessCollector(registry=REGISTRY)
GCCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)
IDENTITY_NOT_AFTER = Gauge(
    "sluice_identity_not_after_seconds",
    "When the certificate that this process shows ends, in seconds since the epoch.",
    ["identity"],
    registry=REGISTRY,
)


@dataclass(frozen=True, eq=False)
class _Families(Collector):
    """Families that are there already."""

    families: tuple[Metric, ...]

    def collect(self) -> Iterator[Metric]:
        yield from self.families


@contextlib.contextmanager
def collecting(collector: Collector) -> Iterator[None]:
    """``collector`` is asked too within the block."""
    REGISTRY.register(collector)
    try:
        yield
    finally:
        REGISTRY.unregister(collector)


def render(process: str) -> str:
    """What this process, called ``process``, counts: each sample says whose it is."""
    return exposition(REGISTRY.collect(), process)


def merge(expositions: Iterable[str]) -> str:
    """Several expositions as one; what is none is left out."""
    families: list[Metric] = []
    for text in expositions:
        try:
            families += list(text_string_to_metric_families(text))
        except (ValueError, KeyError, IndexError) as error:
            _LOG.warning("metrics of a process cannot be read: %s", error)
    return exposition(families)


def exposition(families: Iterable[Metric], process: str = "") -> str:
    """``families`` as text, each sample being of ``process``.

    Those of one name are together: Prometheus refuses them apart.
    """
    named: dict[tuple[str, str], Metric] = {}
    for family in families:
        into = named.setdefault(
            (family.name, family.type), Metric(family.name, family.documentation, family.type, family.unit)
        )
        for sample in family.samples:
            labels = {PROCESS: process, **sample.labels} if process else dict(sample.labels)
            into.samples.append(sample._replace(labels=labels))
    collected = CollectorRegistry(auto_describe=False)
    collected.register(_Families(tuple(named.values())))
    return generate_latest(collected).decode()


def socket_of(home: Home, process: str) -> Path:
    """Where the process of ``home`` called ``process`` (``taskmanager/tm-1``, as in its certificate) serves them."""
    return home.metric_sockets / f"{hashlib.sha256(process.encode()).hexdigest()[:12]}.sock"


@asynccontextmanager
async def serving(home: Home, process: str, text: Callable[[], str] | None = None) -> AsyncIterator[Path]:
    """Serve the metrics of this process, called ``process``, on a socket of ``home``; yields its path."""
    shown = text or (lambda: render(process))

    async def answer(_: web.BaseRequest) -> web.Response:
        return web.Response(body=shown().encode(), headers={"content-type": CONTENT_TYPE})

    make_private_directory(home.metric_sockets)
    path = socket_of(home, process)
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.setblocking(False)
    os.fchmod(listening.fileno(), 0o600)  # before it is bound, so that there is no moment with another mode
    listening.bind(str(path))
    runner = web.ServerRunner(web.Server(answer, access_log=None), handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        yield path
    finally:
        path.unlink(missing_ok=True)
        await runner.cleanup()


async def fetch(path: Path) -> str | None:
    """What the process at a socket counts; None: it is not there any more, or does not answer."""
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path)), timeout=timeout) as session,
            session.get("http://metrics/metrics") as answer,
        ):
            data = await read_body(answer.content, MAX_EXPOSITION_BYTES)
    except (aiohttp.ClientError, OSError, TimeoutError, BodyTooLarge):
        return None
    return data.decode(errors="replace")
