"""A connection that another thread ends never goes on without encryption."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from pathlib import Path

import pytest

from sluice.pki.spiffe_id import Role
from sluice.pki.tls.bulk import abort_socket
from tests.hostile import TestPki

SECRET = b"what must not be read on the way"


def test_a_socket_that_another_thread_aborts_stays_encrypted(tmp_path: Path) -> None:
    """``SSLSocket.shutdown`` drops TLS before it shuts the socket down: what is sent in between is plaintext."""
    directory = TestPki(tmp_path).process(Role.SHUFFLE_WORKER).directory
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "chain.pem", directory / "key.pem")
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.load_verify_locations(directory / "ca.pem")
    trusting.check_hostname = False
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    raw, other = socket.socketpair()
    with other, contextlib.ExitStack() as opened:
        client = threading.Thread(target=lambda: opened.enter_context(trusting.wrap_socket(other)))
        client.start()
        with context.wrap_socket(raw, server_side=True) as server:
            client.join()
            abort_socket(server)
            assert server.version() == "TLSv1.3"
            with pytest.raises(OSError, match=r"EOF occurred|Broken pipe"):
                server.sendall(SECRET)
