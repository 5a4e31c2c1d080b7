"""Revocations: one set for API tokens, access tokens, sessions, users and certificates.

The set is an append-only file with one line per action, written by the auth service and by the ``sluice`` command.
Readers follow it and see a new line within :data:`POLL_SECONDS`. An entry expires when the revoked credential would
have ended anyway; compaction rewrites the file without expired entries, which bounds its size. An unreadable line makes
the whole set unreadable, and then every request is refused: the line may be the one that matters.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import msgspec

from sluice.core import (
    SECRET_MODE,
    FileStamp,
    Home,
    StoreError,
    file_stamp,
    make_private_directory,
    read_secret,
    sync_directory,
    write_secret,
)
from sluice.gateway.errors import RevocationError
from sluice.gateway.shared_store import writers_lock
from sluice.pki.assertions import CertificateId, Credential, Jti, SessionId, TokenId

RevocationKind = Literal["token", "pass", "session", "user", "certificate"]
KINDS: tuple[RevocationKind, ...] = get_args(RevocationKind)
RevocationKey = (
    tuple[Literal["token"], TokenId]
    | tuple[Literal["pass"], Jti]
    | tuple[Literal["session"], SessionId]
    | tuple[Literal["user"], str]
    | tuple[Literal["certificate"], CertificateId]
)
"""The kind and the id of what is revoked. The id of a user is the principal's name."""

MAX_REVOCATIONS = 20_000
"""Unexpired ids in one set; Envoy receives all of them."""
MAX_FILE_BYTES = 8 << 20
COMPACT_ABOVE_BYTES = 1 << 20
MAX_ID_CHARACTERS = 128
FOREVER = 253_402_300_799
"""The end of the year 9999, for ids without an expiry, such as users."""
POLL_SECONDS = 0.1

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:-]*")


