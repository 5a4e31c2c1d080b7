"""Fixtures: a gateway (the real Envoy) that gets its certificates from an ACME server (Pebble)."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509

from sluice.core.home import Home
from sluice.gateway.config import AcmeConfig, GatewayConfig
from tests.acme.pebble import Pebble
from tests.free_ports import free_ports
from tests.integration.gateway.conftest import (
    BackgroundLoop,
    EdgeAuthority,
    Gateway,
    background,
    edge_authority,
)

__all__ = ["NAMES", "MakeSite", "Site", "background", "connected", "edge_authority", "make_site"]

NAMES = ("sluice.example.com", "sql.example.com")


class Site:
    """A gateway and the Pebble that validates its names. The test starts both."""

    def __init__(self, directory: Path, gateway: Gateway, pebble: Pebble, config: GatewayConfig) -> None:
        self.directory = directory
        self.gateway = gateway
        self.pebble = pebble
        self.config = config

    @property
    def home(self) -> Home:
        return self.gateway.home

    @property
    def acme(self) -> AcmeConfig:
        assert self.config.acme is not None
        return self.config.acme

    def browser(self) -> ssl.SSLContext:
        """Return the TLS context of a client that trusts only the authority of the ACME server."""
        roots = self.directory / "roots.pem"
        roots.write_bytes(self.pebble.roots())
        context = ssl.create_default_context(cafile=str(roots))
        context.set_alpn_protocols(["http/1.1"])
        return context

    def shown(self, name: str = NAMES[0], context: ssl.SSLContext | None = None) -> x509.Certificate:
        """Return the certificate that the gateway presents to a client that asks for ``name``.

        By default, the client accepts any issuer.
        """
        if context is None:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with connected(self.gateway.port, context, name) as connection:
            der = connection.getpeercert(binary_form=True)
        assert der is not None
        return x509.load_der_x509_certificate(der)


@contextlib.contextmanager
def connected(port: int, context: ssl.SSLContext, name: str | None) -> Iterator[ssl.SSLSocket]:
    with (
        socket.create_connection(("127.0.0.1", port), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname=name) as connection,
    ):
        yield connection


MakeSite = Callable[..., Site]


@pytest.fixture
def make_site(edge_authority: EdgeAuthority, background: BackgroundLoop) -> Iterator[MakeSite]:
    """Provides a function that creates sites. It does not start them.

    Its ``settings`` are those of ``[gateway.acme]``.
    """
    with contextlib.ExitStack() as stack:

        def make(*, names: tuple[str, ...] = NAMES, pebble: dict[str, Any] | None = None, **settings: Any) -> Site:
            directory = Path(tempfile.mkdtemp(prefix="slc"))
            stack.callback(shutil.rmtree, directory)
            port, http_port = free_ports(2)
            server = Pebble(directory / "pebble", http_port, port, **(pebble or {}))
            values = {
                "directory": server.url,
                "terms_of_service_agreed": True,
                "ca_file": str(server.ca_file),
                "http_port": http_port,
                **settings,
            }
            config = GatewayConfig(
                port=port, server_names=names, authorization_timeout=5.0, acme=msgspec.convert(values, AcmeConfig)
            )
            gateway = Gateway(Home.at(directory / "home"), edge_authority, background, config)
            stack.callback(gateway.stop)
            stack.callback(server.stop)
            return Site(directory, gateway, server, config)

        yield make
