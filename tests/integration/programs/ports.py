"""Ports, processes and TLS connections of the tests with other programs."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from tests.waiting import wait_until

DEADLINE_SECONDS = 60.0
SILENCE_SECONDS = 5.0
"""Who is expected to be let in, and was not refused by then, was. Whom a test wants refused gets more time."""


@contextlib.contextmanager
def running(
    argv: Sequence[str | Path], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program while the context lasts, with its output in ``log``."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=log.parent
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def until(condition: Callable[[], object], what: Callable[[], str], seconds: float = DEADLINE_SECONDS) -> None:
    """Wait until ``condition`` holds; at the deadline fail with the message that ``what`` returns."""
    wait_until(condition, what, seconds, pause=0.05)


def tail(log: Path) -> str:
    """The end of a log, for messages."""
    return f"the end of {log}:\n" + log.read_text(errors="replace")[-4000:]


def client_context(directory: Path) -> ssl.SSLContext:
    """Return a client context for the identity in ``directory``.

    It verifies the server, its host name included, against the anchors of that identity.
    """
    context = ssl.create_default_context(cafile=str(directory / "ca.pem"))
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_cert_chain(directory / "chain.pem", directory / "key.pem")
    return context


def exchange(port: int, context: ssl.SSLContext | None, request: bytes) -> bytes:
    """Send ``request`` and return the first bytes of the answer.

    Returns nothing if the connection was refused, in whatever way.
    """
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as plain:
            if context is None:
                plain.sendall(request)
                return plain.recv(65536)
            with context.wrap_socket(plain, server_hostname="localhost") as wrapped:
                wrapped.sendall(request)
                return wrapped.recv(65536)
    except TimeoutError:
        raise
    except OSError:  # ssl.SSLError is one
        return b""


def presented(port: int, context: ssl.SSLContext) -> bytes:
    """Return the certificate, in DER, that a listener presents to a TLS 1.3 client."""
    with (
        socket.create_connection(("localhost", port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as wrapped,
    ):
        assert wrapped.version() == "TLSv1.3"
        return wrapped.getpeercert(binary_form=True) or b""


def refuses(port: int, context: ssl.SSLContext, patience: float = DEADLINE_SECONDS) -> bool:
    """Whether a listener ends a connection by itself, within ``patience`` seconds.

    The client reads without having said anything: in TLS 1.3 its own part of the handshake is done before it is
    refused. A listener that lets it in waits for a request meanwhile.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=30) as plain:
        try:
            with context.wrap_socket(plain, server_hostname="localhost") as wrapped:
                wrapped.settimeout(patience)
                return wrapped.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:
            return True


def let_in(ports: Sequence[int], context: ssl.SSLContext) -> list[int]:
    """Return the ports whose listeners do not refuse.

    All are tried at once, because it takes a while to be sure.
    """
    with ThreadPoolExecutor(len(ports)) as pool:
        answers = list(pool.map(lambda port: refuses(port, context, SILENCE_SECONDS), ports))
    return [port for port, refused in zip(ports, answers, strict=True) if not refused]


def is_open(port: int) -> bool:
    """Return whether a process listens on ``port``."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Listener:
    """A TLS listener that records how the handshakes of its clients end, and answers nothing."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self.accepted = 0
        """Callers that took this listener for whom they wanted, and said something."""
        self.refused: list[str] = []
        """Why the others did not."""
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Closing alone does not wake accept(2) up.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(20)

    def _serve(self) -> None:
        while True:
            try:
                plain, _ = self._socket.accept()
            except OSError:
                return
            plain.settimeout(10)
            try:
                with self._context.wrap_socket(plain, server_side=True) as wrapped:
                    if wrapped.recv(1):
                        self.accepted += 1
                    else:
                        self.refused.append("closed")
            except OSError as error:
                self.refused.append(str(error))
