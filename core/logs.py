"""How processes log: a line for each event on standard error, for people or as JSON for programs.

In JSON a line is one object: ``time`` (RFC 3339, UTC), ``level``, ``logger``, ``message``, ``process`` (as in its
certificate, ``taskmanager/tm-1``), ``identity`` (its SPIFFE ID), ``job`` when the event is about one, ``error`` with
type and traceback when there is one. Every event is on one line, so that foreign text in it cannot look like another
event.
"""

from __future__ import annotations

import datetime as dt
import logging
import re
import sys
from typing import Any, Literal

import msgspec

MAX_MESSAGE_CHARACTERS = 16_000
TEXT_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s"

_JOB = re.compile(r"\bjob(?:master/| )([0-9a-f]{32})\b")


class LogConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the processes of the cluster write to standard error."""

    format: Literal["text", "json"] = "text"
    """``json``: one object a line, with process, identity and job."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level of events that are written."""


class JsonFormatter(logging.Formatter):
    """One object for each event.

    Args:
        process: what this process is called.
        identity: its SPIFFE ID.
    """

    def __init__(self, process: str, identity: str) -> None:
        super().__init__()
        self._own = {key: value for key, value in (("process", process), ("identity", identity)) if value}

    def format(self, record: logging.LogRecord) -> str:
        """The line of ``record``."""
        message = record.getMessage()[:MAX_MESSAGE_CHARACTERS]
        event: dict[str, Any] = {
            "time": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": message,
            **self._own,
        }
        job = _JOB.search(message)
        if job is not None:
            event["job"] = job[1]
        if record.exc_info and record.exc_info[1] is not None:
            event["error"] = {
                "type": type(record.exc_info[1]).__name__,
                "traceback": self.formatException(record.exc_info)[-MAX_MESSAGE_CHARACTERS:],
            }
        return msgspec.json.encode(event).decode()


def configure_logging(config: LogConfig | None = None, process: str = "", identity: str = "") -> None:
    """Write events to standard error from now on; JSON includes ``process`` and ``identity``."""
    settings = config or LogConfig()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter(process, identity)
        if settings.format == "json"
        else logging.Formatter(TEXT_FORMAT, datefmt="%Y-%m-%dT%H:%M:%S")
    )
    logging.basicConfig(handlers=[handler], level=settings.level.upper())
