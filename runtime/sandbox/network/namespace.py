"""Creates and holds a network namespace."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from sluice.runtime.sandbox.errors import SandboxUnavailable
from sluice.runtime.sandbox.network.remedies import network_remedy
from sluice.runtime.sandbox.network.sockets import namespace_of

MAKER = Path(__file__).with_name("maker.py")
MAKE_SECONDS = 30.0
MAX_ANSWER_BYTES = 512


@dataclass(slots=True)
class Namespace:
    """A network namespace. It exists as long as a process is in it or these descriptors are open."""

    descriptors: tuple[int, ...]
    """Descriptors of the namespaces that a process enters, in order."""
    inode: int
    cookie: int
    questions: socket.socket
    """The resolver's socket for UDP."""
    streams: socket.socket
    """The resolver's socket for TCP."""
    packets: socket.socket
    """The packet monitor's socket, which sees every packet."""

    @classmethod
    def make(cls, *, own_user: bool) -> Namespace:
        """Create a network namespace.

        Args:
            own_user: also create a user namespace, as an ordinary user must.

        Raises:
            SandboxUnavailable: this machine does not allow it.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                argv = (sys.executable, "-I", "-S", str(MAKER), str(theirs.fileno()), "user" if own_user else "root")
                maker = subprocess.Popen(argv, env={}, cwd="/", stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),))
            try:
                ours.settimeout(MAKE_SECONDS)
                said, fds, _, _ = socket.recv_fds(ours, MAX_ANSWER_BYTES, 8)
            except OSError as error:
                raise _unavailable(str(error)) from error
            finally:
                maker.kill()
                maker.wait()
        if len(fds) != (5 if own_user else 4):
            for fd in fds:
                os.close(fd)
            raise _unavailable(said.decode(errors="replace") or "the program that creates the namespace ended")
        network, questions, streams, packets, *user = fds
        opened = [socket.socket(fileno=fd) for fd in (questions, streams, packets)]
        try:
            cookie = namespace_of(opened[0])
        except OSError as error:
            for each in opened:
                each.close()
            for fd in (*user, network):
                os.close(fd)
            raise _unavailable(str(error.strerror)) from error
        for each in opened:
            each.setblocking(False)
        for fd in fds:
            os.set_inheritable(fd, False)
        return cls((*user, network), os.fstat(network).st_ino, cookie, *opened)

    def close(self) -> None:
        """Close all descriptors."""
        for each in (self.questions, self.streams, self.packets):
            each.close()
        for fd in self.descriptors:
            os.close(fd)
        self.descriptors = ()


def _unavailable(why: str) -> SandboxUnavailable:
    return SandboxUnavailable(f"jobs cannot have private networks: {why}", network_remedy(why))
