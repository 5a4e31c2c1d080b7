"""Listening ports: errors that name the process in the way, and TLS connections by their protocol."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
from collections.abc import Callable, Mapping

from sluice.gateway.errors import ListenError


def require_free_port(host: str, port: int, *, udp: bool = False, shared: bool = False) -> None:
    """Raise :class:`ListenError` when ``host:port`` cannot be listened on; port 0 is always free.

    ``shared``: other Envoys of this user may listen there, each of which gets a part of the connections.
    """
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    except ValueError as error:
        raise ListenError(f"gateway host {host!r} is not an IP address", "set [gateway] host to one") from error
    with contextlib.closing(socket.socket(family, socket.SOCK_DGRAM if udp else socket.SOCK_STREAM)) as probe:
        if not udp:
            # As Envoy does it: connections in TIME_WAIT are no obstacle, a listener is.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            probe.bind((host, port))
            if not udp and not shared:
                probe.listen(1)  # a shared one would get connections
        except OSError as error:
            raise port_error(host, port, error) from error


def port_error(host: str, port: int, error: OSError) -> ListenError:
    """The error for a ``host:port`` that could not be bound."""
    if error.errno == errno.EADDRINUSE:
        return ListenError(
            f"port {port} on {host} is already in use",
            f"stop what listens there (ss -lntup 'sport = :{port}'), or set [gateway] port, see `sluice up --help`",
        )
    return ListenError(f"cannot listen on {host}:{port}: {error.strerror}", "set [gateway] host and port")


class ByApplicationProtocol(asyncio.Protocol):
    """Hands a new TLS connection to the protocol that was agreed on in its handshake (ALPN), else ends it."""

    def __init__(self, factories: Mapping[str, Callable[[], asyncio.Protocol]]) -> None:
        self._factories = factories

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake is done."""
        tls = transport.get_extra_info("ssl_object")
        factory = self._factories.get(tls.selected_alpn_protocol() or "") if tls is not None else None
        if factory is None or not isinstance(transport, asyncio.Transport):
            transport.close()
            return
        protocol = factory()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
