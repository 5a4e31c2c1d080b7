"""The subject of a check: one listener, the means to examine it, and cached facts."""

from __future__ import annotations

import datetime as dt
import enum
import re
import socket
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import psutil
from cryptography import x509

from sluice.audit import rogue
from sluice.audit.errors import WireError
from sluice.audit.model import EXAMINED_KINDS, Listener
from sluice.audit.wire import (
    ANONYMOUS_SUITES,
    GOOD_SIGNATURES,
    GOOD_TLS12_SUITES,
    WEAK_TLS12_SUITES,
    Answer,
    ClientHello,
    ConnectionEnded,
    Credential,
    Ending,
    Flight,
    Handshake,
    OldClient,
    Tls13Client,
    Verdict,
    Version,
    offer,
    old_flight,
)
from sluice.core import Home, paths_matching
from sluice.pki import MAY_CONNECT, Channel, Role, SpiffeId
from sluice.pki.identities import CHAIN_FILE

OFFERED_PROTOCOLS = ("h2", "http/1.1")
_ANY_JOB = "0" * 32
_JVM = re.compile(r"(?:driver|executor)-([0-9]+)-[0-9]+(?:-[0-9]+)?")
"""The names of listeners of a job's JVMs, with the pid."""


class Case(enum.StrEnum):
    """The one error of an audit identity."""

    WELCOME = "nothing"
    EXPIRED = "expired"
    NOT_YET_VALID = "not yet valid"
    WRONG_USAGE = "wrong usage"
    WRONG_ROLE = "wrong role"
    OTHER_JOB = "other job"
    EDGE_CERTIFICATE = "edge certificate on an internal channel"
    INTERNAL_CERTIFICATE = "internal certificate at the edge"
    FOREIGN_DOMAIN = "foreign trust domain"
    TWO_IDENTITIES = "two SPIFFE IDs"
    SIGNED_BY_LEAF = "signed by a leaf"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True)
class Options:
    """Time limits and strictness."""

    timeout: float = 10.0
    """Seconds for connecting and a handshake."""
    patience: float = 2.0
    """Seconds within which a listener must have refused a client; otherwise it admits the client."""
    listen: float = 1.0
    """Seconds to wait for unsolicited data: a greeting in plaintext, session tickets."""
    handshake_limit: float = 15.0
    """Seconds after which a listener must have ended a stalled handshake."""
    max_leaf_lifetime: dt.timedelta = dt.timedelta(days=7)
    clock: Callable[[], dt.datetime] = field(default=lambda: dt.datetime.now(dt.UTC))


class Identities(Protocol):
    """Issues certified identities that are wrong in one way (see :mod:`sluice.audit.identities`)."""

    def credential(self, case: Case, listener: Listener) -> Credential | None:
        """The credential for ``case``; None when ``case`` does not apply to ``listener``."""

    def revoke(self, credential: Credential) -> None:
        """Revoke it at its authority, and distribute the CRL to every process of the cluster."""


class Operation(Protocol):
    """One published operation of the REST interface."""

    @property
    def method(self) -> str:
        """GET, POST, …"""

    @property
    def path(self) -> str:
        """With ``{name}`` segments."""

    @property
    def operation(self) -> str:
        """Its name in the policy."""


@dataclass(frozen=True, slots=True)
class EdgeAccess:
    """The operations of the edge, and a credential for only some of them.

    Attributes:
        operations: every published operation.
        weak_token: a valid token, or empty.
        beyond_weak: names of operations that it may not do.
        ca_file: the authority that verifies the edge; the token goes nowhere else. None: the system's.
        without_auth: pauses the auth service within its block; None: not requested.
    """

    operations: tuple[Operation, ...] = ()
    weak_token: str = field(default="", repr=False)
    beyond_weak: frozenset[str] = frozenset()
    ca_file: Path | None = None
    without_auth: Callable[[], AbstractContextManager[None]] | None = None


