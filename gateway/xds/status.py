"""The status report: versions that Envoy was sent, accepted and rejected, and input refused before that."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from sluice.core import SECRET_MODE, Home, make_private_directory, read_bounded, write_atomic
from sluice.core.xds import SHORT_NAMES, XdsError

MAX_STATUS_BYTES = 64 << 10


class KindStatus(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The status of one kind of resources."""

    sent: str = ""
    accepted: str = ""
    rejected: str = ""
    """The version that Envoy rejected last; empty once it has accepted a newer one."""
    reason: str = ""
    at: float = 0.0
    """Time of the last event (Unix time)."""


class StatusDocument(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The content of the status file."""

    kinds: dict[str, KindStatus] = {}
    refused: dict[str, str] = {}
    """Refused input (``policy``, ``routes``, ``edge certificate``…) -> reason. Envoy keeps the previous input."""

    @property
    def problems(self) -> list[str]:
        """Rejected input and configuration; empty when there is none."""
        found = [f"{name} refused: {reason}" for name, reason in sorted(self.refused.items())]
        found += [
            f"Envoy rejected {name} {kind.rejected}: {kind.reason}"
            for name, kind in sorted(self.kinds.items())
            if kind.rejected
        ]
        return found


def status_file(home: Home, server: str) -> Path:
    """The status file of ``server`` (``auth``: listeners, routes, policy; ``envoy``: secrets)."""
    return home.run / f"xds-{server}.json"


def read_status(path: Path) -> StatusDocument | None:
    """The report at ``path``, or None without one. Raises :class:`~sluice.core.xds.messages.XdsError`."""
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(read_bounded(path, MAX_STATUS_BYTES), type=StatusDocument)
    except msgspec.MsgspecError as error:
        raise XdsError(f"{path} is damaged: {error}", "restart the process that writes it") from error


class XdsStatus:
    """The status report, in memory and in a file that is replaced with every change."""

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self.document = StatusDocument()
        self._write()

    def sent(self, kind: str, version: str) -> None:
        """Envoy was sent this version."""
        self._kind(kind).sent = version
        self._write()

    def accepted(self, kind: str, version: str) -> None:
        """Envoy accepted this version."""
        status = self._kind(kind)
        if status.accepted == version and not status.rejected:
            return
        status.accepted, status.rejected, status.reason = version, "", ""
        self._write()

    def rejected(self, kind: str, version: str, reason: str) -> None:
        """Envoy rejected this version and keeps the previous one."""
        status = self._kind(kind)
        status.rejected, status.reason = version, reason
        self._write()

    def refused(self, what: str, reason: str) -> None:
        """An input failed the checks and was not sent to Envoy."""
        if self.document.refused.get(what) != reason:
            self.document.refused[what] = reason
            self._write()

    def accepted_input(self, what: str) -> None:
        """An input passed the checks (again)."""
        if self.document.refused.pop(what, None) is not None:
            self._write()

    def close(self) -> None:
        """Remove the report when the server ends."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _kind(self, kind: str) -> KindStatus:
        status = self.document.kinds.setdefault(SHORT_NAMES[kind], KindStatus())
        status.at = self._clock()
        return status

    def _write(self) -> None:
        if self._path is not None:
            make_private_directory(self._path.parent)
            write_atomic(self._path, msgspec.json.encode(self.document), mode=SECRET_MODE)
