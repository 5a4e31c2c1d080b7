"""What is read of processes: logs, pages of Spark's UI, evidence of their connections."""

from __future__ import annotations

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
