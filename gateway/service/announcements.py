"""Files in which the gateway's processes announce their addresses to processes of the same home."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from sluice.core import SECRET_MODE, Home, make_private_directory, write_atomic
from sluice.gateway.config import ENVOY_NAME, GatewayConfig
from sluice.gateway.proxy import EnvoyPaths, auth_service_path


def auth_announcement(home: Home, config: GatewayConfig, number: int = 1) -> Path:
    """The path that exists once the auth service is ready: its socket, or the file with its address."""
    return (
        home.run / "endpoints" / "auth.json"
        if config.auth_host
        else auth_service_path(EnvoyPaths.of(home).auth_socket, number)
    )


def ext_authz_announcement(home: Home, number: int = 1) -> Path:
    """The file with the address of the gRPC listener; it exists while the listener serves."""
    return auth_service_path(home.run / "endpoints" / "ext-authz.json", number)


def envoy_announcement(home: Home, name: str = ENVOY_NAME) -> Path:
    """The file with the address of Envoy ``name``; it exists while Envoy serves."""
    return (home if name == ENVOY_NAME else home.envoy(name)).run / "endpoints" / "envoy.json"


def acme_announcement(home: Home) -> Path:
    """The file with the address of the http-01 listener; it exists while Envoy has this listener."""
    return home.run / "endpoints" / "acme-http.json"


def publish(path: Path, host: str, port: int) -> Callable[[], None]:
    """Announce an address to processes of this home; returns a function that withdraws the announcement."""
    make_private_directory(path.parent)
    write_atomic(path, msgspec.json.encode({"host": _reachable(host), "port": port}), mode=SECRET_MODE)
    return partial(path.unlink, missing_ok=True)


def _reachable(host: str) -> str:
    """An address for clients on this machine: loopback when Envoy listens on all addresses."""
    address = ipaddress.ip_address(host)
    if not address.is_unspecified:
        return host
    return "127.0.0.1" if address.version == 4 else "::1"
