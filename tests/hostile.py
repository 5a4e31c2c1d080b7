"""Identities that must be refused, and a separate PKI for each test. Shared by all tests.

    pki = TestPki(tmp_path)
    good = sluice.pki.spiffe_id(SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1"))       # a TlsIdentity
    bad = pki.hostile(Hostile.EXPIRED, pretending=good.spiffe_id)
    await assert_refused(host, port, bad.client_context(alpn=["h2"]))
    bad.directory                                                                       # the same as files

A hostile client does not verify the server, so if its connection ends, the listener refused it. Each hostile
certificate is wrong in exactly one way and otherwise valid.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import enum
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from sluice.core.files import (
    PUBLIC_MODE,
    SECRET_MODE,
    make_private_directory,
    replace_set,
)
from sluice.core.home import Home
from sluice.pki.authorities.signing import to_pem
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.config import PkiConfig
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from sluice.pki.x509 import pkcs12 as keystore
from sluice.pki.x509.keys import key_to_pem
from sluice.pki.x509.profiles import AuthorityKind, Names
from tests.outside import BOTH_PURPOSES, OutsideAuthority, Signer, sign_leaf

TRUST_DOMAIN = "sluice.local"
OTHER_JOB_ID = "f" * 32
REFUSAL_DEADLINE_SECONDS = 20.0


class Hostile(enum.StrEnum):
    """What is wrong with an identity."""

    NO_CERTIFICATE = "no certificate"
    SELF_SIGNED = "self-signed"
    FOREIGN_CA = "foreign CA"
    EXPIRED = "expired"
    NOT_YET_VALID = "not yet valid"
    WRONG_ROLE = "wrong role"
    OTHER_JOB = "other job"
    EDGE_CERTIFICATE = "edge certificate"
    WRONG_EKU = "wrong EKU"
    NO_EKU = "no EKU"
    FOREIGN_TRUST_DOMAIN = "foreign trust domain"
    NO_SPIFFE_ID = "no SPIFFE ID"
    TWO_SPIFFE_IDS = "two SPIFFE IDs"
    AUTHORITY_AS_LEAF = "authority as leaf"
    SIGNED_BY_LEAF = "signed by a leaf"


HOSTILE_CLIENTS = tuple(case for case in Hostile if case is not Hostile.OTHER_JOB)
"""Cases that every listener refuses. Only channels of a single job refuse :attr:`Hostile.OTHER_JOB`."""
HOSTILE_SERVERS = tuple(case for case in HOSTILE_CLIENTS if case is not Hostile.NO_CERTIFICATE)
"""Cases that every client refuses. A TLS 1.3 server always has a certificate."""


@dataclass(frozen=True)
class HostileIdentity:
    """An identity that must be refused, as TLS contexts and as a directory.

    The directory has no certificate if the case is ``NO_CERTIFICATE``.
    """

    case: Hostile
    directory: Path

    def client_context(self, *, alpn: Sequence[str] = (), tls12: bool = False) -> ssl.SSLContext:
        """Return a client context that accepts any server. ``tls12``: the client supports TLS 1.2 only."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        return self._finish(context, alpn, tls12=tls12)

    def server_context(self, *, alpn: Sequence[str] = (), tls12: bool = False) -> ssl.SSLContext:
        """Return a server context that requests no client certificate."""
        return self._finish(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), alpn, tls12=tls12)

    def _finish(self, context: ssl.SSLContext, alpn: Sequence[str], *, tls12: bool) -> ssl.SSLContext:
        context.verify_mode = ssl.CERT_NONE
        if tls12:
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
        else:
            context.minimum_version = ssl.TLSVersion.TLSv1_3
        if self.case is not Hostile.NO_CERTIFICATE:
            context.load_cert_chain(self.directory / "chain.pem", self.directory / "key.pem")
        if alpn:
            context.set_alpn_protocols(list(alpn))
        return context


@dataclass(frozen=True)
class _Wish:
    """The contents of a forged leaf. The defaults are valid."""

    uris: tuple[str, ...]
    start: dt.datetime
    end: dt.datetime
    usages: tuple[x509.ObjectIdentifier, ...] = BOTH_PURPOSES
    authority: bool = False


