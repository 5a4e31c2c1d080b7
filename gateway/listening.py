"""Listening sockets: never taken from a running process, with errors that say which process may have them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from sluice.core.files import SECRET_MODE, make_private_directory
from sluice.gateway.errors import ListenError

_BACKLOG = 512


def listen_unix(path: Path) -> socket.socket:
    """A listening unix socket, 0600 in a 0700 directory; a socket that a dead process left is replaced."""
    clear_stale_socket(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listener.bind(str(path))
        # Nobody can connect before listen(), so there is no moment with wider permissions.
        path.chmod(SECRET_MODE)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ListenError(f"cannot listen on {path}: {error.strerror}") from error
    return listener


def clear_stale_socket(path: Path) -> None:
    """Remove the socket at ``path`` unless someone listens on it: then raise :class:`ListenError`."""
    make_private_directory(path.parent)
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        try:
            probe.connect(str(path))
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise ListenError(f"{path} is in the way: {error.strerror}", "remove it") from error
        else:
            raise ListenError(f"another process listens on {path}", "see `sluice status`, stop it with `sluice down`")


def require_free_port(host: str, port: int, *, udp: bool = False) -> None:
    """Raise :class:`ListenError` when ``host:port`` cannot be listened on; port 0 is always free."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    except ValueError as error:
        raise ListenError(f"gateway host {host!r} is not an IP address", "set [gateway] host to one") from error
    with contextlib.closing(socket.socket(family, socket.SOCK_DGRAM if udp else socket.SOCK_STREAM)) as probe:
        if not udp:
            # As Envoy does it: connections in TIME_WAIT are no obstacle, a listener is.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            if not udp:
                probe.listen(1)
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
