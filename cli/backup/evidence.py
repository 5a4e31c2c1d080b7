"""Finds revocations made after a backup, in copies that survive outside of the lost home.

A restored home must not undo a revocation. CRLs are verified by their signature. Records of a home (``revoked.json``,
``revocations.jsonl``) are unsigned: they can only add revocations, and prove nothing about which CRLs existed.
"""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from cryptography import x509

from sluice.cli.backup.errors import RestoreRefused
from sluice.core import CrlRejected, Home, SluiceError, read_bounded, utc_now
from sluice.gateway.credentials import Revocations
from sluice.pki import PkiConfig
from sluice.pki.authorities import AuthorityStore, rotation_directory
from sluice.pki.ledger import ledger_path, read_ledger, side_of
from sluice.pki.revocation import (
    MAX_CRL_BYTES,
    Reason,
    Revocation,
    RevocationList,
    RevocationStore,
    load_crls,
    take_newer,
)
from sluice.pki.x509 import ISSUING, AuthorityKind, key_id

MAX_SOURCES = 100_000
"""Most files that are read."""
MAX_RECORD_BYTES = 64 << 20
MAX_SERIAL_BITS = 160
EXPIRED_TOO = dt.timedelta(days=36_500)
"""A CRL of a lost home may have expired: its revocations still count."""
GATEWAY = "gateway"

_CRL, _RECORD, _GATEWAY = "crl.pem", "revoked.json", "revocations.jsonl"
_GATEWAY_SUFFIX = ".jsonl"
_OF_GATEWAY = ("tokens.json", "users.json", _GATEWAY)
_DIRECTORY = re.compile(r"(root|internal|edge)-([0-9a-f]{16})")
_REASONS = {str(each.flag.value): each for each in Reason}


class _Record(msgspec.Struct, frozen=True):
    revoked: tuple[Revocation, ...] = ()


@dataclass(slots=True)
class Evidence:
    """The revocations that the sources prove.

    Attributes:
        revoked: by the key identifier of the authority.
        numbers: the highest CRL number seen, by the same key.
        gateway: files of the gateway's revocations.
        gateway_known: whether they are known: a home without such a file has no revocations.
        foreign: authorities of CRLs that are not in the backup, because they are newer.
        problems: unusable sources, and why.
    """

    revoked: dict[str, dict[int, Revocation]] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    gateway: list[Path] = field(default_factory=list)
    gateway_known: bool = False
    gateway_unreadable: bool = False
    foreign: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    def note(self, key: str, number: int, entries: Iterable[Revocation]) -> None:
        """Add one CRL or record."""
        self.numbers[key] = max(number, self.numbers.get(key, 0))
        known = self.revoked.setdefault(key, {})
        for entry in entries:
            own = known.setdefault(entry.number, entry)
            if entry.identity and not own.identity:
                known[entry.number] = entry


def gather(home: Home, sources: Sequence[Path], now: dt.datetime) -> Evidence:
    """Look for revocations in ``sources``: files, identity directories, homes, or directories of these.

    ``home`` is the extracted backup; its authorities decide which CRLs are valid.

    Raises :class:`RestoreRefused`: a source does not exist, or holds no revocations.
    """
    anchors = _anchors(home)
    own = _issuers(home) | {each.subject for each in anchors}
    identities = _identities(home)
    found = Evidence()
    for source in sources:
        useful = False
        if (source / "gateway" / "audit").is_dir():
            found.gateway_known = useful = True
        for path in _files(source):
            try:
                if path.suffix == _GATEWAY_SUFFIX:
                    Revocations(path).current()
                    found.gateway.append(path)
                    found.gateway_known = useful = True
                elif path.name == _RECORD:
                    useful |= _take_record(found, path, anchors)
                else:
                    useful |= _take_lists(found, path, anchors, own, identities, now)
            except (SluiceError, msgspec.MsgspecError, ValueError) as error:
                found.problems.append(f"{path}: {error}")
                found.gateway_unreadable |= path.suffix == _GATEWAY_SUFFIX
        if not useful:
            why = f" ({found.problems[-1]})" if found.problems else ""
            raise RestoreRefused(
                f"{source} has no revocations of this cluster{why}",
                "give a CRL, an identity directory, the gateway's revocations.jsonl, or what is left of the home",
            )
    return found


