"""Like Envoy, nginx shows another authority's certificate to clients that ask for the gateway's name."""

from __future__ import annotations

import datetime as dt
import shutil
import socket
import ssl
import tempfile
from pathlib import Path

from sluice.core.home import Home
from sluice.gateway.config import GatewayConfig
from sluice.gateway.principal import AccessRole
from sluice.pki.authorities import to_pem
from sluice.pki.tls.edge_client import edge_client_context
from tests.integration.gateway.conftest import DEADLINE_SECONDS, BackgroundLoop, EdgeAuthority, Gateway
from tests.public_authority import DAY, PublicAuthority
from tests.system.nginx.conftest import NginxGateway

NAME = "sluice.example.com"


def test_server_name_gets_the_certificate_file_and_address_gets_the_edge_certificate(
    edge_authority: EdgeAuthority, background: BackgroundLoop, binary: Path
) -> None:
    directory = Path(tempfile.mkdtemp(prefix="slc"))
    authority = PublicAuthority(dt.datetime.now(dt.UTC) - DAY)
    chain, key = authority.issue(NAME).write(directory / "tls")
    config = GatewayConfig(
        server_names=(NAME,), certificate_file=str(chain), key_file=str(key), authorization_timeout=5.0
    )
    gateway = NginxGateway(Home.at(directory / "home"), edge_authority, background, config, binary)
    browser = ssl.create_default_context(cadata=to_pem(authority.root).decode())
    try:
        gateway.start()
        token = gateway.token(AccessRole.VIEWER)
        for context, name in ((browser, NAME), (edge_client_context(edge_authority.certificate_file), "127.0.0.1")):
            with (
                socket.create_connection((gateway.host, gateway.port), timeout=DEADLINE_SECONDS) as plain,
                context.wrap_socket(plain, server_hostname=name) as connection,
            ):
                request = f"GET /v1/jobs HTTP/1.1\r\nHost: {name}\r\nAuthorization: Bearer {token}\r\n\r\n"
                connection.sendall(request.encode())
                assert Gateway.read(connection).status == 200
    finally:
        gateway.stop()
        shutil.rmtree(directory)
