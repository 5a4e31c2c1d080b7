"""Weaknesses of a mutual TLS listener: the real one of the JobManager, with one thing changed."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

import sluice.pki.tls.contexts
import sluice.pki.x509.peer_identity
from sluice.audit import rogue
from sluice.audit.wire.codec import Reader
from sluice.pki.channels import Channel
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity, check_application_protocol
from sluice.pki.tls.listener import MutualTlsListener
from tests.system.audit import libssl
from tests.wire_server import compressing

MAX_HELLO_BYTES = 1 << 16
# X509_V_ERR_...
UNKNOWN_ISSUER = (2, 20, 21)
BAD_SIGNATURE = (7,)
NOT_YET_VALID, EXPIRED = (9,), (10,)
SELF_SIGNED_LEAF, SELF_SIGNED_IN_CHAIN = (18,), (19,)
NO_AUTHORITY = (24, 25, 32, 41, 79)
NO_KEY_IDENTIFIER = (85,)
WRONG_PURPOSE = (26,)
NAME_CONSTRAINTS = (47,)

Weakness = Callable[[], None]


class Greeting(asyncio.Protocol):
    """Sends an HTTP/2 SETTINGS frame as soon as a client connects."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet every client: whoever connects is admitted."""
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")


def context(change: Callable[[MutualTlsListener, Any], None]) -> Weakness:
    """Return a weakness that applies ``change`` to the TLS context of each RPC connection."""

    done: list[ssl.SSLContext] = []

    def apply() -> None:
        original = MutualTlsListener._context

        def changed(self: MutualTlsListener) -> ssl.SSLContext:
            made = original(self)
            if self._channel is Channel.RPC and made not in done:  # contexts are used more than once
                change(self, made)
                done.append(made)
            return made

        MutualTlsListener._context = changed  # type: ignore[method-assign]

    return apply


def listener(change: Callable[[MutualTlsListener], None], channel: Channel = Channel.RPC) -> Weakness:
    """Return a weakness that applies ``change`` to the listener of ``channel`` before it starts."""

    def apply() -> None:
        original = MutualTlsListener.start

        async def start(self: MutualTlsListener, host: str, port: int) -> tuple[str, int]:
            if self._channel is channel:
                change(self)
            return await original(self, host, port)

        MutualTlsListener.start = start  # type: ignore[method-assign]

    return apply


def connection(handle: Callable[[socket.socket], bool]) -> Weakness:
    """Return a weakness that passes each RPC connection to ``handle`` first, in a thread.

    If ``handle`` returns true, the connection is closed; otherwise the real handshake follows.
    """

    def apply() -> None:
        original = MutualTlsListener._handshake

        async def handshake(self: MutualTlsListener, accepted: socket.socket, address: str) -> None:
            if self._channel is Channel.RPC:
                accepted.settimeout(self._handshake_timeout)
                if await asyncio.to_thread(handle, accepted):
                    accepted.close()
                    return
                accepted.setblocking(False)
            await original(self, accepted, address)

        MutualTlsListener._handshake = handshake  # type: ignore[method-assign]

    return apply