def _take_record(found: Evidence, path: Path, anchors: Sequence[x509.Certificate]) -> bool:
    match = _DIRECTORY.fullmatch(path.parent.name)
    keys = {key_id(each)[:16]: key_id(each) for each in anchors}
    if match is None or match[2] not in keys:
        return False
    record = msgspec.json.decode(read_bounded(path, MAX_RECORD_BYTES), type=_Record)
    if not all(_is_usable(entry) for entry in record.revoked):
        raise RestoreRefused(f"{path} has an entry that no authority can have written", "use the CRL beside it")
    found.note(keys[match[2]], 0, record.revoked)
    return True


def _is_usable(entry: Revocation) -> bool:
    """Whether a CRL with this entry can be signed."""
    times = (entry.revoked_at, *([] if entry.not_after is None else [entry.not_after]))
    return 0 < entry.number < 1 << MAX_SERIAL_BITS and all(each.tzinfo is not None for each in times)


def _take_lists(
    found: Evidence,
    path: Path,
    anchors: Sequence[x509.Certificate],
    own: set[x509.Name],
    identities: dict[str, tuple[str, dt.datetime]],
    now: dt.datetime,
) -> bool:
    crls = load_crls(read_bounded(path, MAX_CRL_BYTES))
    foreign = {each.issuer.rfc4514_string() for each in crls if each.issuer not in own}
    found.foreign |= foreign
    trusted = {each.subject for each in anchors}
    offered = [each for each in crls if each.issuer in trusted]
    lists, refused = take_newer({}, offered, anchors, now, grace=EXPIRED_TOO)
    found.problems += [f"{path}: {error}" for error in refused]
    by_name = {each.subject.public_bytes(): key_id(each) for each in anchors}
    for issuer, each in lists.items():
        found.note(by_name[issuer], each.number, _entries(each, identities))
    return bool(lists or foreign)


def _entries(found: RevocationList, identities: dict[str, tuple[str, dt.datetime]]) -> Iterator[Revocation]:
    """Entries with identities from the ledger, because a CRL does not contain them."""
    for number, entry in found.revoked.items():
        reason = _REASONS.get(entry.reason, Reason.UNSPECIFIED)
        identity, end = identities.get(f"{number:x}", ("", None))
        yield Revocation(f"{number:x}", entry.revoked_at, reason, identity, end, barred=bool(identity) and reason.bars)


def _identities(home: Home) -> dict[str, tuple[str, dt.datetime]]:
    path = ledger_path(home.pki)
    if not path.exists():
        return {}
    return {
        record.serial: (record.identity, dt.datetime.fromisoformat(record.not_after))
        for record in read_ledger(path)
        if side_of(record) is not None
    }


def _anchors(home: Home) -> list[x509.Certificate]:
    """All authorities of the home whose CRLs are valid, both generations during a rotation."""
    stores = (AuthorityStore(home.pki), AuthorityStore(rotation_directory(home.pki)))
    return [store.certificate(kind) for store in stores for kind in AuthorityKind if store.exists(kind)]


def _issuers(home: Home) -> set[x509.Name]:
    """Authorities whose CRLs the home has, including replaced ones."""
    found = set()
    for path in (home.pki / "revocation").glob(f"*/{_CRL}"):
        try:
            found |= {each.issuer for each in load_crls(read_bounded(path, MAX_CRL_BYTES))}
        except CrlRejected:
            continue
    return found


def _files(source: Path) -> Iterator[Path]:
    if source.is_file():
        yield source
        return
    if not source.is_dir():
        raise RestoreRefused(f"there is no {source}", "see --revocations")
    looked = 0
    for directory, _, names in os.walk(source, followlinks=False):
        for name in sorted(names):
            looked += 1
            if looked > MAX_SOURCES:
                raise RestoreRefused(
                    f"{source} has more than {MAX_SOURCES} files", "name the directories with the lists"
                )
            path = Path(directory, name)
            if name in {_CRL, _RECORD, _GATEWAY} and not path.is_symlink():
                yield path


def uncovered(home: Home, evidence: Evidence) -> list[str]:
    """Whose later revocations no source covers: ``internal``, ``edge``, or :data:`GATEWAY`."""
    missing = []
    store = RevocationStore(home.pki, PkiConfig(), clock=utc_now)
    for kind in ISSUING:
        if not AuthorityStore(home.pki).exists(kind):
            continue
        if any(evidence.numbers.get(own, 0) < max(number, 1) for own, number in store.numbers(kind).items()):
            missing.append(str(kind))
    known = evidence.gateway_known and not evidence.gateway_unreadable
    if not known and any((home.gateway / name).exists() for name in _OF_GATEWAY):
        missing.append(GATEWAY)
    return missing
