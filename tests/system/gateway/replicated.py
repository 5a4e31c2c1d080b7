"""Two auth services and two Envoys of one home, each a process of its own that is started again when it ends."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
from aiohttp import ClientSession, UnixConnector

from sluice.core.files import write_secret
from sluice.core.home import Home
from sluice.gateway.config import ENVOY_NAME, GatewayConfig, auth_names, envoy_names
from sluice.gateway.proxy.bootstrap import EnvoyPaths
from sluice.gateway.service import auth_announcement, envoy_announcement, route_file
from tests.integration.gateway.conftest import ROUTES, TRUST_DOMAIN, BackgroundLoop, EdgeAuthority, Gateway, eventually
from tests.waiting import wait_until

START_SECONDS = 90.0
PACE_SECONDS = 0.01
"""Between two requests of a client, so that a process that starts beside them gets its share of the machine."""
RUN = """

import asyncio, sys
from pathlib import Path
import msgspec
from sluice.core.home import Home
from sluice.gateway.config import GatewayConfig
from sluice.gateway.service import run_auth, run_envoy

role, name, home, domain, config = sys.argv[1:]
run = {"auth": run_auth, "envoy": run_envoy}[role]
asyncio.run(run(Home.at(Path(home)), msgspec.json.decode(config, type=GatewayConfig), domain, name))
"""


class Member:
    """A process that runs an auth service or an Envoy."""

    def __init__(self, role: str, name: str, home: Home, config: GatewayConfig, ready: Path) -> None:
        self.name = name
        self._argv = [role, name, str(home.root), TRUST_DOMAIN, msgspec.json.encode(config).decode()]
        self._log = home.logs / f"{name}.log"
        # They are started often, so what is compiled is kept, whatever the environment of the tests says.
        self._environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(home.run / "compiled")}
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self.ready = ready
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.ready.unlink(missing_ok=True)
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", RUN, *self._argv], stdout=log, stderr=log, env=self._environment
            )
        process = self.process
        wait_until(
            lambda: self.ready.exists() or process.poll() is not None, f"{self.name} does not start", START_SECONDS
        )
        assert process.poll() is None, self._log.read_text()[-3000:]

    def kill(self) -> None:
        """Kill with ``kill -9``, and wait for the end; of an Envoy member, kill the proxy itself."""
        assert self.process is not None
        children = psutil.Process(self.process.pid).children()
        proxies = [each for each in children if "envoy" in each.name()]
        for each in proxies or [psutil.Process(self.process.pid)]:
            os.kill(each.pid, signal.SIGKILL)
        self.process.wait()

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspend the process within the block, so that it hangs."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait()


class ReplicatedGateway(Gateway):
    """A gateway with two Envoys and two auth services.

    Clients connect to one port, and the kernel picks an Envoy. Each Envoy asks either auth service.
    """

    def __init__(self, home: Home, authority: EdgeAuthority, loop: BackgroundLoop, config: GatewayConfig) -> None:
        super().__init__(home, authority, loop, config)
        self.port = config.port
        self.auths = [
            Member("auth", name, home, config, auth_announcement(home, config, number))
            for number, name in enumerate(auth_names(config), 1)
        ]
        self.envoys = [
            Member("envoy", name, home, config, envoy_announcement(home, name)) for name in envoy_names(config)
        ]

    def start(self) -> None:
        self.home.create()
        self.authority.issue(self.identity)
        write_secret(route_file(self.home), json.dumps(ROUTES).encode())
        self._others.append(self._loop.start(self.upstream.serve(self.home.sockets / "rest.sock")))
        for member in (*self.auths, *self.envoys):
            member.start()

    def stop(self) -> None:
        for member in (*self.envoys, *self.auths):
            member.stop()
        super().stop()

    def open_connections(self, name: str = ENVOY_NAME) -> int:
        """How many connections of clients Envoy ``name`` has."""
        return int(self._loop.start_value(_ask_connections(EnvoyPaths.of(self.home, name).admin_socket)))


async def _ask_connections(socket: Path) -> int:
    query = "http://admin/stats?format=json&filter=^http.edge.downstream_cx_active$"
    async with ClientSession(connector=UnixConnector(str(socket))) as session, session.get(query) as answer:
        return sum(each.get("value", 0) for each in json.loads(await answer.read())["stats"])


class Load:
    """Clients that send requests all the time.

    Counts refused requests apart from broken connections.
    """

    def __init__(self, gateway: Gateway, requests: list[Callable[[], bytes]], *, per_connection: int = 40) -> None:
        self._gateway = gateway
        self._requests = requests
        self._per_connection = per_connection
        self._context: ssl.SSLContext = gateway.tls()
        self._stop = threading.Event()
        self._mutex = threading.Lock()
        self.answered = 0
        self.refused: list[str] = []
        self.broken: list[str] = []
        self.slowest = 0.0

    @contextlib.contextmanager
    def running(self) -> Iterator[Load]:
        threads = [threading.Thread(target=self._run, args=(each,)) for each in self._requests]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()

    def more(self, requests: int) -> None:
        """Wait until ``requests`` more requests were answered."""
        goal = self.answered + requests
        eventually(lambda: self.answered >= goal or self.refused, "the clients stand still")

    def _run(self, request: Callable[[], bytes]) -> None:
        while not self._stop.is_set():
            try:
                with self._gateway.connect(self._context) as connection:
                    for _ in range(self._per_connection):
                        if self._stop.is_set() or self._ask(connection, request()):
                            break
            except (OSError, http.client.HTTPException) as error:
                with self._mutex:
                    self.broken.append(repr(error))

    def _ask(self, connection: ssl.SSLSocket, request: bytes) -> bool:
        """Send a request; return whether the connection ends."""
        began = time.monotonic()
        connection.sendall(request)
        reply = self._gateway.read(connection)
        with self._mutex:
            self.slowest = max(self.slowest, time.monotonic() - began)
            if reply.status not in {200, 303}:
                self.refused.append(f"{reply.status} {reply.body[:200]!r}")
            self.answered += 1
        return reply.headers["connection"] == "close" or self._stop.wait(PACE_SECONDS)