@dataclass(frozen=True)
class Subject:
    """A listener under examination. Checks of one listener run one after another; results are shared by caching."""

    listener: Listener
    options: Options
    identities: Identities | None = None
    edge: EdgeAccess = field(default_factory=EdgeAccess)
    anchors: tuple[x509.Certificate, ...] = ()
    """Authorities that may verify the listener; empty: unknown."""
    unreadable: tuple[str, ...] = ()
    """For a home: processes whose sockets the kernel did not show."""
    home: Home | None = None
    """The home of its cluster; None: unknown."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _shown: list[Handshake | None] = field(default_factory=list)
    _shown_before: list[Flight | None] = field(default_factory=list)
    _unreachable: list[str] = field(default_factory=list)

    @property
    def unreachable(self) -> str:
        """Why no connection can be made; empty when one can, or when its kind needs none."""
        if self.listener.kind not in EXAMINED_KINDS:
            return ""
        with self._lock:
            if any(self._shown):
                return ""
            if not self._unreachable:
                self._unreachable.append(self._knock())
            return self._unreachable[0]

    @property
    def has_ended(self) -> bool:
        """Whether nobody listens there any more, because its process, or its job, has ended.

        The job's own word does not count: while the JVM runs, or else the driver has an identity, silence is a finding.
        """
        job_id = self.listener.job_id
        if not job_id or not self._knock():
            return False
        if self.home is None:
            return True
        if (jvm := _JVM.fullmatch(self.listener.name)) is not None:
            return not psutil.pid_exists(int(jvm[1]))
        return not paths_matching(self.home.root, f"work/*/jobs/{job_id}/driver-*/identity/{CHAIN_FILE}")

    def _knock(self) -> str:
        try:
            socket.create_connection(self.listener.address, timeout=self.options.timeout).close()
        except OSError as error:
            return error.strerror or str(error) or type(error).__name__
        return ""

    def client(
        self,
        credential: Credential | None = None,
        *,
        alpn: tuple[str, ...] = OFFERED_PROTOCOLS,
        server_name: bytes | None = None,
        signatures: tuple[int, ...] = GOOD_SIGNATURES,
    ) -> Tls13Client:
        """A TLS 1.3 client, not connected yet."""
        name = self.listener.asked_name if server_name is None else server_name
        return Tls13Client(
            self.listener.address,
            credential=credential,
            alpn=alpn,
            server_name=name,
            signatures=signatures,
            timeout=self.options.timeout,
        )

    def attempt(self, credential: Credential | None, *, alpn: tuple[str, ...] = OFFERED_PROTOCOLS) -> Verdict:
        """Connect with ``credential`` without sending data; returns the listener's reaction."""
        old = self.handshake is None and self.old_handshake is not None
        with self.old_client(credential, alpn=alpn) if old else self.client(credential, alpn=alpn) as client:
            try:
                client.connect()
            except ConnectionEnded as ended:
                return Verdict(ended.ending)
            return client.verdict(self.options.patience)

    def old_client(
        self, credential: Credential | None = None, *, alpn: tuple[str, ...] = OFFERED_PROTOCOLS
    ) -> OldClient:
        """A client of TLS 1.2 before its handshake."""
        return OldClient(
            self.listener.address,
            credential=credential,
            alpn=alpn,
            server_name=self.listener.asked_name,
            timeout=self.options.timeout,
        )

    @property
    def handshake(self) -> Handshake | None:
        """The handshake of a client without a certificate; None when TLS 1.3 is not possible."""
        with self._lock:
            if not self._shown:
                self._shown.append(self._shake_hands())
            return self._shown[0]

    @property
    def old_handshake(self) -> Flight | None:
        """The clear-text flight of a TLS 1.2 server; None when TLS 1.3 is possible, or no TLS at all."""
        if self.handshake is not None:
            return None
        with self._lock:
            if not self._shown_before:
                self._shown_before.append(self._greet())
            return self._shown_before[0]

    def _greet(self) -> Flight | None:
        """Greet with TLS 1.2. Anonymous suites come last, so that a server with a certificate shows it."""
        authenticated = tuple(suite for suite in WEAK_TLS12_SUITES if suite not in ANONYMOUS_SUITES)
        for suites in ((*GOOD_TLS12_SUITES, *authenticated), ANONYMOUS_SUITES):
            hello = ClientHello(
                versions=(Version.TLS12,),
                suites=suites,
                alpn=OFFERED_PROTOCOLS,
            )
            try:
                flight = self.old_flight(hello)
            except (OSError, WireError):
                continue
            if isinstance(flight, Flight):
                return flight
        return None

    @property
    def certificate_requested(self) -> bool | None:
        """Whether it asks clients for a certificate; None when no handshake is possible."""
        if self.handshake is not None:
            return self.handshake.certificate_requested
        return None if self.old_handshake is None else self.old_handshake.certificate_requested

    @property
    def certificates(self) -> tuple[x509.Certificate, ...]:
        """The chain that it shows, leaf first; empty when no handshake is possible."""
        if self.handshake is not None:
            return self.handshake.certificates
        return () if self.old_handshake is None else self.old_handshake.certificates

    def _shake_hands(self) -> Handshake | None:
        try:
            with self.client() as client:
                return client.connect()
        except (OSError, WireError):
            return None

    def offer(self, hello: ClientHello) -> Answer:
        """Send one hello, with the listener's name if it names none; see :func:`sluice.audit.wire.probe.offer`."""
        return offer(self.listener.address, self._named(hello), self.options.timeout)

    def old_flight(self, hello: ClientHello) -> Flight | Ending:
        """Send one hello of TLS 1.2 or older, with the name as well; see :func:`sluice.audit.wire.probe.old_flight`."""
        return old_flight(self.listener.address, self._named(hello), self.options.timeout)

    def _named(self, hello: ClientHello) -> ClientHello:
        """Add the server name: a server for several names may refuse a client without one, which proves nothing."""
        return hello if hello.server_name else replace(hello, server_name=self.listener.asked_name)

    @property
    def welcome(self) -> Credential | None:
        """A credential that the listener must admit; None when none can be certified."""
        if self.identities is None:
            return None
        return self.identities.credential(Case.WELCOME, self.listener)

    @property
    def trust_domain(self) -> str:
        """The trust domain of the listener's identity; a made-up one when it has none."""
        for uri in uris_of(self.leaf):
            if uri.startswith("spiffe://"):
                return uri.removeprefix("spiffe://").partition("/")[0]
        return "audit.invalid"

    @property
    def leaf(self) -> x509.Certificate | None:
        """The listener's own certificate."""
        return self.certificates[0] if self.certificates else None

    @property
    def peer_uri(self) -> str:
        """A SPIFFE ID that the listener would admit if it were certified."""
        return str(welcome_identity(self.listener, self.trust_domain))

    def forged_leaf(self) -> rogue.ForgedLeaf:
        """A leaf that the listener would admit if the right authority had signed it."""
        return rogue.ForgedLeaf.at(self.options.clock(), self.peer_uri)


def welcome_identity(listener: Listener, trust_domain: str) -> SpiffeId:
    """An identity that the channel table admits to ``listener``."""
    roles = MAY_CONNECT.get(listener.channel or Channel.RPC) or {Role.TASKMANAGER}
    job = listener.job_id or _ANY_JOB
    if Role.TASKMANAGER in roles:
        return SpiffeId.process(trust_domain, Role.TASKMANAGER, "audit")
    if Role.DRIVER in roles:
        return SpiffeId.driver(trust_domain, job)
    return SpiffeId.process(trust_domain, min(roles), "audit")


def uris_of(certificate: x509.Certificate | None) -> tuple[str, ...]:
    """URI names of a certificate; damaged ones count as none."""
    if certificate is None:
        return ()
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ()
    return tuple(names.get_values_for_type(x509.UniformResourceIdentifier))
