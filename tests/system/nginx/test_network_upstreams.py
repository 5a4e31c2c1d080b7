"""nginx's connections to its upstreams over mutual TLS: REST and the auth service on other machines."""

from __future__ import annotations

import concurrent.futures
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from sluice.core.files import make_private_directory, write_public, write_secret
from sluice.core.home import Home
from sluice.gateway.audit_log.access_log_reader import access_file
from sluice.gateway.config import AUTH_NAME, ENVOY_NAME, GatewayConfig
from sluice.gateway.principal import AccessRole
from sluice.gateway.proxy.bootstrap import EnvoyPaths, upstreams_of
from sluice.gateway.proxy.nginx import (
    CONFIGURATION,
    TRUST_FILE,
    NginxPaths,
    render_nginx,
)
from sluice.gateway.service import route_file, run_auth
from sluice.pki.authorities.openssl_anchors import trusted_pem
from sluice.pki.config import PkiConfig
from sluice.pki.identities.directory import read_identity, write_identity
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.spiffe_id import Role, SpiffeId
from tests.free_ports import free_port
from tests.integration.gateway.conftest import (
    ROUTES,
    TRUST_DOMAIN,
    BackgroundLoop,
    EdgeAuthority,
    Gateway,
    eventually,
)
from tests.integration.gateway.network import LOOPBACK, Rest
from tests.outside import OutsideAuthority
from tests.system.nginx.conftest import Nginx, superuser

HOST = "localhost"
GATEWAY = SpiffeId.process(TRUST_DOMAIN, Role.GATEWAY, ENVOY_NAME)
JOBMANAGER = SpiffeId.process(TRUST_DOMAIN, Role.JOBMANAGER, "jm-1")


class NetworkGateway(Gateway):
    """nginx, auth service and REST, each with its own identity, which the test chooses."""

    def __init__(self, home: Home, authority: EdgeAuthority, loop: BackgroundLoop, pki: Path, binary: Path) -> None:
        super().__init__(home, authority, loop, GatewayConfig(port=free_port(), auth_host=LOOPBACK, auth_port=0))
        self.issuer = LocalIssuer(pki, PkiConfig(trust_domain=TRUST_DOMAIN))
        self.issuer.ensure_authorities()
        self.rest = Rest(home.sockets / "rest.sock", home.identity(Role.JOBMANAGER, JOBMANAGER.name))
        self.nginx_identity = home.identity(Role.GATEWAY, ENVOY_NAME)
        self._binary = binary
        self._nginx: Nginx | None = None

    def issue(self, directory: Path, identity: SpiffeId, *dns: str) -> None:
        self.issuer.issue_to(directory, identity, dns=list(dns))

    def prepare(self) -> None:
        """Issue valid identities to all; a test then replaces one."""
        self.home.create()
        self.authority.issue(self.identity)
        write_secret(route_file(self.home), json.dumps(ROUTES).encode())
        self.issue(self.nginx_identity, GATEWAY)
        auth = SpiffeId.process(TRUST_DOMAIN, Role.AUTH, AUTH_NAME)
        self.issue(self.home.identity(Role.AUTH, AUTH_NAME), auth, HOST)
        self.issue(self.rest.identity, JOBMANAGER, HOST)

    def start(self) -> None:
        self._run(self._loop.start(self.rest.serve()), lambda: self.rest.address)
        announced = self.home.run / "endpoints" / "auth.json"
        self._auth = self._loop.start(run_auth(self.home, self._config, TRUST_DOMAIN))
        eventually(lambda: announced.exists() or (self._auth is not None and self._auth.done()), "no auth service")
        port = json.loads(announced.read_bytes())["port"]
        assert self.rest.address is not None
        config = msgspec.structs.replace(self._config, auth_host=HOST, auth_port=port, authorization_timeout=10.0)
        upstreams = upstreams_of(config, EnvoyPaths.of(self.home), (HOST, self.rest.address[1]))
        directory = make_private_directory(self.home.gateway / "nginx")
        write_public(directory / TRUST_FILE, trusted_pem(read_identity(self.nginx_identity)[0].anchors))
        paths = NginxPaths(directory, self.identity, self.nginx_identity, access_file(self.home), superuser())
        make_private_directory(paths.access_log.parent)
        write_secret(directory / CONFIGURATION, render_nginx(config, paths, upstreams).encode())
        self.port = config.port
        self._nginx = Nginx(self._binary, directory, self.port)

    def _run(self, running: concurrent.futures.Future[None], ready: object) -> None:
        assert callable(ready)
        self._others.append(running)
        eventually(lambda: ready() or running.done(), "REST does not come up")
        if running.done():
            running.result()

    @property
    def log(self) -> str:
        """What nginx has said."""
        return "" if self._nginx is None else self._nginx.log

    def stop(self) -> None:
        if self._nginx is not None:
            self._nginx.stop()
        super().stop()


@pytest.fixture
def network(
    edge_authority: EdgeAuthority, background: BackgroundLoop, binary: Path, tmp_path: Path
) -> Iterator[NetworkGateway]:
    directory = Path(tempfile.mkdtemp(prefix="slc"))
    gateway = NetworkGateway(Home.at(directory), edge_authority, background, tmp_path / "pki", binary)
    gateway.prepare()
    try:
        yield gateway
    finally:
        gateway.stop()
        shutil.rmtree(directory)


def test_nginx_reaches_rest_and_the_auth_service_over_mutual_tls(network: NetworkGateway) -> None:
    network.start()
    reply = network.send("GET", "/v1/jobs", token=network.token(AccessRole.VIEWER, "ada"))
    assert reply.status == 200, network.log
    assert json.loads(reply.body) == {"principal": "ada"}
    assert network.send("POST", "/v1/jobs", token=network.token(AccessRole.VIEWER), body=b"{}").status == 403
    assert network.send("GET", "/v1/jobs").status == 401
    assert network.rest.served == 1


@pytest.mark.parametrize(
    ("name", "identity"),
    [
        ("elsewhere.example", JOBMANAGER),
        ("", JOBMANAGER),
    ],
    ids=["another host's", "no host name"],
)
def test_rest_with_another_or_no_host_name_receives_no_request(
    network: NetworkGateway, name: str, identity: SpiffeId
) -> None:
    network.issue(network.rest.identity, identity, *([name] if name else []))
    network.start()
    assert network.send("GET", "/v1/jobs", token=network.token(AccessRole.ADMIN)).status == 502
    assert network.rest.served == 0


def test_rest_with_a_certificate_of_a_foreign_authority_receives_no_request(
    network: NetworkGateway, tmp_path: Path
) -> None:
    foreign = OutsideAuthority(tmp_path / "foreign").imitate(str(JOBMANAGER), dns=[HOST])
    own = (network.rest.identity / "ca.pem").read_bytes()
    key, chain, anchors = ((foreign / name).read_bytes() for name in ("key.pem", "chain.pem", "ca.pem"))
    write_identity(network.rest.identity, key_pem=key, chain_pem=chain, ca_pem=own + anchors)
    network.start()
    reply = network.send("GET", "/v1/jobs", token=network.token(AccessRole.ADMIN))
    assert reply.status == 502
    assert reply.problem["detail"]
    assert network.rest.served == 0


def test_nginx_without_the_gateways_identity_is_refused_by_rest_and_auth_service(network: NetworkGateway) -> None:
    shutil.rmtree(network.nginx_identity)
    network.issue(network.nginx_identity, SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1"))
    network.start()
    assert network.send("GET", "/v1/jobs", token=network.token(AccessRole.ADMIN)).status == 503
    assert network.rest.served == 0
