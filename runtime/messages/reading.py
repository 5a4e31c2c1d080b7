"""Messages with data read from processes: logs, pages of Spark's UI, evidence of connections."""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from sluice.pki.tls import PeerCertificate
from sluice.runtime.messages.base import Message


class LogChunk(Message, frozen=True):
    """A chunk of a log file: ``data`` (UTF-8, undecodable bytes replaced) from ``offset`` to ``next_offset``."""

    data: str
    offset: int
    next_offset: int
    end: bool


class UiRequest(Message, frozen=True):
    """A request for a page of Spark's UI: path and query at the driver, and the UI's base path for the browser."""

    path: str
    query: str
    base: str


class UiPage(Message, frozen=True):
    """The answer of Spark's UI. Of its headers, it has only the media type and the location of a redirect."""

    status: int
    media: str = ""
    location: str = ""
    body: bytes = b""


MAX_EVENT_LOG_CHUNK_BYTES = 1 << 20
"""Maximum number of bytes of an event log in one message."""


class EventLogChunk(Message, frozen=True):
    """A chunk of the compressed event log of an ended driver. ``cut``: events are missing in the log.

    ``end`` means that nothing follows. Processes that relay it do not parse it, because the job has written it.
    """

    data: Annotated[bytes, msgspec.Meta(max_length=MAX_EVENT_LOG_CHUNK_BYTES)]
    end: bool
    cut: bool = False


class EventLogPiece(Message, frozen=True):
    """A chunk of the event log of an ended job. After the ``last`` one, its Spark UI can be shown."""

    job_id: str
    offset: Annotated[int, msgspec.Meta(ge=0)]
    data: Annotated[bytes, msgspec.Meta(max_length=MAX_EVENT_LOG_CHUNK_BYTES)]
    last: bool


class EndedUiState(enum.StrEnum):
    """Whether a TaskManager can show the Spark UI of an ended job."""

    ABSENT = "absent"
    """The TaskManager has no event log of this job."""
    LOADING = "loading"
    """The TaskManager is reading the event log."""
    SHOWN = "shown"
    FAILED = "failed"
    """The event log could not be read."""


class EndedUiAnswer(Message, frozen=True):
    """A page of the Spark UI of an ended job, or the reason ``why`` there is none."""

    state: EndedUiState
    why: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    page: UiPage | None = None


class ConnectionEvidence(Message, frozen=True):
    """One mutual TLS connection as one of its ends observed it; ``opened_at`` is in epoch seconds."""

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
    """The latest observed connections, without ``dropped`` earlier ones."""

    connections: tuple[ConnectionEvidence, ...] = ()
    dropped: int = 0
