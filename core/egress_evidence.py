"""Messages between processes about the outgoing connections of jobs (ADR 109).

A *row* is one connection that a job tried to make, or several equal ones that were refused. The broker beside the job's
sandbox gives it an id. Processes pass it on until it is in the audit log, at least once.
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from sluice.core.addresses import host_port

MAX_EGRESS_ROWS = 500
"""Rows in one report."""
MAX_EGRESS_TARGETS = 1000
"""Different destinations of open connections that one process may have."""
MAX_EGRESS_QUESTION_BYTES = 4 << 20
MAX_EGRESS_ANSWER_BYTES = 1 << 20
EGRESS_PATH = "/auth/egress"
"""Where the auth service of another machine takes :class:`EgressQuestion`, from JobManagers alone."""

_Id = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
_Text = Annotated[str, msgspec.Meta(max_length=256)]
_Label = Annotated[str, msgspec.Meta(max_length=32)]
_Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, lt=1e11)]


class _Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class EgressVerdict(enum.StrEnum):
    """What became of a connection."""

    ALLOWED = "allowed"
    REFUSED = "refused"
    WOULD_REFUSE = "would be refused"
    """It was let through, because ``egress.mode`` is ``audit``."""


class EgressRow(_Message, frozen=True):
    """A connection out of a job's sandbox.

    Attributes:
        id: of the row; the same when the row is sent again.
        process: ``driver`` or ``executor/3``.
        protocol: ``tcp``, ``udp``, ``icmp``, ``dns``, or what else was tried: ``unix``, ``raw``, ``packet``, ``call``.
        host: the name that the job asked for, or the call that it made; empty when it asked for an address.
        address: the IP address that it asked for; empty when it asked for a name.
        reason: why it was refused, or ended.
        opened_at: in epoch seconds.
        duration_ms: milliseconds until it ended.
        bytes_up: bytes that the job sent.
        bytes_down: bytes that it got.
        count: for how many connections this row stands.
        open: it has not ended yet; another row of the same id follows.
    """

    id: _Id
    job_id: Annotated[str, msgspec.Meta(max_length=64)]
    attempt: _Count
    process: _Label
    protocol: _Label
    host: _Text
    address: Annotated[str, msgspec.Meta(max_length=64)]
    port: _Port
    verdict: EgressVerdict
    reason: _Text = ""
    opened_at: _Seconds = 0.0
    duration_ms: _Count = 0
    bytes_up: _Count = 0
    bytes_down: _Count = 0
    count: Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)] = 1
    open: bool = False

    @property
    def target(self) -> str:
        """Host or address, and port, as in ``api.example.com:443``; without a port where there is none."""
        if not self.port:
            return self.host or self.address
        return EgressTarget(job_id=self.job_id, host=self.host or self.address, port=self.port).authority


ANY_PORT = 0
"""In a question about a name: whether the policy allows any port of it."""


class EgressTarget(_Message, frozen=True):
    """Where a job has open connections to, or wants to: a name, or an IP address without brackets."""

    job_id: Annotated[str, msgspec.Meta(max_length=64)]
    host: _Text
    port: _Port

    @property
    def authority(self) -> str:
        """As in ``CONNECT``: an IPv6 address is in brackets."""
        return host_port(self.host, self.port)


class EgressReport(_Message, frozen=True):
    """From the broker beside a job's sandbox to the JobManager; ``dropped`` rows were lost for lack of space."""

    rows: Annotated[tuple[EgressRow, ...], msgspec.Meta(max_length=MAX_EGRESS_ROWS)] = ()
    targets: Annotated[tuple[EgressTarget, ...], msgspec.Meta(max_length=MAX_EGRESS_TARGETS)] = ()
    dropped: _Count = 0


class EgressReceipt(_Message, frozen=True):
    """The JobManager's answer to a report.

    Attributes:
        recorded: the rows are in the audit log. False: send them again.
        decided: the policy was asked about the targets. False: it could not be asked.
        refused: numbers of the targets that the policy does not allow (any more).
    """

    recorded: bool
    decided: bool
    refused: Annotated[tuple[_Count, ...], msgspec.Meta(max_length=MAX_EGRESS_TARGETS)] = ()


class EgressDecision(_Message, frozen=True):
    """Whether the policy allows a destination; ``decided`` False: it could not be asked, and nothing is allowed."""

    decided: bool
    allowed: bool = False


class EgressJob(_Message, frozen=True):
    """A job as the policy sees it."""

    id: Annotated[str, msgspec.Meta(max_length=64)]
    name: Annotated[str, msgspec.Meta(max_length=1024)]
    owner: _Text
    roles: Annotated[tuple[str, ...], msgspec.Meta(max_length=64)] = ()
    groups: Annotated[tuple[str, ...], msgspec.Meta(max_length=256)] = ()


class ReportedRow(_Message, frozen=True):
    """A row, and who reported it: the path of its identity, as in ``taskmanager/tm-1``."""

    row: EgressRow
    reporter: _Text


class EgressQuestion(_Message, frozen=True):
    """From the JobManager to the auth service; ``lost``: number of lost rows by who lost them."""

    jobs: tuple[EgressJob, ...] = ()
    rows: tuple[ReportedRow, ...] = ()
    targets: tuple[EgressTarget, ...] = ()
    lost: dict[str, int] = {}


class EgressAnswer(_Message, frozen=True):
    """The answer: which targets the policy allows, in their order; the rows are in the audit log."""

    allowed: tuple[bool, ...] = ()
