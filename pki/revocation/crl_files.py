"""Revocation lists in identity directories: ``crl.pem``, beside ``ca.pem``.

The file holds the newest list of each trust anchor that has one; a large one as a complete list and a delta if the
reader applies deltas. Only :func:`install_crls` writes it, with the checks of a process: a bad list never replaces a
good one.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cryptography import x509

from sluice.core import (
    LOCK_PATIENCE_SECONDS,
    CrlRejected,
    Home,
    LockHeld,
    StoreError,
    locked,
    paths_matching,
    read_bounded,
    remove_leftovers,
    write_public,
)
from sluice.pki.identities import CA_FILE, CHAIN_FILE, PEERS_FILE, read_certificates
from sluice.pki.revocation.crl import (
    EXPIRY_GRACE,
    MAX_CRL_BYTES,
    Delta,
    RevocationList,
    apply_delta,
    check_crl,
    check_delta,
    is_delta,
    load_crls,
)
from sluice.pki.revocation.exported_certificates import ExportedCertificates
from sluice.pki.spiffe_id import Role

_LOG = logging.getLogger(__name__)

CRL_FILE = "crl.pem"
COMPLETE_LISTS_FILE = "complete-lists"
"""An empty file in an identity directory whose reader does not apply deltas."""

_DELTA_ROLES = frozenset({Role.JOBMANAGER, Role.TASKMANAGER, Role.SHUFFLE_MANAGER, Role.SHUFFLE_WORKER, Role.CA})
PROCESS_IDENTITIES = ("pki/identities/*/*",)
JOB_IDENTITIES = ("work/*/jobs/*/driver-*/identity", "work/*/jobs/*/executor-*/identity")
"""Places of identity directories below a home: of processes; of drivers and executors."""


def identity_directories(home: Home) -> list[Path]:
    """Every identity directory of ``home``, those of jobs included, in a fixed order."""
    return sorted(
        path
        for pattern in (*PROCESS_IDENTITIES, *JOB_IDENTITIES)
        for path in paths_matching(home.root, pattern)
        if not path.name.startswith(".")
        and not (pattern in JOB_IDENTITIES and path.is_symlink())
        and (path / CHAIN_FILE).is_file()
        and (path / CA_FILE).is_file()
    )


def take_newer(
    known: Mapping[bytes, RevocationList],
    offered: Iterable[x509.CertificateRevocationList],
    anchors: Sequence[x509.Certificate],
    now: dt.datetime,
    *,
    grace: dt.timedelta = dt.timedelta(0),
) -> tuple[dict[bytes, RevocationList], list[CrlRejected]]:
    """Merge lists by issuer; bad or outdated ones change nothing and are returned as errors.

    A delta is applied to the complete list that is offered with it, or else to the known one.
    """
    found: dict[bytes, RevocationList] = {}
    deltas: list[Delta] = []
    refused: list[CrlRejected] = []
    # 1. Each by itself, complete lists first: of several of one issuer the newest.
    for crl in offered:
        try:
            if is_delta(crl):
                deltas.append(check_delta(crl, anchors, now, grace=grace))
                continue
            complete = check_crl(crl, anchors, now, grace=grace)
            _refuse_older(complete, found.get(complete.issuer_key))
            found[complete.issuer_key] = complete
        except CrlRejected as error:
            refused.append(error)
    # 2. Deltas, each on a complete list: two deltas are never added up (RFC 5280, 5.2.4).
    for delta in sorted(deltas, key=lambda one: one.changes.number):
        issuer = delta.changes.issuer_key
        try:
            below = found.get(issuer) or known.get(issuer)
            if below is None:
                raise CrlRejected(  # noqa: TRY301  refused like the others
                    f"there is no complete list of {delta.changes.issuer.rfc4514_string()[:200]!r} for its delta",
                    "sluice pki crl refresh",
                )
            found[issuer] = apply_delta(below.complete, delta)
        except CrlRejected as error:
            refused.append(error)
    # 3. The result must not be older than the known list.
    merged: dict[bytes, RevocationList] = dict(known)
    for issuer, each in found.items():
        try:
            _refuse_older(each, known.get(issuer))
            merged[issuer] = each
        except CrlRejected as error:
            refused.append(error)
    return merged, refused


def _refuse_older(found: RevocationList, known: RevocationList | None) -> None:
    if known is not None and found.number < known.number:
        raise CrlRejected(
            f"the revocation list number {found.number} of {found.issuer.rfc4514_string()[:200]!r} "
            f"is older than number {known.number}, which is in use"
        )


def applies_deltas(home: Home, directory: Path) -> bool:
    """Whether the reader of ``directory`` is known to be our Python code: all others get complete lists.

    JVMs, Envoy, and programs that get copies of the files do not apply deltas.
    """
    role = directory.parent
    return role.parent == home.pki / "identities" and role.name in _DELTA_ROLES and not _needs_complete(directory)


def _needs_complete(directory: Path) -> bool:
    return any((directory / name).exists() for name in (PEERS_FILE, COMPLETE_LISTS_FILE))


def install_crls(directory: Path, pem: bytes, now: dt.datetime, *, patience: float = LOCK_PATIENCE_SECONDS) -> bool:
    """Put the lists in ``pem`` into an identity directory; returns whether anything changed.

    ``patience`` is how long to wait for the directory's lock, in seconds.

    Raises:
        CrlRejected: one of them is damaged, foreign, expired, or older than what is there; nothing was changed.
        StoreError: the directory cannot be read or written.
    """
    offered = load_crls(pem)
    with locked(directory, patience=patience):
        remove_leftovers(directory, CRL_FILE)
        anchors = read_certificates(directory / CA_FILE)
        path = directory / CRL_FILE
        present = read_bounded(path, MAX_CRL_BYTES) if path.exists() else b""
        known = _usable(present, anchors, now)
        merged, refused = take_newer(known, offered, anchors, now)
        if refused:
            raise refused[0]
        # The same list, complete or in parts: keep the file, unless it is in parts and the reader needs it complete.
        for issuer, before in known.items():
            fits = before.base is None or not _needs_complete(directory)
            if fits and before.number == merged[issuer].number and now < before.next_update:
                merged[issuer] = before
        content = b"".join(merged[issuer].pem for issuer in sorted(merged))
        if content == present:
            return False
        write_public(path, content)
    return True


def _usable(pem: bytes, anchors: Sequence[x509.Certificate], now: dt.datetime) -> dict[bytes, RevocationList]:
    """The valid lists of a file; a damaged file counts as empty, so that it can be replaced."""
    try:
        return take_newer({}, load_crls(pem), anchors, now, grace=EXPIRY_GRACE)[0] if pem else {}
    except CrlRejected:
        return {}


def push_crls(home: Home, lists: Sequence[RevocationList], now: dt.datetime) -> tuple[list[Path], list[str]]:
    """Install ``lists`` in every identity directory of ``home``, and exported ones, that trust their issuers.

    Returns the changed directories, and the error of each that could not be written: one bad directory does not keep a
    revocation from the others.
    """
    changed, failed = [], []
    patience = LOCK_PATIENCE_SECONDS
    try:
        outside = ExportedCertificates(home.pki).directories()
    except StoreError as error:
        outside, failed = [], [str(error)]
    try:
        inside = identity_directories(home)
    except OSError as error:  # no descriptor is free, say: whoever pushes tries again, and exported ones go on
        inside = []
        failed.append(f"the identities of {home.root} cannot be listed: {error}")
    for directory in (*inside, *outside):
        of_job = directory.is_relative_to(home.root / "work")
        wait = patience if of_job else LOCK_PATIENCE_SECONDS
        try:
            trusted = {anchor.subject for anchor in read_certificates(directory / CA_FILE)}
            wanted = [each for each in lists if each.issuer in trusted]
            if wanted and _push(directory, wanted, now, wait, in_parts=applies_deltas(home, directory)):
                changed.append(directory)
        except (StoreError, CrlRejected) as error:
            if of_job and isinstance(error, LockHeld):
                patience = 0.0  # wait once in all: a job can lock the directories of all its processes
            if directory.exists():  # a job's directory may have gone meanwhile
                failed.append(f"{directory}: {error}")
    return changed, failed


def _push(
    directory: Path, lists: Sequence[RevocationList], now: dt.datetime, patience: float, *, in_parts: bool
) -> bool:
    if in_parts and any(each.in_parts for each in lists):
        try:
            parts = b"".join(each.in_parts or each.pem for each in lists)
            return install_crls(directory, parts, now, patience=patience)
        except CrlRejected as error:
            _LOG.warning("installing complete CRLs in %s, because the deltas are refused: %s", directory, error)
    return install_crls(directory, b"".join(each.pem for each in lists), now, patience=patience)
