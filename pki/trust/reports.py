"""Reports of running processes on the trust that they have loaded: ``<identity directory>/in-use/<pid>.json``.

A rotation goes on only when these reports say that everybody has followed. They decide about nothing else: whoever
could forge one could write the identity itself.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

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
"""Most reports that are read of one identity directory: more processes than that are not believed."""
START_TOLERANCE_SECONDS = 1.0
"""How far two readings of a process's start may be apart: the kernel's clock ticks, and programs round."""

_NAME = re.compile(r"([1-9][0-9]{0,9})\.json")
_KeyId = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{2}){1,64}$")]
_Text = Annotated[str, msgspec.Meta(max_length=2048)]

Alive = Callable[[int, float | None, float], bool]
"""Whether the process ``pid`` still runs that began at the given second (None: any), and ran at the other one."""


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


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A report of a running process that says nothing."""

    path: Path
    pid: int
    why: str


def is_running(pid: int, started: float | None = None, seen: float = 0.0) -> bool:
    """Whether a process runs, as :data:`Alive`; a zombie does not.

    Whoever had this pid when the report was written (``seen``) is the reporter, also when the clock was set since and
    its start seems to be another one.
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


def remove_report(directory: Path, pid: int) -> None:
    """The process ends in order."""
    with contextlib.suppress(OSError):
        (directory / DIRECTORY / f"{pid}.json").unlink(missing_ok=True)


def read_reports(directory: Path, *, alive: Alive = is_running) -> tuple[list[TrustReport], list[Unreadable]]:
    """The reports of running processes on the identity in ``directory``, and those that say nothing.

    Reports of processes that are gone are removed, whatever they say.

    Raises:
        StoreError: there are more than :data:`MAX_REPORTS`.
    """
    found: list[TrustReport] = []
    unreadable: list[Unreadable] = []
    names = [name for name in list_untrusted(directory, DIRECTORY) if _NAME.fullmatch(name)]
    if len(names) > MAX_REPORTS:
        raise StoreError(f"{directory / DIRECTORY} holds more than {MAX_REPORTS} reports", "remove those that are old")
    for name in names:
        pid, path, seen = int(name.removesuffix(".json")), directory / DIRECTORY / name, 0.0
        try:
            with open_untrusted(directory, DIRECTORY, name) as file:
                seen = os.fstat(file.fileno()).st_mtime
                data = file.read(MAX_REPORT_BYTES + 1)
            if len(data) > MAX_REPORT_BYTES:
                raise StoreError(f"{path} is larger than {MAX_REPORT_BYTES} bytes")  # noqa: TRY301  # as any other
            report = msgspec.json.decode(data, type=TrustReport)
            gone = report.pid == pid and not alive(pid, report.started, seen)
            why = "" if report.pid == pid else f"its report is of process {report.pid}"
        except FileNotFoundError:
            continue  # it ended while this looked
        except (StoreError, *DAMAGED_JSON) as error:
            report, gone, why = None, False, f"its report cannot be read: {error}"
        if gone or (why and not alive(pid, None, seen)):
            remove_untrusted(directory, DIRECTORY, name)
        elif report is None or why:
            unreadable.append(Unreadable(path, pid, why))
        else:
            found.append(report)
    return found, unreadable
