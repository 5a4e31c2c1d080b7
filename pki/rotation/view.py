"""The holders of certificates that a home knows, and the authorities that they trust and present.

The sources are reports of local processes, identity directories, reports to the online authority, and its ledger.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from sluice.core import Home, InvalidIdentity, PkiError, StoreError, paths_matching
from sluice.pki.authorities import Keep, Rotation, Source, TrustHolder
from sluice.pki.ca import read_subscribers, subscribers_path
from sluice.pki.identities import read_identity
from sluice.pki.ledger import NOTED_KINDS, LedgerRecord, ledger_path, read_ledger, side_of
from sluice.pki.revocation import identity_directories
from sluice.pki.rotation.subscribers import subscriber_holders
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.trust import Alive, is_running, read_reports, sides_of
from sluice.pki.x509 import issuer_id, key_id

RECORD_PRECISION = dt.timedelta(milliseconds=1)
"""Resolution of times in the ledger."""


def holders(
    home: Home, now: dt.datetime, *, alive: Alive = is_running, revoked: Collection[int] = frozenset()
) -> tuple[TrustHolder, ...]:
    """All identity directories of ``home`` and the processes that report there, and all remote subscribers.

    ``revoked``: serial numbers to ignore.
    """
    known = frozenset(identifier for side in sides_of(home.pki) for identifier in side.known)
    found: list[TrustHolder] = []
    for directory in identity_directories(home):
        files = _files(home, directory, now)
        if files is None:
            continue
        found.append(_known(files, known))
        found += [_known(each, known) for each in _processes(home, directory, files.identity, alive)]
    found += [_known(each, known) for each in _followers(home, now, revoked)]
    return tuple(found)


def _files(home: Home, directory: Path, now: dt.datetime) -> TrustHolder | None:
    place = _place(home, directory)
    try:
        material, _ = read_identity(directory)
        return TrustHolder(
            Source.FILES,
            str(material.spiffe_id),
            place,
            issuer=issuer_id(material.leaf),
            anchors=tuple(key_id(anchor) for anchor in material.anchors),
            usable=now <= material.leaf.not_valid_after_utc,
        )
    except (PkiError, ValueError) as error:
        if not directory.exists():
            return None  # a job's directory goes with the job
        return TrustHolder(Source.FILES, place, place, problem=f"the identity cannot be read: {error}")


def _processes(home: Home, directory: Path, identity: str, alive: Alive) -> Iterator[TrustHolder]:
    place = _place(home, directory)
    try:
        reports, unreadable = read_reports(directory, alive=alive)
    except StoreError as error:
        yield TrustHolder(Source.PROCESS, identity, place, problem=error.what)
        return
    for report in reports:
        yield TrustHolder(
            Source.PROCESS,
            report.identity,
            place,
            program=report.program,
            pid=report.pid,
            issuer=report.issuer,
            anchors=report.anchors,
            crls=tuple(report.crls.items()),
        )
    for bad in unreadable:
        yield TrustHolder(Source.PROCESS, identity, place, pid=bad.pid, problem=bad.why)


def _followers(home: Home, now: dt.datetime, revoked: Collection[int]) -> Iterator[TrustHolder]:
    place = _place(home, subscribers_path(home.pki))
    try:
        record = read_subscribers(home.pki)
    except StoreError as error:
        yield TrustHolder(Source.FOLLOWER, place, place, problem=error.what)
        return
    yield from subscriber_holders(record, now, place, revoked)


def _known(holder: TrustHolder, known: frozenset[str]) -> TrustHolder:
    """Mark a holder as unknown if it neither trusts nor presents an authority of this home, unless it has expired."""
    if holder.problem or not holder.usable or known & {holder.issuer, *holder.anchors}:
        return holder
    return replace(holder, problem="neither its certificate nor its trust is of an authority of this home")


def remembered(  # noqa: PLR0917  all inputs of the view
    home: Home,
    rotation: Rotation,
    unwanted: Keep,
    seen: tuple[TrustHolder, ...],
    now: dt.datetime,
    revoked: Collection[int] = frozenset(),
) -> tuple[TrustHolder, ...]:
    """Remote identities whose last certificate in the ledger is of the generation ``unwanted`` and still valid.

    Without identities that have a directory here or subscribe, which other checks cover, and without revoked or ended
    ones.
    """
    path = ledger_path(home.pki)
    if not path.exists():
        return ()
    here = {holder.identity for holder in seen if holder.source in {Source.FILES, Source.FOLLOWER}}
    # Offline certificates are recorded late, and are in a directory here or unknown.
    latest = {
        (side, record.identity): record
        for record in read_ledger(path)
        if (side := side_of(record)) in rotation.generations
        and record.kind not in NOTED_KINDS
        and int(record.serial, 16) not in revoked
    }
    return tuple(
        TrustHolder(
            Source.LEDGER, identity, f"ledger record {record.sequence}", issuer=rotation.generations[side].of(unwanted)
        )
        for (side, identity), record in latest.items()
        if side is not None
        and identity not in here
        and dt.datetime.fromisoformat(record.not_after) > now
        and _signed_by(record, rotation, unwanted)
        and not _ended(home, identity)
    )


def _signed_by(record: LedgerRecord, rotation: Rotation, unwanted: Keep) -> bool:
    issued = dt.datetime.fromisoformat(record.time)
    if unwanted is Keep.OLD:
        return rotation.activated_at is None or issued <= rotation.activated_at
    if rotation.activating_at is None or issued < rotation.activating_at - RECORD_PRECISION:
        return False
    return rotation.reverted_at is None or issued <= rotation.reverted_at


def _ended(home: Home, identity: str) -> bool:
    """Whether it is a driver or an executor that ran here and ended: its directory exists, its key does not."""
    try:
        spiffe_id = SpiffeId.parse(identity)
    except InvalidIdentity:
        return False
    job = spiffe_id.job_id
    if not job:
        return False
    if spiffe_id.role is Role.EXECUTOR and paths_matching(home.root, f"work/*/jobs/{job}/executor-{spiffe_id.name}"):
        return True
    drivers = paths_matching(home.root, f"work/*/jobs/{job}/driver-*")
    return bool(drivers) and not any((driver / "identity" / "chain.pem").exists() for driver in drivers)


def _place(home: Home, directory: Path) -> str:
    return str(directory.relative_to(home.root))
