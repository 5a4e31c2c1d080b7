"""The gateway with the real nginx in Envoy's place: same home, same auth service, same upstream."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from sluice.core.files import make_private_directory, write_secret
from sluice.core.home import Home
from sluice.gateway.audit_log.access_log_reader import access_file
from sluice.gateway.config import ENVOY_NAME, GatewayConfig
from sluice.gateway.proxy.bootstrap import EnvoyPaths, upstreams_of
from sluice.gateway.proxy.nginx import CONFIGURATION, NginxPaths, render_nginx
from sluice.gateway.service import route_file
from sluice.pki.spiffe_id import Role
from tests.free_ports import free_port
from tests.integration.gateway.conftest import (
    ROUTES,
    BackgroundLoop,
    EdgeAuthority,
    Gateway,
    background,
    edge_authority,
    eventually,
    short_home,
)

__all__ = ["background", "edge_authority", "short_home"]

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def binary() -> Path:
    """The real nginx; fetched once."""
    done = subprocess.run([ROOT / "scripts" / "ensure-nginx"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def superuser() -> str:
    """The user that nginx's workers must run as if the tests run as root; otherwise empty."""
    return pwd.getpwuid(0).pw_name if os.geteuid() == 0 else ""


class Nginx:
    """One running nginx."""

    def __init__(self, binary: Path, directory: Path, port: int) -> None:
        self._log = directory / "stderr.log"
        self._argv = [str(binary), "-p", str(directory), "-c", CONFIGURATION, "-g", "daemon off;"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._argv, stdout=log, stderr=log, start_new_session=True)
        try:
            eventually(lambda: self._process.poll() is not None or _is_open(port), "nginx does not listen")
            assert self._process.poll() is None, self.log
        except BaseException:
            self.stop()
            raise

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def reload(self) -> None:
        self._process.send_signal(signal.SIGHUP)

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait(20)


class NginxGateway(Gateway):
    """A :class:`Gateway` that uses nginx."""

    def __init__(
        self, home: Home, authority: EdgeAuthority, loop: BackgroundLoop, config: GatewayConfig, binary: Path
    ) -> None:
        super().__init__(home, authority, loop, msgspec.structs.replace(config, port=free_port()))
        self._binary = binary
        self.nginx: Nginx | None = None

    def start(self) -> None:
        self.home.create()
        self.authority.issue(self.identity)
        write_secret(route_file(self.home), json.dumps(ROUTES).encode())
        self._others.append(self._loop.start(self.upstream.serve(self.home.sockets / "rest.sock")))
        self.start_auth()
        self.port = self._config.port
        directory = make_private_directory(self.home.gateway / "nginx")
        internal = self.home.identity(Role.GATEWAY, ENVOY_NAME)
        paths = NginxPaths(directory, self.identity, internal, access_file(self.home), superuser())
        make_private_directory(paths.access_log.parent)
        text = render_nginx(self._config, paths, upstreams_of(self._config, EnvoyPaths.of(self.home)))
        write_secret(directory / CONFIGURATION, text.encode())
        self.nginx = Nginx(self._binary, directory, self.port)

    def stop(self) -> None:
        if self.nginx is not None:
            self.nginx.stop()
        super().stop()


def _is_open(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@pytest.fixture(scope="session")
def running_gateway(edge_authority: EdgeAuthority, background: BackgroundLoop, binary: Path) -> Iterator[NginxGateway]:
    directory = Path(tempfile.mkdtemp(prefix="slc"))
    config = GatewayConfig(max_request_bytes=64 << 20, authorization_timeout=5.0)
    gateway = NginxGateway(Home.at(directory), edge_authority, background, config, binary)
    try:
        gateway.start()
        yield gateway
    finally:
        gateway.stop()
        shutil.rmtree(directory)


@pytest.fixture
def gateway(running_gateway: NginxGateway) -> NginxGateway:
    """The gateway that all tests share, with its record of requests to REST cleared."""
    running_gateway.reached()
    return running_gateway