def _plaintext(accepted: socket.socket) -> bool:
    accepted.sendall(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
    while accepted.recv(1 << 14):
        pass
    return True


def _endless_hello(accepted: socket.socket) -> bool:
    first = accepted.recv(16, socket.MSG_PEEK)
    if int.from_bytes(first[6:9], "big") < MAX_HELLO_BYTES:
        return False
    accepted.settimeout(None)
    while accepted.recv(1 << 16):
        pass
    return True


def _compresses(accepted: socket.socket) -> bool:
    hello = Reader(accepted.recv(1 << 12, socket.MSG_PEEK))
    hello.take(9 + 34)  # record and message headers, version, random
    hello.vector(1)
    hello.vector(2)
    if 1 not in hello.vector(1):
        return False
    compressing(accepted)
    return True


def _believes(verify_mode: ssl.VerifyMode) -> Weakness:
    """Accept clients without a certificate as a TaskManager."""

    def change(_: MutualTlsListener, made: Any) -> None:
        original = made.sslobject_class._verify

        def verify(self: Any, certificate: bytes | None, negotiated: str | None) -> None:
            if certificate is None:
                check_application_protocol(self.alpn, negotiated)
                self.peer = SpiffeId.process("sluice.local", Role.TASKMANAGER, "anybody")
            else:
                original(self, certificate, negotiated)

        made.verify_mode = verify_mode
        made.sslobject_class._verify = verify

    return context(change)


def _overlooks(*errors: int, depth: int | None = None) -> Weakness:
    """Ignore some errors of path validation."""
    return context(lambda _, made: libssl.overlook(made, errors, depth))


def _wrong_purpose() -> None:
    _overlooks(*WRONG_PURPOSE)()
    sluice.pki.x509.peer_identity.check_purpose = lambda *_: None


def _foreign_domain() -> None:
    _overlooks(*NAME_CONSTRAINTS)()

    def change(listening: MutualTlsListener) -> None:
        class AnyDomain(type(listening._policy)):  # type: ignore[misc]
            def admit(self, peer: SpiffeId) -> None:
                listening_policy.admit(replace(peer, trust_domain=listening_policy.trust_domain))

        listening_policy = listening._policy
        listening._policy = AnyDomain(listening_policy.trust_domain, listening_policy.roles)

    listener(change)()


def _first_of_two() -> None:
    """Use the first SPIFFE ID of a certificate that has several."""

    def first(certificate: x509.Certificate) -> SpiffeId:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return SpiffeId.parse(names.get_values_for_type(x509.UniformResourceIdentifier)[0])

    sluice.pki.x509.peer_identity.certified_identity = first


def _any_protocol() -> None:
    sluice.pki.tls.contexts.check_application_protocol = lambda *_: None


def _every_role(listening: MutualTlsListener) -> None:
    listening._policy = replace(listening._policy, roles=frozenset(Role))


def _no_revocation(_: MutualTlsListener, made: Any) -> None:
    made.sslobject_class.revoked_peers = None


def _edge_trusted(listening: MutualTlsListener, made: Any) -> None:
    edge = listening._identity.directory.parents[2] / "authorities" / "edge" / "cert.pem"
    made.load_verify_locations(cadata=edge.read_text())


def _tickets(_: MutualTlsListener, made: Any) -> None:
    made.options &= ~ssl.OP_NO_TICKET
    made.num_tickets = 2


def _early_data(listening: MutualTlsListener, made: Any) -> None:
    _tickets(listening, made)
    libssl.allow_early_data(made, 16384)


def _weak_suite(_: MutualTlsListener, made: Any) -> None:
    libssl.set_tls13_suites(made, "TLS_AES_128_GCM_SHA256:TLS_AES_128_CCM_8_SHA256")


def _tls12_only(_: MutualTlsListener, made: Any) -> None:
    made.minimum_version = made.maximum_version = ssl.TLSVersion.TLSv1_2
    made.set_ciphers("ECDHE+AESGCM")
    libssl.cache_no_sessions(made)


def _tls12_renegotiating(listening: MutualTlsListener, made: Any) -> None:
    _tls12_only(listening, made)
    made.options &= ~ssl.OP_NO_RENEGOTIATION
    made.options |= libssl.ALLOW_CLIENT_RENEGOTIATION


def _leaf_alone(listening: MutualTlsListener, made: Any) -> None:
    material = listening._identity.material
    leaf = b"".join(material.chain_pem.partition(b"-----END CERTIFICATE-----\n")[:2])
    libssl.show_no_more_than_loaded(made)
    _load(made, material.key_pem + leaf)


def _self_signed(listening: MutualTlsListener, made: Any) -> None:
    credential = rogue.self_signed(rogue.ForgedLeaf.at(dt.datetime.now(dt.UTC), str(listening._identity.spiffe_id)))
    key = credential.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    _load(made, key + credential.chain[0].public_bytes(Encoding.PEM))


def _load(made: Any, pem: bytes) -> None:
    descriptor = os.memfd_create("identity")
    with os.fdopen(descriptor, "wb") as file:
        file.write(pem)
        file.flush()
        made.load_cert_chain(f"/proc/self/fd/{descriptor}")


def _without_deadline(listening: MutualTlsListener) -> None:
    listening._handshake_timeout = 1000.0


def _identity_of_a_taskmanager(listening: MutualTlsListener) -> None:
    identities = listening._identity.directory.parents[1]
    listening._identity = TlsIdentity(identities / "taskmanager" / "taskmanager-1")


def _every_interface() -> None:
    original = MutualTlsListener.start

    async def start(self: MutualTlsListener, host: str, port: int) -> tuple[str, int]:
        if self._channel is not Channel.RPC:
            return await original(self, host, port)
        _, bound = await original(self, "0.0.0.0", port)  # noqa: S104  what must be found
        return host, bound

    MutualTlsListener.start = start  # type: ignore[method-assign]


_strays: list[socket.socket] = []


def _undeclared(kind: socket.SocketKind) -> Weakness:
    def apply() -> None:
        stray = socket.socket(socket.AF_INET, kind)
        stray.bind(("127.0.0.1", 0))
        if kind is socket.SOCK_STREAM:
            stray.listen()
        _strays.append(stray)

    return apply


def together(*weaknesses: Weakness) -> Weakness:
    """Return a weakness that combines all of ``weaknesses``."""

    def apply() -> None:
        for each in weaknesses:
            each()

    return apply


WEAKNESSES: dict[str, Weakness] = {
    "plaintext": connection(_plaintext),
    "no client certificates": _believes(ssl.CERT_NONE),
    "optional client certificates": _believes(ssl.CERT_OPTIONAL),
    "self-signed clients": _overlooks(*SELF_SIGNED_LEAF),
    "foreign authorities": _overlooks(*SELF_SIGNED_IN_CHAIN, *NO_KEY_IDENTIFIER),
    "authorities by name": _overlooks(*BAD_SIGNATURE),
    "incomplete chains": _overlooks(*UNKNOWN_ISSUER, depth=0),
    "expired clients": _overlooks(*EXPIRED),
    "clients of tomorrow": _overlooks(*NOT_YET_VALID),
    "no revocation": context(_no_revocation),
    "wrong usage": _wrong_purpose,
    "every role": listener(_every_role),
    "edge certificates": context(_edge_trusted),
    "foreign trust domains": _foreign_domain,
    "first of two identities": _first_of_two,
    "every certificate": _overlooks(*range(1, 100)),
    "leaves that sign": _overlooks(*NO_AUTHORITY, *WRONG_PURPOSE),
    "TLS 1.2 only": context(_tls12_only),
    "TLS 1.2 with renegotiation": context(_tls12_renegotiating),
    "TLS 1.2 with optional client certificates": together(context(_tls12_only), _believes(ssl.CERT_OPTIONAL)),
    "weak suite": context(_weak_suite),
    "session tickets": context(_tickets),
    "early data": context(_early_data),
    "compression": connection(_compresses),
    "any protocol": _any_protocol,
    "leaf alone": context(_leaf_alone),
    "self-signed server": context(_self_signed),
    "identity of another role": listener(_identity_of_a_taskmanager, Channel.BLOB),
    "endless handshake": listener(_without_deadline),
    "endless hello": connection(_endless_hello),
    "every interface": _every_interface,
    "undeclared port": _undeclared(socket.SOCK_STREAM),
    "undeclared UDP port": _undeclared(socket.SOCK_DGRAM),
}