@dataclass
class TestPki:
    """Authorities in a directory of the test, and identities that they issue, valid and hostile."""

    __test__ = False  # pytest must not collect this class because of its name

    root: Path
    config: PkiConfig = field(default_factory=lambda: PkiConfig(trust_domain=TRUST_DOMAIN))

    def __post_init__(self) -> None:
        self.home = Home.at(self.root / "home")
        self.issuer = LocalIssuer(self.home, self.config)
        self.issuer.ensure_authorities()
        self._store = AuthorityStore(self.home.pki)
        self._count = 0

    def directory(
        self, spiffe_id: SpiffeId, *, accept: Sequence[str] = (), lifetime: dt.timedelta | None = None
    ) -> Path:
        """Issue a valid identity directory."""
        directory = self._next(spiffe_id.role)
        self.issuer.issue_to(
            directory, spiffe_id, dns=["localhost"], ips=["127.0.0.1"], accept=accept, lifetime=lifetime
        )
        return directory

    def identity(self, spiffe_id: SpiffeId) -> TlsIdentity:
        """Issue a valid identity and load it."""
        return TlsIdentity(self.directory(spiffe_id))

    def process(self, role: Role, name: str = "") -> TlsIdentity:
        """Issue the identity of a process in ``role`` and load it."""
        return self.identity(SpiffeId.process(self.config.trust_domain, role, name or f"{role}-1"))

    def edge_server(self, *, dns: Sequence[str] = ("localhost",), ips: Sequence[str] = ("127.0.0.1",)) -> Path:
        """Issue the gateway's public certificate."""
        directory = self._next("edge-server")
        gateway = SpiffeId.process(self.config.trust_domain, Role.GATEWAY, "envoy")
        self.issuer.issue_edge_server(directory, gateway, dns=dns, ips=ips)
        return directory

    def hostile(self, case: Hostile, *, pretending: SpiffeId, accept: Sequence[str] = ()) -> HostileIdentity:
        """Forge an identity that would be accepted as ``pretending`` except for ``case``."""
        directory = self._next("hostile")
        internal = self._signer_of(AuthorityKind.INTERNAL)
        anchors = to_pem(internal.certificate)
        if case is Hostile.NO_CERTIFICATE:
            make_private_directory(directory)
            replace_set(directory, {"ca.pem": (anchors, PUBLIC_MODE)})
            return HostileIdentity(case, directory)
        now = dt.datetime.now(dt.UTC)
        signer, chain = self._signer(case, internal, now)
        wish = _wish(case, pretending, now)
        key = ec.generate_private_key(ec.SECP256R1())
        leaf = _sign(key, signer, wish)
        password = keystore.random_password()
        make_private_directory(directory)
        replace_set(
            directory,
            {
                "key.pem": (key_to_pem(key), SECRET_MODE),
                "chain.pem": (to_pem(leaf, *chain), PUBLIC_MODE),
                "ca.pem": (anchors, PUBLIC_MODE),
                "identity.p12": (keystore.key_store(key, leaf, chain, password), SECRET_MODE),
                "identity.p12.pass": (password, SECRET_MODE),
                **({"peers": ("".join(f"{p}\n" for p in accept).encode(), PUBLIC_MODE)} if accept else {}),
            },
        )
        return HostileIdentity(case, directory)

    def _signer(
        self, case: Hostile, internal: Signer, now: dt.datetime
    ) -> tuple[Signer | None, list[x509.Certificate]]:
        """Return the signer of the forged leaf (None: its own key), and the chain that is sent with it."""
        match case:
            case Hostile.SELF_SIGNED:
                return None, []
            case Hostile.FOREIGN_CA:
                foreign = OutsideAuthority(self._next("foreign")).signer
                return foreign, [foreign.certificate]
            case Hostile.EDGE_CERTIFICATE:
                edge = self._signer_of(AuthorityKind.EDGE)
                return edge, [edge.certificate]
            case Hostile.SIGNED_BY_LEAF:
                return self._signing_leaf(internal, now)
            case _:
                return internal, [internal.certificate]

    def _signing_leaf(self, internal: Signer, now: dt.datetime) -> tuple[Signer, list[x509.Certificate]]:
        """Return a valid leaf whose key is misused to sign other certificates."""
        key = ec.generate_private_key(ec.SECP256R1())
        driver = SpiffeId.driver(self.config.trust_domain, OTHER_JOB_ID)
        names = Names.checked(driver, (), ())
        wish = _Wish((str(names.spiffe_id),), now - dt.timedelta(hours=1), now + dt.timedelta(hours=1))
        certificate = _sign(key, internal, wish)
        return Signer(certificate, key), [certificate, internal.certificate]

    def _signer_of(self, kind: AuthorityKind) -> Signer:
        authority = self._store.load(kind)
        return Signer(authority.certificate, authority.key)

    def _next(self, name: str) -> Path:
        self._count += 1
        return self.root / "identities" / f"{self._count}-{name}"


