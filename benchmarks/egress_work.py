"""The two ends of a measured connection, each in a separate process: an upstream and a client."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

PIECE_BYTES = 1 << 20
_REQUEST = struct.Struct(">cQ")
_DONE = b"."


class Measured(msgspec.Struct, frozen=True):
    """The result of one transfer."""

    bytes_per_second: float


def upstream() -> None:
    """Serve transfers: send or receive as each client asks. Prints the port to standard output."""
    server = socket.create_server(("127.0.0.9", 0))
    print(server.getsockname()[1], flush=True)
    while True:
        connection, _ = server.accept()
        threading.Thread(target=_serve, args=(connection,), daemon=True).start()


def _serve(connection: socket.socket) -> None:
    with connection:
        direction, size = _REQUEST.unpack(connection.recv(_REQUEST.size, socket.MSG_WAITALL))
        if direction == b"d":
            _send(connection, size)
        else:
            _take(connection, size)
            connection.sendall(_DONE)


def client(task: dict[str, Any]) -> Measured:
    """Do one transfer. The measured time is from the first byte to the last, without connecting."""
    address = (str(task["address"][0]), int(task["address"][1]))
    with socket.create_connection(address) as plain:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if "first" in task:
            plain.sendall(bytes.fromhex(task["first"]))
            return _transfer(plain, task)
        identity = Path(task["identity"])
        # Plain OpenSSL: the contexts of pki.tls would check at each read whether the peer was revoked.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(identity / "ca.pem")
        context.load_cert_chain(identity / "chain.pem", identity / "key.pem")
        with context.wrap_socket(plain) as tls:
            tls.sendall(f"CONNECT {task['authority']} HTTP/1.1\r\nHost: {task['authority']}\r\n\r\n".encode())
            answer = b""
            while not answer.endswith(b"\r\n\r\n"):
                answer += tls.recv(1)
            if answer.split(b" ")[1] != b"200":
                raise SystemExit(answer.decode())
            return _transfer(tls, task)


def _transfer(connection: socket.socket, task: dict[str, Any]) -> Measured:
    size, down = int(task["bytes"]), task["direction"] == "down"
    started = time.perf_counter()
    connection.sendall(_REQUEST.pack(b"d" if down else b"u", size))
    if down:
        _take(connection, size)
    else:
        _send(connection, size)
        _take(connection, len(_DONE))
    return Measured(size / (time.perf_counter() - started))


def _send(connection: socket.socket, size: int) -> None:
    piece = memoryview(bytes(PIECE_BYTES))
    while size > 0:
        connection.sendall(piece[: min(size, PIECE_BYTES)])
        size -= PIECE_BYTES


def _take(connection: socket.socket, size: int) -> None:
    buffer = memoryview(bytearray(PIECE_BYTES))
    while size > 0:
        received = connection.recv_into(buffer[: min(size, PIECE_BYTES)])
        if not received:
            raise SystemExit("the connection ended too early")
        size -= received


if __name__ == "__main__":
    if sys.argv[1] == "upstream":
        upstream()
    else:
        print(msgspec.json.encode(client(json.load(sys.stdin))).decode())
