"""Listening ports: checks with errors that show how to find the process in the way, and protocols chosen by ALPN."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
from collections.abc import Callable, Mapping

from sluice.gateway.errors import ListenError


def require_free_port(host: str, port: int, *, udp: bool = False, shared: bool = False) -> None:
    """Raise :class:`ListenError` when no process can listen on ``host:port``; port 0 is always free.

    ``shared``: other Envoys of this user may listen on the same port (``SO_REUSEPORT``); the kernel spreads the
    connections over them.
    """
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    except ValueError as error:
        raise ListenError(f"gateway host {host!r} is not an IP address", "set [gateway] host to one") from error
    with contextlib.closing(socket.socket(family, socket.SOCK_DGRAM if udp else socket.SOCK_STREAM)) as probe:
        if not udp:
            # Like Envoy: connections in TIME_WAIT do not block the port, a listener does.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            probe.bind((host, port))
            if not udp and not shared:
                probe.listen(1)  # not on a shared port: the probe would receive client connections
        except OSError as error:
            raise port_error(host, port, error) from error


def port_error(host: str, port: int, error: OSError) -> ListenError:
    """The error for a ``host:port`` that could not be bound."""
    if error.errno == errno.EADDRINUSE:
        return ListenError(
            f"port {port} on {host} is already in use",
            f"stop the process on it (ss -lntup 'sport = :{port}'), or set [gateway] port, see `sluice up --help`",
        )
    return ListenError(f"cannot listen on {host}:{port}: {error.strerror}", "set [gateway] host and port")


class ByApplicationProtocol(asyncio.Protocol):
    """Hands a new TLS connection to the protocol negotiated with ALPN; closes it when no protocol matches."""

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
