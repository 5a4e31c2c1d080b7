"""Reports of running processes on the trust that they have loaded: ``<identity directory>/in-use/<pid>.json``.

A rotation goes on only when these reports show that all processes have followed. They decide nothing else, and forging
one requires write access to the identity itself. A process in a sandbox sees its identity read-only, and does not know
its pid outside. Its parent puts ``in-use/<pid>.place.json`` beside the identity (:class:`ReportPlace`), with the place
of its report; of that report only the loaded trust is used.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated

import msgspec
import psutil

from sluice.core import (
    StoreError,
    list_untrusted,
    make_private_directory,
    open_untrusted,
    remove_leftovers,
    remove_untrusted,
    write_secret,
)
from sluice.pki.x509 import DAMAGED_JSON

DIRECTORY = "in-use"
MAX_REPORT_BYTES = 64 << 10
MAX_REPORTS = 256
"""Most reports of one identity directory: more are an error."""
START_TOLERANCE_SECONDS = 1.0
"""Tolerated difference of two readings of a process's start: the kernel counts ticks, and programs round."""

PLACED_REPORT = "in-use.json"
"""The name of a report in the directory that a :class:`ReportPlace` names."""

_NAME = re.compile(r"([1-9][0-9]{0,9})(\.place)?\.json")
_KeyId = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{2}){1,64}$")]
_Text = Annotated[str, msgspec.Meta(max_length=2048)]

Alive = Callable[[int, float | None, float], bool]
"""Whether the process ``pid`` that started at the first time (None: any), and ran at the second one, still runs."""


class TrustReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One report; key identifiers and digests in hexadecimal, ``started`` in seconds since the epoch."""

    pid: Annotated[int, msgspec.Meta(gt=0, lt=1 << 31)]
    started: Annotated[float, msgspec.Meta(ge=0, lt=1e11)]
    identity: _Text
    program: Annotated[str, msgspec.Meta(pattern=r"^[ -~]{0,64}\Z")]
    leaf: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
    issuer: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{2}){0,64}$")]
    anchors: Annotated[tuple[_KeyId, ...], msgspec.Meta(max_length=32)]
    crls: Annotated[dict[_KeyId, Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(max_length=32)]
    loaded_at: Annotated[dt.datetime, msgspec.Meta(tz=True)]


class ReportPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a process reports that cannot write beside its identity: an absolute directory.

    ``pid`` is of the process that its parent watches, ``identity`` the only one that it may report on.
    """

    pid: Annotated[int, msgspec.Meta(gt=0, lt=1 << 31)]
    started: Annotated[float, msgspec.Meta(ge=0, lt=1e11)]
    identity: _Text
    reports: Annotated[str, msgspec.Meta(pattern="^/", max_length=4096)]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An unreadable report of a running process."""

    path: Path
    pid: int
    why: str


def is_running(pid: int, started: float | None = None, seen: float = 0.0) -> bool:
    """Whether a process runs, as :data:`Alive`; a zombie does not.

    The process with this pid when the report was written (``seen``) is the reporter, even if its start looks different
    because the clock was set since.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        began = process.create_time()
        same = started is None or abs(began - started) <= START_TOLERANCE_SECONDS or began < seen
        return same and process.status() != psutil.STATUS_ZOMBIE
    return False


def write_report(directory: Path, report: TrustReport) -> None:
    """Put ``report`` beside the identity in ``directory``, in place of the one before."""
    place = make_private_directory(directory / DIRECTORY)
    name = f"{report.pid}.json"
    remove_leftovers(place, name)
    write_secret(place / name, msgspec.json.encode(report) + b"\n")


def place_reports(directory: Path, pid: int, identity: str, reports: Path) -> None:
    """Record that the running process ``pid`` reports on ``identity`` in the directory ``reports``.

    Raises:
        StoreError: it cannot be written.
    """
    try:
        started = psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return  # it has ended already
    place = ReportPlace(pid=pid, started=started, identity=identity, reports=str(reports))
    folder = make_private_directory(directory / DIRECTORY)
    write_secret(folder / f"{pid}.place.json", msgspec.json.encode(place) + b"\n")


def remove_report(directory: Path, pid: int) -> None:
    """Remove the report of a process that ends normally."""
    with contextlib.suppress(OSError):
        (directory / DIRECTORY / f"{pid}.json").unlink(missing_ok=True)


def read_reports(directory: Path, *, alive: Alive = is_running) -> tuple[list[TrustReport], list[Unreadable]]:
    """The reports of running processes on the identity in ``directory``, and the unreadable ones.

    Reports of ended processes are removed.

    Raises:
        StoreError: there are more than :data:`MAX_REPORTS`.
    """
    found: list[TrustReport] = []
    unreadable: list[Unreadable] = []
    names = [name for name in list_untrusted(directory, DIRECTORY) if _NAME.fullmatch(name)]
    if len(names) > MAX_REPORTS:
        raise StoreError(f"{directory / DIRECTORY} holds more than {MAX_REPORTS} reports", "remove those that are old")
    for name in names:
        pid, path = int(name.partition(".")[0]), directory / DIRECTORY / name
        seen, why = 0.0, ""
        report: TrustReport | None = None
        try:
            with open_untrusted(directory, DIRECTORY, name) as file:
                seen = os.fstat(file.fileno()).st_mtime
                data = _bounded(file, path)
            kind: type[ReportPlace | TrustReport] = ReportPlace if name.endswith(".place.json") else TrustReport
            told: ReportPlace | TrustReport = msgspec.json.decode(data, type=kind)
            why = "" if told.pid == pid else f"its report is of process {told.pid}"
            gone = not alive(pid, None if why else told.started, seen)
            if not gone and not why:
                report = _placed(told) if isinstance(told, ReportPlace) else told
                if report is None:
                    continue  # it has not reported yet
        except FileNotFoundError:
            continue  # it ended meanwhile
        except (StoreError, *DAMAGED_JSON) as error:
            gone, why = not alive(pid, None, seen), f"its report cannot be read: {error}"
        if gone:
            remove_untrusted(directory, DIRECTORY, name)
        elif report is None or why:
            unreadable.append(Unreadable(path, pid, why))
        else:
            found.append(report)
    return found, unreadable


def _placed(place: ReportPlace) -> TrustReport | None:
    """The report of the process of ``place``, with its pid outside of its sandbox; None if there is none yet.

    Raises:
        StoreError: the file cannot be a report of this process.
    """
    reports = Path(place.reports)
    try:
        with open_untrusted(reports.parent, reports.name, PLACED_REPORT) as file:
            told = msgspec.json.decode(_bounded(file, reports / PLACED_REPORT), type=TrustReport)
    except FileNotFoundError:
        return None
    if told.identity != place.identity:
        raise StoreError(f"{reports / PLACED_REPORT} is about another identity than {place.identity}")
    return msgspec.structs.replace(told, pid=place.pid, started=place.started)


def _bounded(file: IO[bytes], path: Path) -> bytes:
    data = file.read(MAX_REPORT_BYTES + 1)
    if len(data) > MAX_REPORT_BYTES:
        raise StoreError(f"{path} is larger than {MAX_REPORT_BYTES} bytes")
    return data
