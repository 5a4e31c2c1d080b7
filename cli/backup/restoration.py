"""``sluice backup restore``: restores a home so that it can safely continue: revocations stay, nothing is replayed.

Everything is prepared in a directory beside the home, which then replaces the home in one step.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sluice.cli.audit_records import record
from sluice.cli.backup.archive import Progress
from sluice.cli.backup.checks import check_home
from sluice.cli.backup.encryption import Keys
from sluice.cli.backup.errors import BackupFailed, RestoreRefused
from sluice.cli.backup.evidence import GATEWAY, Evidence, gather, uncovered
from sluice.cli.backup.extraction import extract
from sluice.cli.backup.manifest import Manifest
from sluice.cli.cluster import launcher_lock
from sluice.core import (
    Clock,
    Home,
    exchange,
    lock_within,
    make_private_directory,
    staged_name,
    sync_directory,
    write_secret,
)
from sluice.gateway.credentials import Revocations
from sluice.pki import PkiConfig
from sluice.pki.authorities import AuthorityStore
from sluice.pki.ca import presence_locks
from sluice.pki.ledger import IssuanceNotes, Ledger, LedgerRecord, ledger_path, unexpired_certificates
from sluice.pki.revocation import RevocationStore
from sluice.pki.x509 import AuthorityKind

MARK = ".restoring"
"""Marker file in a prepared directory: a directory without it is never removed."""

Configure = Callable[[Home], PkiConfig]


@dataclass(frozen=True, slots=True)
class Wish:
    """The options: which revocations to add, and whether to accept that others may be lost."""

    sources: tuple[Path, ...] = ()
    accept_lost: bool = False
    replace: bool = False
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Restored:
    """The result.

    Attributes:
        manifest: of the backup.
        added: later revocations that are now in the home.
        uncertain: whose revocations after it may be lost.
        until: when the last known certificate expires; None: there is none.
        aside: where the replaced home is.
        problems: unusable sources.
    """

    manifest: Manifest
    added: int
    uncertain: tuple[str, ...]
    until: dt.datetime | None
    aside: Path | None
    problems: tuple[str, ...]


def restore(
    backup: Path, keys: Keys, home: Home, wish: Wish, *, configure: Configure, clock: Clock, progress: Progress
) -> Restored:
    """Restore ``backup`` into ``home``, completely or not at all.

    Raises:
        BackupDamaged: the backup is not valid.
        RestoreRefused: there is a home already, it is in use, or revocations would be lost.
        BackupFailed: something could not be written.
    """
    with contextlib.ExitStack() as stack:
        occupied = _is_occupied(home.root)
        if occupied:
            if not wish.replace:
                raise RestoreRefused(f"{home.root} is not empty", "restore into another --home, or --replace this one")
            stack.enter_context(_at_rest(home))
        staged = stack.enter_context(_staged(home.root))
        manifest = extract(backup, keys, staged.root, wanted=lambda _: True, progress=progress, sha256=wish.sha256)
        checked = check_home(staged)
        sources = (*wish.sources, home.root) if occupied else wish.sources
        now = clock()
        evidence = gather(staged, sources, now) if sources else Evidence()
        uncertain, until = uncovered(staged, evidence), _last_expiry(staged, now)
        _check_evidence(manifest, evidence, uncertain, until, accept=wish.accept_lost)
        added = _settle(staged, manifest, evidence, configure(staged), clock)
        record(
            staged,
            "backup.restored",
            {
                "backup": manifest.id,
                "created": manifest.created.isoformat(timespec="seconds"),
                "audit_log": "" if checked.audit is None else str(checked.audit.state),
                "ledger": "" if checked.ledger is None else str(checked.ledger),
                "revocations_added": added,
                "revocations_uncertain": " ".join([*uncertain, *sorted(evidence.foreign)]),
            },
        )
        aside = _take_place(staged.root, home.root, now, occupied=occupied)
    return Restored(manifest, added, tuple(uncertain), until, aside, tuple(evidence.problems))


def _is_occupied(root: Path) -> bool:
    try:
        return any(root.iterdir())
    except FileNotFoundError:
        return False
    except OSError as error:
        raise RestoreRefused(f"{root} cannot be restored into: {error.strerror or error}") from error


@contextlib.contextmanager
def _at_rest(home: Home) -> Iterator[None]:
    """Prevent every process of ``home`` from starting to write; refuse when one runs."""
    make_private_directory(home.run)
    with launcher_lock(home), contextlib.ExitStack() as stack:
        # An authority locks the ledger only briefly, but the lock of its name as long as it runs.
        for path in (*presence_locks(home), ledger_path(home.pki), home.root / "ha" / "leader.lock"):
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                stack.callback(os.close, descriptor)
                if not lock_within(descriptor, 0):
                    raise RestoreRefused(f"a process is running in {home.root}", "stop its cluster first")
        yield


@contextlib.contextmanager
def _staged(root: Path) -> Iterator[Home]:
    """A directory beside ``root``, removed at the end unless it has replaced the home."""
    make_private_directory(root.parent) if not root.parent.exists() else None
    _remove_leftovers(root)
    staged = root.with_name(staged_name(f"{root.name}.restore"))
    try:
        staged.mkdir(mode=0o700)
        mark = os.open(staged / MARK, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise BackupFailed(f"cannot write {staged}: {error.strerror}", "check space and permissions") from error
    try:
        fcntl.flock(mark, fcntl.LOCK_EX)
        yield Home.at(staged)
    finally:
        os.close(mark)
        if (staged / MARK).exists():
            shutil.rmtree(staged, ignore_errors=True)


def _remove_leftovers(root: Path) -> None:
    """Remove directories of killed restores. A running one holds a lock; one without the marker may be a home."""
    for left in root.parent.glob(f".{root.name}.restore.*.tmp"):
        with contextlib.suppress(OSError):
            mark = os.open(left / MARK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if lock_within(mark, 0):
                    shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(mark)


def _last_expiry(home: Home, now: dt.datetime) -> dt.datetime | None:
    return max(
        (target.not_after for _, target in unexpired_certificates(home.pki, now) if target.not_after), default=None
    )


def _check_evidence(
    manifest: Manifest, evidence: Evidence, uncertain: Sequence[str], until: dt.datetime | None, *, accept: bool
) -> None:
    if accept or not (uncertain or evidence.foreign):
        return
    made = f"{manifest.created:%Y-%m-%d %H:%M:%S} UTC"
    if evidence.foreign:
        raise RestoreRefused(
            f"authorities were replaced after this backup of {made}: it does not have "
            f"{'; '.join(sorted(evidence.foreign))[:500]}. Restored, the authorities before them are trusted again",
            "restore a later backup; or, if nobody else has the old keys, --accept-lost-revocations, and rotate again",
        )
    what = [f"certificates of the {each} authority" for each in uncertain if each != GATEWAY]
    if GATEWAY in uncertain:
        what.append("API tokens, users and access that the gateway revoked")
    end = "" if until is None else f" (the last one in the ledger on {until:%Y-%m-%d %H:%M} UTC)"
    raise RestoreRefused(
        f"what was revoked after this backup of {made} would count again: {', '.join(what)}",
        "name what survives with --revocations: identity directories of other machines, CRLs, the gateway's "
        "revocations.jsonl, or what is left of the home. If nothing does, or nothing was revoked: "
        f"--accept-lost-revocations. Certificates that were revoked meanwhile are then accepted until they expire{end} "
        "or the authorities are rotated, API tokens until they expire or are revoked again",
    )


def _settle(home: Home, manifest: Manifest, evidence: Evidence, config: PkiConfig, clock: Clock) -> int:
    """Make the home safe to continue; returns how many revocations were added."""
    # 1. Earlier certificates cannot be renewed, because it is unknown which were superseded since.
    if AuthorityStore(home.pki).exists(AuthorityKind.INTERNAL):
        with contextlib.closing(Ledger(ledger_path(home.pki), clock=clock)) as ledger:
            IssuanceNotes(home.pki).take_in(ledger)
            ledger.append(LedgerRecord(event="restored", requester=f"backup:{manifest.id}"))
    # 2. Known revocations go into CRLs with numbers above all earlier ones: an authority cannot have signed more CRLs
    # than seconds since 1970.
    now = clock()
    revocations, added = RevocationStore(home.pki, config, clock=clock), 0
    for kind in AuthorityKind:
        if AuthorityStore(home.pki).exists(kind):
            known = {key: tuple(entries.values()) for key, entries in evidence.revoked.items()}
            above = max([int(now.timestamp()), *evidence.numbers.values()])
            added += revocations.continue_from(kind, known, above=above)
    for path in evidence.gateway:
        added += Revocations.of(home).merge(Revocations(path).current().entries.values())
    # 3. Earlier leaders have lower epochs than this home, whoever still follows them.
    if (home.root / "ha").is_dir():
        write_secret(home.root / "ha" / "epoch", b"%d" % int(now.timestamp()))
    return added


def _take_place(staged: Path, root: Path, now: dt.datetime, *, occupied: bool) -> Path | None:
    """Replace the home; returns where the previous one is."""
    aside = root.with_name(f"{root.name}.replaced-{now:%Y%m%dT%H%M%SZ}")
    try:
        if occupied and aside.exists():
            raise RestoreRefused(f"there is {aside}", "move it away")
        sync_directory(staged)
        (staged / MARK).unlink()
        try:
            if occupied:
                exchange(staged, root)
            else:
                staged.rename(root)
        except BaseException:
            (staged / MARK).touch(mode=0o600)
            raise
        if occupied:
            staged.rename(aside)
        sync_directory(root.parent)
    except OSError as error:
        raise BackupFailed(
            f"cannot put the home into its place {root}: {error.strerror or error}",
            "it must not be a mount point: restore into a directory below it; nothing was changed",
        ) from error
    return aside if occupied else None
