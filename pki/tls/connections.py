"""Records the current and past connections of a process with both identities, for users and audits."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Literal

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from sluice.core import host_port
from sluice.pki.channels import Channel
from sluice.pki.spiffe_id import SpiffeId
from sluice.pki.tls.contexts import peer_of, tls_object_of
from sluice.pki.x509 import issuer_id

MAX_OPEN = 1024
"""Open connections remembered; the oldest are forgotten first."""
MAX_RECENT = 256
"""Closed connections remembered."""
SETTLE_EVERY = 64
"""New connections between two searches for closed ones; a snapshot searches too."""

_CURVES = {"secp256r1": "P-256", "secp384r1": "P-384", "secp521r1": "P-521"}


class PeerCertificate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts of the peer's certificate; nothing in it is secret.

    Attributes:
        serial: its serial number, in hexadecimal.
        issuer: the key identifier of the authority that signed it, in hexadecimal.
        not_before: in epoch seconds, as ``not_after``.
        key: ``EC P-256``, ``RSA 3072``, ``Ed25519``.
    """

    serial: str
    issuer: str
    not_before: float
    not_after: float
    key: str


class Connection(msgspec.Struct, frozen=True):
    """One connection after its handshake; ``opened_at`` is in epoch milliseconds, ``address`` is the peer's."""

    channel: str
    local: str
    peer: str
    direction: Literal["accepted", "dialed"]
    protocol: str
    cipher: str
    address: str = ""
    opened_at: int = 0
    certificate: PeerCertificate | None = None


def now_ms() -> int:
    """The present in epoch milliseconds."""
    return time.time_ns() // 1_000_000


class ConnectionLog:
    """Bounded memory of open and recent connections; for use on one event loop."""

    def __init__(self, *, clock_ms: Callable[[], int] = now_ms) -> None:
        self._clock_ms = clock_ms
        self._open: deque[tuple[weakref.ref[asyncio.BaseTransport], Connection]] = deque(maxlen=MAX_OPEN)
        self._recent: deque[Connection] = deque(maxlen=MAX_RECENT)
        self._recorded = 0

    def record(
        self,
        channel: Channel,
        direction: Literal["accepted", "dialed"],
        local: SpiffeId,
        transport: asyncio.BaseTransport,
    ) -> Connection:
        """Remember ``transport``, whose handshake is complete."""
        tls = tls_object_of(transport)
        cipher = tls.cipher()
        connection = Connection(
            channel=str(channel),
            local=str(local),
            peer=str(peer_of(tls)),
            direction=direction,
            protocol=tls.version() or "",
            cipher=cipher[0] if cipher else "",
            address=format_address(transport.get_extra_info("peername")),
            opened_at=self._clock_ms(),
            certificate=_shown(tls.getpeercert(binary_form=True)),
        )
        self._open.append((weakref.ref(transport), connection))
        self._recorded += 1
        if self._recorded % SETTLE_EVERY == 0:  # a search for each new connection would take too long
            self._settle()
        return connection

    def snapshot(self) -> tuple[Connection, ...]:
        """Closed connections first, then the open ones, each oldest first."""
        self._settle()
        return (*self._recent, *(connection for _, connection in self._open))

    def open(self) -> tuple[Connection, ...]:
        """The open ones, oldest first."""
        self._settle()
        return tuple(connection for _, connection in self._open)

    def _settle(self) -> None:
        """Move closed connections to the recent ones."""
        still_open = []
        for reference, connection in self._open:
            transport = reference()
            if transport is None or transport.is_closing():
                self._recent.append(connection)
            else:
                still_open.append((reference, connection))
        if len(still_open) != len(self._open):
            self._open.clear()
            self._open.extend(still_open)


def _shown(der: bytes | None) -> PeerCertificate | None:
    return None if der is None else describe_certificate(x509.load_der_x509_certificate(der))


def describe_certificate(leaf: x509.Certificate) -> PeerCertificate:
    """Describe ``leaf``."""
    return PeerCertificate(
        serial=f"{leaf.serial_number:x}",
        issuer=issuer_id(leaf),
        not_before=leaf.not_valid_before_utc.timestamp(),
        not_after=leaf.not_valid_after_utc.timestamp(),
        key=key_name(leaf),
    )


def key_name(certificate: x509.Certificate) -> str:
    """The kind of its key, in words."""
    match certificate.public_key():
        case ec.EllipticCurvePublicKey() as key:
            return f"EC {_CURVES.get(key.curve.name, key.curve.name)}"
        case rsa.RSAPublicKey() as key:
            return f"RSA {key.key_size}"
        case key:
            return type(key).__name__.strip("_").removesuffix("PublicKey")


def format_address(peername: object) -> str:
    """A socket's peer name as ``host:port``, or empty when it is none."""
    match peername:
        case (str(host), int(port), *_):
            return host_port(host, port)
        case _:
            return ""
