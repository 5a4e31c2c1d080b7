"""The vocabulary of an audit: listeners, checks, evidence, findings. Values only; no I/O."""

from __future__ import annotations

import datetime as dt
import enum
from dataclasses import dataclass

import msgspec

from sluice.core import host_port, is_ip_address
from sluice.pki import Channel

SCHEMA_VERSION = 1
"""Version of the JSON report; it grows when a field changes its meaning or is removed, not when one is added."""


class Severity(enum.StrEnum):
    """Severity of a finding, mildest first."""

    INFO = "info"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """For comparing."""
        return list(Severity).index(self)


class Kind(enum.StrEnum):
    """The expected kind of a listener."""

    MUTUAL = "mutual"
    """TLS 1.3 that requires the client's certificate."""
    SERVER = "server"
    """TLS 1.3 with a server certificate; a layer above authenticates the client."""
    LOCAL = "local"
    """Without TLS, and therefore only for this machine."""
    SOCKET = "socket"
    """A unix socket."""
    HTTP = "http"
    """An HTTP API without TLS; only for declared foreign targets."""
    CHALLENGES = "challenges"
    """HTTP without TLS that answers an ACME server's challenges (http-01), and nothing else."""
    UNDECLARED = "undeclared"
    """Undeclared."""
    HOME = "home"
    """Not a listener: the files of a local cluster."""
    CODE = "job code"
    """Not a listener: a place from which the insider audit's job makes its attempts."""


TLS_KINDS = frozenset({Kind.MUTUAL, Kind.SERVER})
EXAMINED_KINDS = TLS_KINDS | {Kind.HTTP, Kind.CHALLENGES}
"""Kinds that checks connect to."""
NO_LISTENERS = frozenset({Kind.HOME, Kind.CODE})
"""Kinds that are no listeners."""


def a_labels(name: str) -> str:
    """``name`` in the form of certificates: lower case, ASCII, no final dot; ValueError if impossible."""
    try:
        return name.rstrip(".").encode("idna").decode("ascii").lower()
    except UnicodeError as error:
        raise ValueError(f"{name!r} is not a host name: {error}") from error


class Listener(msgspec.Struct, frozen=True, kw_only=True):
    """Something that accepts connections. ``path`` is that of a unix socket or of a home, else empty."""

    name: str
    kind: Kind
    host: str = ""
    port: int = 0
    path: str = ""
    channel: Channel | None = None
    job_id: str = ""
    process: str = ""
    bound: tuple[str, ...] = ()
    """Addresses it is bound to, from the kernel's table; empty when unknown."""
    server_name: str = ""
    container: str = ""
    """The container in whose network it is."""
    foreign: bool = False
    """Whether it belongs to a foreign system, to which our rules do not apply: see :class:`Foreign`."""

    @property
    def address(self) -> tuple[str, int]:
        """Where to connect to."""
        return self.host, self.port

    @property
    def asked_name(self) -> bytes:
        """The server_name that clients send: none for an address (RFC 6066, 3), and names as A-labels."""
        if not self.server_name or is_ip_address(self.server_name):
            return b""
        return a_labels(self.server_name).encode()

    @property
    def place(self) -> str:
        """Where it is, for people."""
        if self.path:
            return self.path
        return host_port(self.host, self.port)


class Outcome(enum.StrEnum):
    """The outcome of a check."""

    PASSED = "passed"
    FINDING = "finding"
    NOT_EXAMINED = "not examined"


@dataclass(frozen=True, slots=True)
class Evidence:
    """The action and the observation."""

    outcome: Outcome
    done: str
    seen: str
    silence: bool = False
    """Whether it depends on a timeout, which a busy machine can cause too."""
    severity: Severity | None = None
    """Severity of this finding; None: that of the check."""


def passed(done: str, seen: str) -> Evidence:
    """It is as expected."""
    return Evidence(Outcome.PASSED, done, seen)


def finding(done: str, seen: str, *, silence: bool = False, severity: Severity | None = None) -> Evidence:
    """It is not as expected."""
    return Evidence(Outcome.FINDING, done, seen, silence, severity)


def not_examined(why: str) -> Evidence:
    """The check does not apply, or cannot be done."""
    return Evidence(Outcome.NOT_EXAMINED, "", why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """How a check differs for a foreign server. None: as for ours."""

    title: str | None = None
    severity: Severity | None = None
    expected: str | None = None
    remedy: str | None = None


class Accepted(msgspec.Struct, frozen=True):
    """A known finding that does not count until ``expires``."""

    reason: str
    expires: dt.date


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One check on one listener."""

    check: str
    title: str
    listener: str
    place: str
    severity: Severity
    outcome: Outcome
    done: str
    expected: str
    references: tuple[str, ...]
    seen: str
    remedy: str
    problem: str = ""
    """The name of a finding of this check."""
    seconds: float = 0.0
    accepted: Accepted | None = None

    @property
    def open_finding(self) -> bool:
        """Whether it is a finding that is not accepted."""
        return self.outcome is Outcome.FINDING and self.accepted is None


class CertificateFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One certificate of the chain that a listener shows."""

    subject: str
    issuer: str
    key: str
    signature: str
    not_before: dt.datetime
    not_after: dt.datetime
    spiffe_ids: tuple[str, ...]
    sha256: str


class Negotiated(msgspec.Struct, frozen=True, kw_only=True):
    """What a listener negotiates with a client that offers all secure options; below TLS 1.3 as far as visible."""

    version: str
    suite: str
    group: str
    post_quantum_groups: tuple[str, ...]
    groups: tuple[str, ...]
    suites: tuple[str, ...]
    alpn: str
    signature: str
    client_certificate_requested: bool
    stapled: bool
    chain: tuple[CertificateFacts, ...]


class ListenerReport(msgspec.Struct, frozen=True, kw_only=True):
    """A listener and what it negotiates; None without a handshake."""

    listener: Listener
    negotiated: Negotiated | None = None
    unreachable: str = ""
    """Why no connection was possible; empty if one was made, or none was tried."""

    @property
    def spoken(self) -> str:
        """What it speaks, in a few words: a version of TLS, "no TLS", "unreachable", …"""
        if self.unreachable:
            return "unreachable"
        if self.negotiated is not None:
            return self.negotiated.version
        return _WITHOUT_TLS.get(self.listener.kind, "no TLS")


_WITHOUT_TLS = {
    Kind.SOCKET: "unix socket",
    Kind.LOCAL: "no TLS, loopback",
    Kind.CHALLENGES: "no TLS, challenges only",
    Kind.HOME: "",
    Kind.CODE: "",
}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was examined."""

    schema: int = SCHEMA_VERSION
    subject: str
    started_at: dt.datetime
    seconds: float
    listeners: tuple[ListenerReport, ...]
    results: tuple[Result, ...]

    def findings(self) -> tuple[Result, ...]:
        """Findings that are not accepted, worst first."""
        found = [result for result in self.results if result.open_finding]
        return tuple(sorted(found, key=lambda result: -result.severity.rank))

    def failed(self, fail_on: Severity) -> bool:
        """Whether there is a finding at or above ``fail_on``."""
        return any(result.severity.rank >= fail_on.rank for result in self.findings())
