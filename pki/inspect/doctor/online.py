"""Checks the listeners that processes of a home have announced: certificates, and the clock of their machine."""

from __future__ import annotations

import contextlib
import datetime as dt
import email.utils
import http.client
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import psutil

from sluice.core import Home, PkiError, StoreError, read_bounded
from sluice.pki.identities import leaf_in
from sluice.pki.inspect.doctor.facts import ListenerFact
from sluice.pki.inspect.findings import Finding
from sluice.pki.inspect.live import WEB_PROTOCOLS, Address, Hello, shake_hands
from sluice.pki.spiffe_id import Role
from sluice.pki.tls import unverified_client_context
from sluice.pki.x509 import DAMAGED, DAMAGED_JSON, load_certificate

MAX_ANNOUNCEMENT_BYTES = 16 << 10
CLOCK_SECONDS = 5.0
"""How long a peer may take to answer with its time."""
CLOCK_TOLERANCE = dt.timedelta(minutes=2)
ATTEMPTS = 3
PAUSE_SECONDS = 1.0
"""A renewed certificate is presented within this time: after a difference, the check is repeated once."""

_Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
_ROLES = {"ca": Role.CA, "jobmanager": Role.JOBMANAGER, "envoy": Role.GATEWAY}


class _Announcement(msgspec.Struct, frozen=True):
    """The relevant fields of the files below ``run/endpoints``, whoever wrote them."""

    name: str = ""
    """Empty where only one process of the role can be: Envoy."""
    pid: int = 0
    mutual: tuple[str, _Port] | None = None
    enrolment: tuple[str, _Port] | None = None
    rpc: tuple[str, _Port] | None = None
    blob: tuple[str, _Port] | None = None
    host: str = ""
    port: _Port = 0


@dataclass(frozen=True, slots=True)
class Announced:
    """One announced process; ``clock`` is a listener that answers HTTP without authentication."""

    file: Path
    role: Role
    directory: Path
    listeners: tuple[Address, ...]
    pid: int
    """0 if the announcement does not say."""
    clock: Address | None = None

    @property
    def alive(self) -> bool | None:
        """Whether its process runs; None: unknown."""
        return psutil.pid_exists(self.pid) if self.pid else None


def announced(home: Home) -> Iterator[Announced]:
    """The processes of ``home`` that have announced themselves; unreadable files are skipped."""
    for path in sorted((home.run / "endpoints").glob("*.json")):
        role = Role.CA if path.stem.startswith("ca-") else _ROLES.get(path.stem)
        if role is None:
            continue
        with contextlib.suppress(StoreError, *DAMAGED_JSON):
            found = msgspec.json.decode(read_bounded(path, MAX_ANNOUNCEMENT_BYTES), type=_Announcement)
            pairs = [found.mutual, found.enrolment, found.rpc, found.blob, (found.host, found.port)]
            listeners = tuple(dict.fromkeys(Address(*pair) for pair in pairs if pair is not None and pair[0]))
            yield Announced(
                path,
                role,
                home.identity(role, found.name) if found.name else _edge_directory(home),
                listeners,
                pid=found.pid,
                clock=None if found.enrolment is None else Address(*found.enrolment),
            )


def _edge_directory(home: Home) -> Path:
    """The identity that Envoy presents; homes of earlier versions had one identity for both sides."""
    directory = home.identity(Role.GATEWAY, "edge")
    return directory if directory.exists() else home.identity(Role.GATEWAY, "envoy")


def look_at(
    process: Announced, *, attempts: int = ATTEMPTS, pause: Callable[[float], None] = time.sleep
) -> Iterator[ListenerFact]:
    """The certificate that each listener of ``process`` presents, and the one in its directory."""
    for address in process.listeners:
        fact = _look(address, process.directory)
        for _ in range(attempts - 1):
            if fact.error or fact.presented == fact.expected:
                break
            pause(PAUSE_SECONDS)
            fact = _look(address, process.directory)
        yield fact


def _look(address: Address, directory: Path) -> ListenerFact:
    try:
        seen = shake_hands(address, Hello(alpn=WEB_PROTOCOLS))
        if not seen.chain:
            return ListenerFact(str(address), directory, error=f"no TLS 1.3: {seen.problem}")
        presented = load_certificate(seen.chain[0])
    except (PkiError, *DAMAGED) as error:
        return ListenerFact(str(address), directory, error=error.what if isinstance(error, PkiError) else str(error))
    return ListenerFact(str(address), directory, presented, leaf_in(directory))


def listener_findings(fact: ListenerFact) -> list[Finding]:
    """Decide on one listener."""
    if fact.error:
        return [
            Finding.error(
                "listener-unreachable",
                fact.address,
                f"a process announces that it listens here: {fact.error}",
                why="it hangs, or was killed and has left its announcement",
                remedy="sluice status; sluice down; sluice up",
            )
        ]
    if fact.expected is None or fact.presented is None or fact.presented == fact.expected:
        return []
    return [
        Finding.error(
            "listener-stale",
            fact.address,
            f"it presents certificate {fact.presented.serial_number:x}, and {fact.directory} has "
            f"{fact.expected.serial_number:x}",
            why="the process could not load the new one (its log says why), or another process has the port: "
            "the presented one will expire",
            remedy=f"sluice pki verify {shlex.quote(str(fact.directory))}; then restart the process",
        )
    ]


def stale_findings(process: Announced) -> list[Finding]:
    """Findings about an announcement whose process is gone, without connecting."""
    if process.alive is not False:
        return []
    return [
        Finding.warning(
            "announcement-stale",
            str(process.file),
            "the process that has announced itself here does not run",
            why="it was killed; its clients connect to an address that another program may have by now",
            remedy=f"rm {shlex.quote(str(process.file))}, or `sluice up`, which removes it",
        )
    ]


def peer_time(address: Address) -> dt.datetime | None:
    """The peer's time, from the Date header (RFC 9110, 6.6.1) of an answer; None: it has none."""
    connection = http.client.HTTPSConnection(
        address.host, address.port, timeout=CLOCK_SECONDS, context=unverified_client_context()
    )
    try:
        connection.request("HEAD", "/")
        told = connection.getresponse().getheader("Date")
        return None if told is None else email.utils.parsedate_to_datetime(told)
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def clock_findings(address: str, theirs: dt.datetime | None, ours: dt.datetime) -> list[Finding]:
    """Compare two clocks; no finding for a peer without a time."""
    if theirs is None or theirs.tzinfo is None or abs(theirs - ours) <= CLOCK_TOLERANCE:
        return []
    return [
        Finding.warning(
            "peer-clock",
            address,
            f"its clock says {theirs:%Y-%m-%d %H:%M:%S} UTC, and this machine's {ours:%Y-%m-%d %H:%M:%S} UTC",
            why="certificates begin and end at the wrong time for one of the two",
            remedy="timedatectl status, on both",
        )
    ]


def process_findings(dead: tuple[str, ...], record: Path) -> list[Finding]:
    """One finding about all processes in the cluster's record that do not run."""
    if not dead:
        return []
    return [
        Finding.error(
            "process-dead",
            str(record),
            f"recorded as running, and not running: {', '.join(dead)}",
            why="they were killed: their work and their renewals do not happen",
            remedy="sluice down; sluice up",
        )
    ]