class Revocation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The revocation of one id. Times are seconds since the epoch.

    Attributes:
        until: when the revocation expires, because the revoked credential has expired too. A time in the past takes an
            earlier revocation back (for example for a user who gets access again).
    """

    kind: RevocationKind
    id: str
    until: int
    at: int
    by: str = ""


@dataclass(frozen=True, slots=True)
class RevocationSet:
    """All revocations, as a value. Each kind has its own namespace of ids."""

    entries: Mapping[tuple[str, str], Revocation] = field(default_factory=dict)

    @classmethod
    def of(cls, revocations: Iterable[Revocation]) -> RevocationSet:
        """Build a set; the last revocation of an id wins."""
        return cls({(each.kind, each.id): each for each in revocations})

    def is_revoked(self, key: RevocationKey, *, now: float) -> bool:
        """Whether this id is revoked at ``now``."""
        entry = self.entries.get(key)
        return entry is not None and now < entry.until

    def unexpired(self, now: float) -> tuple[Revocation, ...]:
        """The revocations that have not expired at ``now``."""
        return tuple(each for each in self.entries.values() if now < each.until)

    def refuses(self, *, name: str, credential: Credential, now: float, jti: str = "") -> Revocation | None:
        """The revocation that applies to this name, this credential or the access token ``jti``; None without one."""
        keys: tuple[tuple[str, str], ...] = (("user", name), ("pass", jti), (credential.kind, credential.id))
        # A JWT of an issuer has no id: only its user or its access token can be revoked.
        found = (self.entries.get(key) for key in keys if key[1])
        return next((each for each in found if each is not None and now < each.until), None)


def decode(data: bytes) -> RevocationSet:
    """Decode the content of a file; raises :class:`RevocationError`.

    A last line without a newline is ignored: its write was never acknowledged.
    """
    whole, _, _ = data.rpartition(b"\n")
    try:
        return RevocationSet.of(msgspec.json.decode(line, type=Revocation) for line in whole.split(b"\n") if line)
    except msgspec.MsgspecError as error:
        raise RevocationError(f"the revocation file is damaged: {error}", "restore it from a backup") from error


class Revocations:
    """The revocation set of one home: reads, extends and watches it."""

    def __init__(
        self, path: Path, clock: Callable[[], float] = time.time, check_fresh: Callable[[], None] | None = None
    ) -> None:
        """``check_fresh`` raises when the file is a copy that may be stale; None when the file is the original."""
        self._path = path
        self._check_fresh = check_fresh
        self._clock = clock
        # One tuple, so that threads never combine the stamp of one read with the set of another.
        self._known: tuple[FileStamp | None, RevocationSet] = (None, RevocationSet())

    @classmethod
    def of(cls, home: Home, check_fresh: Callable[[], None] | None = None) -> Revocations:
        """The set of ``home``; a missing file is an empty set."""
        return cls(home.gateway / "revocations.jsonl", check_fresh=check_fresh)

    def current(self) -> RevocationSet:
        """The current set, read again only when the file changed; raises when it is unreadable or stale."""
        if self._check_fresh is not None:
            self._check_fresh()
        stamp, (known, current) = self._look(), self._known
        if stamp is None:
            current = RevocationSet()
        elif stamp != known:
            current = decode(read_secret(self._path, MAX_FILE_BYTES))
        self._known = stamp, current
        return current

    def is_revoked(self, key: RevocationKey) -> bool:
        """Whether this id is revoked now."""
        return self.current().is_revoked(key, now=self._clock())

    def revoke(self, key: RevocationKey, *, until: float = FOREVER, by: str = "") -> Revocation:
        """Revoke an id; the entry is on disk on return. Raises :class:`RevocationError` when it was not revoked."""
        kind, identifier = key
        if kind not in KINDS or len(identifier) > MAX_ID_CHARACTERS or not _ID.fullmatch(identifier):
            raise RevocationError(f"{identifier[:80]!r} cannot be the id of a {kind}")
        now = self._clock()
        entry = Revocation(kind=kind, id=identifier, until=min(int(until), FOREVER), at=int(now), by=by)
        make_private_directory(self._path.parent)
        with writers_lock(self._path.parent):
            kept = self._compacted(now)
            if len(kept) >= MAX_REVOCATIONS and now < until:
                raise RevocationError(
                    f"{len(kept)} ids are revoked already",
                    "rotate the signing keys of access tokens, or wait until some revocations expire",
                )
            self._append(msgspec.json.encode(entry) + b"\n")
        return entry

    def restore(self, key: RevocationKey, *, by: str = "") -> Revocation:
        """Take back the revocation of this id."""
        return self.revoke(key, until=self._clock(), by=by)

    def merge(self, others: Iterable[Revocation]) -> int:
        """Add the unexpired revocations of another copy of the set; takes none back. Returns how many ids are new.

        Raises :class:`RevocationError` when nothing was added.
        """
        make_private_directory(self._path.parent)
        with writers_lock(self._path.parent):
            now = self._clock()
            merged = {(each.kind, each.id): each for each in self.current().unexpired(now)}
            before = dict(merged)
            for each in others:
                known = merged.get((each.kind, each.id))
                if now < each.until and (known is None or known.until < each.until):
                    merged[each.kind, each.id] = each
            data = b"".join(msgspec.json.encode(each) + b"\n" for each in merged.values())
            if len(merged) > MAX_REVOCATIONS or len(data) > MAX_FILE_BYTES:
                raise RevocationError(f"{len(merged)} ids would be revoked, and at most {MAX_REVOCATIONS} can be")
            if merged != before:
                write_secret(self._path, data)
            return len(merged) - len(before)

    async def changes(self, interval: float = POLL_SECONDS) -> AsyncIterator[RevocationSet]:
        """Yield the current set, then again within ``interval`` seconds of each change; runs until closed."""
        last: RevocationSet | None = None
        while True:
            current = self.current()
            if current is not last:
                last = current
                yield current
            await asyncio.sleep(interval)

    def _look(self) -> FileStamp | None:
        try:
            return file_stamp(self._path)
        except StoreError as error:
            raise RevocationError(error.what, error.remedy) from error

    def _compacted(self, now: float) -> tuple[Revocation, ...]:
        """The unexpired revocations. Rewrites the file with them when it has grown large."""
        current = self.current()
        kept = current.unexpired(now)
        stamp = self._known[0]
        if stamp is not None and stamp.size > COMPACT_ABOVE_BYTES and len(kept) < len(current.entries):
            write_secret(self._path, b"".join(msgspec.json.encode(each) + b"\n" for each in kept))
        return kept

    def _append(self, line: bytes) -> None:
        try:
            descriptor = os.open(
                self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, SECRET_MODE
            )
            try:
                size = os.fstat(descriptor).st_size
                # A writer that died while writing left a partial line. It was never acknowledged, so remove it.
                end = _end_of_last_line(descriptor, size)
                if end != size:
                    os.ftruncate(descriptor, end)
                if end + len(line) > MAX_FILE_BYTES:
                    raise RevocationError(f"{self._path} would be larger than {MAX_FILE_BYTES} bytes")
                if os.write(descriptor, line) != len(line):
                    os.ftruncate(descriptor, end)
                    raise RevocationError(f"cannot write all of a line to {self._path}", "check the space on the disk")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            sync_directory(self._path.parent)
        except OSError as error:
            raise RevocationError(
                f"cannot write {self._path}: {error.strerror}", "check the space on the disk; nothing was revoked"
            ) from error


def _end_of_last_line(descriptor: int, size: int) -> int:
    tail = os.pread(descriptor, 4096, max(0, size - 4096))
    return max(0, size - 4096) + tail.rfind(b"\n") + 1
