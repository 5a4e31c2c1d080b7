"""What is read of processes: logs, pages of Spark's UI, evidence of their connections."""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from sluice.pki.tls import PeerCertificate
from sluice.runtime.messages.base import Message


class LogChunk(Message, frozen=True):
    """A piece of a log file: ``data`` (UTF-8, undecodable bytes replaced) from ``offset`` to ``next_offset``."""

    data: str
    offset: int
    next_offset: int
    end: bool


class UiRequest(Message, frozen=True):
    """A page of Spark's UI that somebody wants: path and query in the driver, and where the UI is for a browser."""

    path: str
    query: str
    base: str


class UiPage(Message, frozen=True):
    """What Spark's UI answered: nothing of its headers but the media type, and where a redirection leads."""

    status: int
    media: str = ""
    location: str = ""
    body: bytes = b""


MAX_EVENT_LOG_CHUNK_BYTES = 1 << 20
"""Most bytes of an event log in one message."""


class EventLogChunk(Message, frozen=True):
    """A piece of the compressed event log of a driver that has ended; ``cut``: events are missing in it.

    ``end`` says that nothing follows. Whoever passes it on does not look into it: the job has written it.
    """

    data: Annotated[bytes, msgspec.Meta(max_length=MAX_EVENT_LOG_CHUNK_BYTES)]
    end: bool
    cut: bool = False


class EventLogPiece(Message, frozen=True):
    """A piece of the event log of a job whose Spark UI is to be shown; after the ``last`` one it is."""

    job_id: str
    offset: Annotated[int, msgspec.Meta(ge=0)]
    data: Annotated[bytes, msgspec.Meta(max_length=MAX_EVENT_LOG_CHUNK_BYTES)]
    last: bool


class EndedUiState(enum.StrEnum):
    """Whether a TaskManager can show the Spark UI of a job that has ended."""

    ABSENT = "absent"
    """It has no event log of this job."""
    LOADING = "loading"
    """It reads the event log."""
    SHOWN = "shown"
    FAILED = "failed"
    """The event log could not be read."""


class EndedUiAnswer(Message, frozen=True):
    """A page of the Spark UI of a job that has ended, or ``why`` there is none."""

    state: EndedUiState
    why: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    page: UiPage | None = None


class ConnectionEvidence(Message, frozen=True):
    """One mutual TLS connection as one of its ends saw it; ``opened_at`` is in epoch seconds."""

    channel: str
    local: str
    peer: str
    direction: str
    protocol: str
    cipher: str
    address: str = ""
    opened_at: float = 0.0
    certificate: PeerCertificate | None = None


class Evidence(Message, frozen=True):
    """The latest connections that somebody saw; ``dropped``: so many earlier ones are not among them."""

    connections: tuple[ConnectionEvidence, ...] = ()
    dropped: int = 0
