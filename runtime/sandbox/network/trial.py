"""Tests whether this machine can give boxes private networks."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from pathlib import Path

from sluice.runtime.sandbox.attachment import NetworkAttachment
from sluice.runtime.sandbox.box import Box, Launch
from sluice.runtime.sandbox.errors import SandboxUnavailable
from sluice.runtime.sandbox.network.events import (
    Address,
    Answer,
    Connect,
    Connection,
    Decision,
    HostAddress,
    Refusal,
    Refuse,
    Traffic,
)
from sluice.runtime.sandbox.network.network import Network
from sluice.runtime.sandbox.network.remedies import network_remedy
from sluice.runtime.sandbox.network.sockets import kernel

TRIAL_SECONDS = 30.0
MAX_COMPLAINT_CHARACTERS = 400
ALLOWED, REFUSED = ("allowed.invalid", 443), ("192.0.2.1", 443)
_PROGRAM = """
import socket, sys
told = []
for host, port in ((sys.argv[1], 443), (sys.argv[2], 443)):
    try:
        with socket.create_connection((host, port), timeout=10) as peer:
            told.append(peer.recv(16).decode())
    except OSError as error:
        told.append(str(error))
print("|".join(told))
"""
_GREETING = b"reached"
ROOTS_RIGHTS = {"net_admin": 12, "net_raw": 13, "sys_ptrace": 19}
"""Numbers of the capabilities (capabilities(7)) that root needs in addition to those for a sandbox."""


class _Trial:
    """Rules and rows of the trial: one host name leads to a server on loopback, everything else is refused."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def decide(self, connect: Connect) -> Decision:
        """Allow the one host name."""
        if connect.name == ALLOWED[0]:
            return HostAddress(ip_address("127.0.0.1"), self._port)
        return Refuse(errno.EACCES, "not_allowed")

    async def resolve(self, name: str) -> Answer:
        """Resolve the one host name."""
        return name == ALLOWED[0]

    def listener(self, address: Address, port: int) -> socket.socket | None:  # noqa: ARG002 - of the protocol
        """Keep all ports in the box."""
        return None

    def opened(self, connection: Connection) -> None:
        """Ignore it."""

    def moved(self, connection: Connection, traffic: Traffic) -> None:
        """Ignore it."""

    def closed(self, connection: Connection, traffic: Traffic, seconds: float, reason: str) -> None:
        """Ignore it."""

    def refused(self, refusal: Refusal) -> None:
        """Ignore it."""

    def stuck(self, connection: Connection) -> None:
        """Ignore it."""


def try_network(make_box: Callable[[NetworkAttachment], Box], *, uid: int | None, rights: int) -> None:
    """Run a program in a box that connects to an allowed host and to a refused one, and check the results.

    Args:
        make_box: creates the box in a network.
        uid: as for :meth:`Network.open`.
        rights: the effective capabilities of this process, as bits.

    Raises:
        SandboxUnavailable: this machine does not support private networks, or the network lets too much through. The
            error contains the cause and a remedy.
    """
    if uid is not None and (missing := [name for name, bit in ROOTS_RIGHTS.items() if not rights >> bit & 1]):
        raise _unavailable(f"root lacks the capabilities {', '.join(missing)}")
    _try_calls()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(TRIAL_SECONDS)
        trial = _Trial(server.getsockname()[1])
        network = Network.open(trial, trial, uid=uid)
        try:
            box = make_box(network.attach("trial"))
            argv = (sys.executable, "-I", "-S", "-c", _PROGRAM, ALLOWED[0], REFUSED[0])
            with box.launch(argv, env={"LANG": "C.UTF-8"}, cwd=Path("/")) as launch:
                said = _run(launch, server)
        finally:
            network.close()
    wanted = f"{_GREETING.decode()}|[Errno {errno.EACCES}] {os.strerror(errno.EACCES)}"
    if said != wanted:
        raise _unavailable(f"a test program printed {said[-MAX_COMPLAINT_CHARACTERS:]!r}, not {wanted!r}")


def _try_calls() -> None:
    """Try, on this process itself, the calls that a container's seccomp filter may forbid."""
    try:
        pidfd = os.pidfd_open(os.getpid())
        try:
            os.close(kernel.fetch(pidfd, pidfd))
        finally:
            os.close(pidfd)
        word = kernel.address_of_nothing()
        kernel.read_memory(os.getpid(), word, 1)
    except OSError as error:
        raise _unavailable(error.strerror or str(error)) from error


def _run(launch: Launch, server: socket.socket) -> str:
    try:
        with subprocess.Popen(
            launch.argv,
            env=dict(launch.env),
            pass_fds=launch.pass_fds,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            preexec_fn=_entering(launch.namespaces),  # noqa: PLW1509 - only two system calls right after fork
        ) as child:
            try:
                _greet(server, child)
                out, err = child.communicate(timeout=TRIAL_SECONDS)
            finally:
                child.kill()
    except (OSError, subprocess.SubprocessError) as error:
        raise _unavailable(f"the box cannot be started: {error}") from error
    if child.returncode != 0:
        raise _unavailable(err.strip()[-MAX_COMPLAINT_CHARACTERS:] or f"exit code {child.returncode}")
    return out.strip()


def _greet(server: socket.socket, child: subprocess.Popen[str]) -> None:
    """Send the greeting to the first connection, unless the program ends before."""
    server.settimeout(0.05)
    for _ in range(round(TRIAL_SECONDS / 0.05)):
        try:
            connection, _ = server.accept()
        except TimeoutError:
            if child.poll() is not None:
                return
            continue
        with connection:
            connection.sendall(_GREETING)
        return


def _entering(namespaces: Sequence[int]) -> Callable[[], None]:
    def enter() -> None:
        for namespace in namespaces:
            kernel.enter(namespace)

    return enter


def _unavailable(why: str) -> SandboxUnavailable:
    return SandboxUnavailable(f"jobs cannot have private networks: {why}", network_remedy(why))
