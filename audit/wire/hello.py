"""Hellos: what the audit offers and how a server answers. Pure functions."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from sluice.audit.wire.codec import Reader, number, numbers, read_extensions, vector
from sluice.audit.wire.numbers import GOOD_SIGNATURES, MODERN_SUITES, Extension, Message, Version

RETRY_RANDOM = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
"""The random that makes a ServerHello a HelloRetryRequest (RFC 8446, 4.1.3)."""
DEFLATE = 1


@dataclass(frozen=True, slots=True)
class ClientHello:
    """What to offer. ``shares`` are public keys by group; a group without one makes the server ask again."""

    versions: tuple[int, ...] = (Version.TLS13,)
    suites: tuple[int, ...] = MODERN_SUITES
    groups: tuple[int, ...] = (0x001D, 0x0017, 0x0018)
    shares: tuple[tuple[int, bytes], ...] = ()
    signatures: tuple[int, ...] = GOOD_SIGNATURES
    alpn: tuple[str, ...] = ()
    server_name: bytes = b""
    compression: tuple[int, ...] = (0,)
    cookie: bytes = b""
    random: bytes = field(default_factory=lambda: os.urandom(32))
    session_id: bytes = field(default_factory=lambda: os.urandom(32))

    def encode(self) -> bytes:
        """The handshake message, with its header."""
        highest = max(self.versions)
        body = (
            number(min(highest, Version.TLS12), 2)
            + self.random
            + vector(self.session_id, 1)
            + numbers(self.suites, size=2, length=2)
            + numbers(self.compression, size=1, length=1)
        )
        extensions = b"".join(number(kind, 2) + vector(data, 2) for kind, data in self._extensions(highest))
        if highest > Version.SSL3:
            body += vector(extensions, 2)
        return handshake_message(Message.CLIENT_HELLO, body)

    def _extensions(self, highest: int) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        if self.server_name:
            found.append((Extension.SERVER_NAME, vector(b"\x00" + vector(self.server_name, 2), 2)))
        found.append((Extension.STATUS_REQUEST, b"\x01\x00\x00\x00\x00"))
        found.append((Extension.SUPPORTED_GROUPS, numbers(self.groups, size=2, length=2)))
        found.append((Extension.SIGNATURE_ALGORITHMS, numbers(self.signatures, size=2, length=2)))
        if self.alpn:
            names = b"".join(vector(name.encode(), 1) for name in self.alpn)
            found.append((Extension.ALPN, vector(names, 2)))
        if highest >= Version.TLS13:
            found.append((Extension.SUPPORTED_VERSIONS, numbers(self.versions, size=2, length=1)))
            # Without it, a server may not send tickets (RFC 8446, 4.2.9).
            found.append((Extension.PSK_KEY_EXCHANGE_MODES, b"\x01\x01"))
            shares = b"".join(number(group, 2) + vector(share, 2) for group, share in self.shares)
            found.append((Extension.KEY_SHARE, vector(shares, 2)))
        if min(self.versions) <= Version.TLS12:
            found.append((Extension.EC_POINT_FORMATS, b"\x01\x00"))
            found.append((Extension.SESSION_TICKET, b""))
            found.append((Extension.RENEGOTIATION_INFO, b"\x00"))
        if self.cookie:
            found.append((Extension.COOKIE, vector(self.cookie, 2)))
        return found


@dataclass(frozen=True, slots=True)
class ServerHello:
    """What the server chose; ``group`` is 0 below TLS 1.3."""

    version: int
    suite: int
    compression: int
    group: int
    share: bytes
    retry: bool
    cookie: bytes
    session_id: bytes
    extensions: frozenset[int]


def parse_server_hello(body: bytes) -> ServerHello:
    """The body of a ServerHello or HelloRetryRequest."""
    reader = Reader(body)
    legacy = reader.number(2)
    random = reader.take(32)
    session_id = reader.vector(1)
    suite = reader.number(2)
    compression = reader.number(1)
    extensions = read_extensions(reader)
    reader.end()
    retry = random == RETRY_RANDOM
    version = legacy
    if Extension.SUPPORTED_VERSIONS in extensions:
        version = Reader(extensions[Extension.SUPPORTED_VERSIONS]).number(2)
    group, share = 0, b""
    if Extension.KEY_SHARE in extensions:
        chosen = Reader(extensions[Extension.KEY_SHARE])
        group = chosen.number(2)
        share = b"" if retry else chosen.vector(2)
    cookie = Reader(extensions[Extension.COOKIE]).vector(2) if Extension.COOKIE in extensions else b""
    return ServerHello(version, suite, compression, group, share, retry, cookie, session_id, frozenset(extensions))


def handshake_message(kind: int, body: bytes) -> bytes:
    """A handshake message with its header."""
    return number(kind, 1) + vector(body, 3)
