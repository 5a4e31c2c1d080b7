"""A pending system call of a program in a box, and the socket that it concerns."""

from __future__ import annotations

import errno
import os
import socket
import struct
from pathlib import Path

from sluice.runtime.sandbox.network.sockets import kernel
from sluice.runtime.sandbox.network.sockets.addresses import MAX_SOCKADDR_BYTES

_U64 = struct.Struct("=Q")
MAX_NAME_CHARACTERS = 15


class Call:
    """A pending call, its thread, and a duplicate of its socket. Must be closed.

    Everything read from the process is a copy. Other threads may change the memory and the descriptor at any time, but
    gain nothing: only the copies are checked and used, and the original call never continues in the kernel.
    """

    def __init__(self, listener: int, notification: kernel.Notification) -> None:
        """Duplicate the socket of the call.

        Raises:
            OSError: the error that the call must fail with: EBADF, ENOTSOCK; or ESRCH: the call is no longer pending.
        """
        self._listener = listener
        self.id = notification.id
        self.number = notification.number
        self.thread = notification.thread
        self.arguments = notification.arguments
        self.given: int | None = None
        """The cookie of the socket that replaced the program's socket."""
        self.descriptor = notification.arguments[0] & 0xFFFFFFFF
        self._pidfd = kernel.open_thread(notification.thread)
        try:
            fd = kernel.fetch(self._pidfd, self.descriptor)
            try:
                self.socket = socket.socket(fileno=fd)
            except OSError:
                os.close(fd)
                raise
        except OSError:
            os.close(self._pidfd)
            raise
        if not self.waits():
            self.close()
            raise OSError(errno.ESRCH, "the call is no longer pending")
        self.cookie = cookie_of(self.socket)
        """The cookie of the socket, which identifies it."""

    def close(self) -> None:
        """Close the descriptors of the thread and the socket."""
        self.socket.close()
        os.close(self._pidfd)

    def waits(self) -> bool:
        """Whether the call is still pending."""
        return kernel.waits(self._listener, self.id)

    def sockaddr(self) -> bytes:
        """A copy of the address that is the call's second argument.

        Raises:
            OSError: EINVAL or EFAULT, as in the kernel; ESRCH: the call is no longer pending.
        """
        length = self.arguments[2] & 0xFFFFFFFF
        if not 2 <= length <= MAX_SOCKADDR_BYTES:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        copy = kernel.read_memory(self.thread, self.arguments[1], length)
        if not self.waits():
            raise OSError(errno.ESRCH, "the call is no longer pending")
        return copy

    @property
    def namespace(self) -> int:
        """The cookie of the network namespace that the socket belongs to."""
        return namespace_of(self.socket)

    def process(self) -> str:
        """The process name, which the program chooses itself."""
        try:
            name = Path(f"/proc/{self.thread}/comm").read_bytes()
        except OSError:
            return ""
        return name.decode(errors="replace").strip()[:MAX_NAME_CHARACTERS]

    def put(self, replacement: socket.socket) -> None:
        """Replace the program's socket by ``replacement``, keeping its flags. The call stays pending.

        Raises:
            OSError: ENOENT: the call is no longer pending.
        """
        replacement.setblocking(os.get_blocking(self.socket.fileno()))
        kernel.replace(
            self._listener,
            self.id,
            replacement.fileno(),
            target=self.descriptor,
            close_on_exec=self._closes_on_exec(),
        )
        self.given = cookie_of(replacement)

    def _closes_on_exec(self) -> bool:
        try:
            with Path(f"/proc/{self.thread}/fdinfo/{self.descriptor}").open(encoding="ascii") as file:
                flags = next((line.split()[1] for line in file if line.startswith("flags:")), "0")
        except OSError:
            return True
        return bool(int(flags, 8) & os.O_CLOEXEC)


def namespace_of(of: socket.socket) -> int:
    """The cookie of the network namespace that a socket belongs to."""
    try:
        cookie: int = _U64.unpack(of.getsockopt(socket.SOL_SOCKET, kernel.SO_NETNS_COOKIE, _U64.size))[0]
    except OSError as error:
        raise OSError(error.errno, f"SO_NETNS_COOKIE: {error.strerror}") from error
    return cookie


def cookie_of(of: socket.socket) -> int:
    """The cookie of a socket, which is unique on this machine."""
    cookie: int = _U64.unpack(of.getsockopt(socket.SOL_SOCKET, kernel.SO_COOKIE, _U64.size))[0]
    return cookie