def _wish(case: Hostile, pretending: SpiffeId, now: dt.datetime) -> _Wish:
    hour = dt.timedelta(hours=1)
    # No channel admits authorities as clients, and only one has them as servers.
    wrong_role = Role.AUTH if pretending.role is Role.CA else Role.CA
    other = str(SpiffeId.process(pretending.trust_domain, wrong_role, "other-1"))
    honest = _Wish((str(pretending),), now - hour, now + hour)
    wrong: dict[Hostile, _Wish] = {
        Hostile.EXPIRED: replace(honest, end=now - dt.timedelta(seconds=2)),
        Hostile.NOT_YET_VALID: replace(honest, start=now + hour / 2),
        Hostile.WRONG_ROLE: replace(honest, uris=(other,)),
        Hostile.OTHER_JOB: replace(honest, uris=(_other_job(pretending),)),
        Hostile.WRONG_EKU: replace(honest, usages=(ExtendedKeyUsageOID.CODE_SIGNING,)),
        Hostile.NO_EKU: replace(honest, usages=()),
        Hostile.FOREIGN_TRUST_DOMAIN: replace(honest, uris=(str(replace(pretending, trust_domain="evil.example")),)),
        Hostile.NO_SPIFFE_ID: replace(honest, uris=()),
        Hostile.TWO_SPIFFE_IDS: replace(honest, uris=(str(pretending), other)),
        Hostile.AUTHORITY_AS_LEAF: replace(honest, authority=True),
    }
    return wrong.get(case, honest)


def _other_job(pretending: SpiffeId) -> str:
    if pretending.role is Role.DRIVER:
        return str(SpiffeId.driver(pretending.trust_domain, OTHER_JOB_ID))
    return str(SpiffeId.executor(pretending.trust_domain, OTHER_JOB_ID, 1))


def _sign(key: ec.EllipticCurvePrivateKey, signer: Signer | None, wish: _Wish) -> x509.Certificate:
    return sign_leaf(
        key,
        signer,
        uris=wish.uris,
        start=wish.start,
        end=wish.end,
        purposes=wish.usages,
        authority=wish.authority,
    )


async def answer_of(host: str, port: int, context: ssl.SSLContext | None, *, hello: bytes = b"hello\r\n\r\n") -> bytes:
    """Return a listener's answer to ``hello``; empty if the listener ended the connection in any way."""
    writer = None
    try:
        async with asyncio.timeout(REFUSAL_DEADLINE_SECONDS):
            # In TLS 1.3 the client finishes first, so the refusal arrives with the first read (RFC 8446, 4.4.2.4).
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
            writer.write(hello)
            return await reader.read(65536)
    except (ssl.SSLError, ConnectionError):
        return b""
    finally:
        if writer is not None:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def assert_refused(
    host: str, port: int, context: ssl.SSLContext | None, *, hello: bytes = b"hello\r\n\r\n"
) -> None:
    """Connect and send ``hello``; fail if the listener answers anything. Plaintext if ``context`` is None."""
    answer = await answer_of(host, port, context, hello=hello)
    assert answer == b"", f"the listener answered {answer[:80]!r}"
