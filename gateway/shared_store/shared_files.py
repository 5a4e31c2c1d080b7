"""The credential files of auth services on several machines, stored in a database, with a copy in each home.

Readers use the copies, which follow the database within :data:`POLL_SECONDS`. A writer holds the database's lock: it
updates its copies, changes them, and the database commits the changes for all machines. While the database is
unavailable, nothing can change, so slightly old copies are acceptable; :meth:`SharedFiles.check_fresh` tells readers
when the copies are too old to decide by.

The database numbers its changes (*revision*). A home records its last revision, and refuses a database that has an
older one or was replaced, because that database may lack a revocation.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sluice.core import StoreError, locked, make_private_directory, read_secret, write_secret
from sluice.gateway.config import SharedStoreConfig
from sluice.gateway.errors import SharedStoreError
from sluice.gateway.shared_store.cipher import StoreCipher
from sluice.gateway.shared_store.database import Database, Statements
from sluice.gateway.shared_store.record import STATE

_LOG = logging.getLogger(__name__)

POLL_SECONDS = 0.1
LOCK_SECONDS = 10.0
"""How long to wait for other processes of this machine."""
FRESH_WAIT_SECONDS = 1.0
"""How long a caller waits until the copies are as new as its call."""
MAX_FILE_BYTES = 16 << 20
MAX_FILES = 256
PENDING = "shared-store-pending"
"""This file exists while a writer changes the copies. After a crash, the copies are read from the database again."""
_SHARED = re.compile(
    r"tokens\.json|users\.json|sessions\.json|token-use\.json|revocations\.jsonl|pass-keys/[0-9]{10,12}-[0-9a-f]{16}\.pem"
)


_HEAD = "SELECT store, revision, manifest FROM sluice_head"
_LOCK_HEAD = f"{_HEAD} FOR UPDATE"


class State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of a home's copies.

    Attributes:
        store: the id of the database's content, created with its tables.
        revision: the revision of the copies.
    """

    store: str
    revision: int


@dataclass(frozen=True, slots=True)
class Head:
    """The newest change of a database.

    Attributes:
        store: the id of the database's content.
        revision: the number of the change; 0 before the first one.
        manifest: the list of files after the change, encrypted.
    """

    store: str
    revision: int
    manifest: bytes = b""


class SharedFiles:
    """The copies in ``directory`` (``gateway`` in a home) of the files in ``database``."""

    def __init__(
        self,
        directory: Path,
        config: SharedStoreConfig,
        cipher: StoreCipher,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        # Two connections: a writer that waits for another machine must not block the reader.
        self._reads, self._writes = Database(config), Database(config)
        self._cipher = cipher
        self._stale_after = config.stale_after
        self._clock = clock
        self._confirmed: float | None = None
        self._revision = -1
        """The revision of the copies as known to this process; -1 means that all copies must be compared."""

    @property
    def revision(self) -> int:
        """The number of the newest change that this process knows of."""
        return self._revision

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the writers' lock on all machines. The copies are up to date, and changes are committed after the block.

        Raises:
            SharedStoreError: the database is unavailable; the copies are unchanged. If only the response to the commit
                was lost, the change may be committed nevertheless.
        """
        with self._locked():
            before: dict[str, bytes] | None = None
            try:
                with self._writes.transaction() as statements:
                    head = self._confirm_by(statements)
                    before = self._copies()
                    write_secret(self._directory / PENDING, b"")
                    yield
                    head = self._store_changes(statements, head, before)
            except BaseException:
                if before is not None:
                    self._put_back(before)
                raise
            self._note(head.store, head.revision)
            (self._directory / PENDING).unlink(missing_ok=True)
            self._revision = head.revision

    def pull(self) -> None:
        """Bring the copies up to date; waits for the database and the disk."""
        moment = self._clock()
        with self._reads.transaction() as statements:
            head = _head(statements)
        if head.revision == self._revision and not (self._directory / PENDING).exists() and self._state_is(head.store):
            self._confirmed = moment
            return
        with self._locked():
            with self._reads.transaction() as statements:
                head = self._confirm_by(statements)
            self._note(head.store, head.revision)

    def follow(self, ended: threading.Event) -> None:
        """Keep the copies up to date until ``ended`` is set. Run it in a separate thread."""
        failing = False
        while not ended.wait(POLL_SECONDS):
            try:
                self.pull()
            except (SharedStoreError, StoreError) as error:
                if not failing:
                    _LOG.error("cannot follow the shared store: %s", error)
                failing = True
            except Exception:  # noqa: BLE001  nobody would notice the end of this thread, and every request would be refused
                if not failing:
                    _LOG.exception("cannot follow the shared store")
                failing = True
            else:
                if failing:
                    _LOG.info("the shared store answers again")
                failing = False

    async def wait_until_fresh(self) -> None:
        """Wait until the copies are as new as this call, for at most a second. Needs a running :meth:`follow`."""
        began = self._clock()
        while (self._confirmed is None or self._confirmed < began) and self._clock() - began < FRESH_WAIT_SECONDS:  # noqa: ASYNC110  it changes in a thread
            await asyncio.sleep(POLL_SECONDS / 5)

    def check_fresh(self) -> None:
        """Raise :class:`SharedStoreError` when the copies may be too old to decide by. Does not block."""
        if self._confirmed is None or self._clock() - self._confirmed > self._stale_after:
            raise SharedStoreError(
                f"the shared store has not answered for more than {self._stale_after:g} seconds",
                "check that the database is running; requests are refused meanwhile: revocations are unknown",
            )

    def replace_store(self) -> int:
        """Replace the content of the database with this machine's copies; returns the number of files.

        For the first machine of a store, and after the loss of the database.
        """
        with self._locked():
            with self._writes.transaction() as statements:
                head, known = _head(statements, lock=True), self._state()
                if known is not None:  # for the other machines, this is the store that they know, with a new change
                    head = Head(known.store, max(head.revision, known.revision))
                statements.run("DELETE FROM sluice_files")
                copies = self._copies()
                head = self._change(statements, head, {}, copies)
            self._note(head.store, head.revision)
            return len(copies)

    def close(self) -> None:
        """Close the connections."""
        self._reads.close()
        self._writes.close()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        make_private_directory(self._directory)
        with locked(self._directory, patience=LOCK_SECONDS):
            yield

    def _confirm_by(self, statements: Statements) -> Head:
        """Update the copies from the locked database. The caller holds the lock of this machine.

        Returns the newest change, which the caller records once the transaction is committed.
        """
        moment = self._clock()
        head = _head(statements, lock=True)
        known, whole = self._state(), (self._directory / PENDING).exists()
        if known is None and (copies := self._copies()):
            if head.revision == 0:
                head = self._change(statements, head, {}, copies)
            else:
                self._check_same(statements, head, copies)
        if known is not None and (known.store != head.store or head.revision < known.revision):
            raise SharedStoreError(
                f"the database has gone back: this machine has change {known.revision} of store {known.store}, and the "
                f"database has change {head.revision} of {head.store}",
                "restore a newer state of the database, or make this machine's files its content: "
                "`sluice shared-store upload`",
            )
        since = -1 if known is None or whole or self._revision < 0 else min(self._revision, known.revision)
        if since < head.revision:
            self._take(statements, head, since)
        (self._directory / PENDING).unlink(missing_ok=True)
        self._revision = head.revision
        self._confirmed = moment
        return head

    def _take(self, statements: Statements, head: Head, since: int) -> None:
        """Write the files that changed after ``since`` (-1: all of them), and remove deleted ones."""
        files = self._files(statements, head, since)
        for name, content in files.items():
            if content is not None:
                self._write(self._directory / name, content)
        for name in self.names():
            if name not in files:
                (self._directory / name).unlink(missing_ok=True)

    def _files(self, statements: Statements, head: Head, since: int) -> dict[str, bytes | None]:
        """Every file of the database, with its content if it changed after ``since``.

        Raises :class:`SharedStoreError` when the files do not match the manifest of the newest change.
        """
        manifest = self._manifest(head)
        rows = statements.run(
            "SELECT name, revision, CASE WHEN revision > :since THEN content END FROM sluice_files", since=since
        )
        if {name: revision for name, revision, _ in rows} != manifest or not all(map(_SHARED.fullmatch, manifest)):
            raise SharedStoreError(
                f"the database does not have the files of change {head.revision}: some were changed or removed",
                "find out who did it; `sluice shared-store upload` makes this machine's files its content",
            )
        return {
            name: None if content is None else self._cipher.decrypted(bytes(content), _file(head.store, name, revision))
            for name, revision, content in rows
        }

    def _manifest(self, head: Head) -> dict[str, int]:
        """The files and the revision of each. Nobody can forge it without the key."""
        if head.revision == 0:
            return {}
        plain = self._cipher.decrypted(head.manifest, _whole(head.store, head.revision))
        return msgspec.json.decode(plain, type=dict[str, int])

    def _store_changes(self, statements: Statements, head: Head, before: Mapping[str, bytes]) -> Head:
        """Write the differences from ``before`` to the database."""
        after = self._copies()
        changed = {name: content for name, content in after.items() if before.get(name) != content}
        gone = before.keys() - after.keys()
        if not changed and not gone:
            return head
        for name in gone:
            statements.run("DELETE FROM sluice_files WHERE name = :name", name=name)
        kept = {name: revision for name, revision in self._manifest(head).items() if name not in gone}
        return self._change(statements, head, kept, changed)

    def _change(
        self, statements: Statements, head: Head, kept: Mapping[str, int], changed: Mapping[str, bytes]
    ) -> Head:
        """Write the next change: the files ``changed``, in addition to those that are ``kept``."""
        revision = head.revision + 1
        for name, content in changed.items():
            if len(content) > MAX_FILE_BYTES:
                raise SharedStoreError(f"{name} is larger than {MAX_FILE_BYTES} bytes")
            statements.run(
                "INSERT INTO sluice_files (name, revision, content) VALUES (:name, :revision, :content)"
                " ON CONFLICT (name) DO UPDATE SET revision = EXCLUDED.revision, content = EXCLUDED.content",
                name=name,
                revision=revision,
                content=self._cipher.encrypted(content, _file(head.store, name, revision)),
            )
        plain = msgspec.json.encode({**kept, **dict.fromkeys(changed, revision)})
        manifest = self._cipher.encrypted(plain, _whole(head.store, revision))
        statements.run(
            "UPDATE sluice_head SET store = :store, revision = :revision, manifest = :manifest",
            store=head.store,
            revision=revision,
            manifest=manifest,
        )
        return Head(head.store, revision, manifest)

    def _check_same(self, statements: Statements, head: Head, copies: Mapping[str, bytes]) -> None:
        """Refuse to overwrite files that this home had before it joined the store."""
        theirs = self._files(statements, head, -1)
        if differing := sorted(name for name, content in copies.items() if theirs.get(name) != content):
            raise SharedStoreError(
                f"the database has content already, and this home has files of its own ({', '.join(differing)[:300]})",
                f"move them out of {self._directory}, or make them the content for all machines: "
                "`sluice shared-store upload`",
            )

    def _put_back(self, before: Mapping[str, bytes]) -> None:
        for name in self.names():
            if name not in before:
                (self._directory / name).unlink(missing_ok=True)
        for name, content in before.items():
            self._write(self._directory / name, content)
        (self._directory / PENDING).unlink(missing_ok=True)

    def _write(self, path: Path, content: bytes) -> None:
        try:
            if read_secret(path, MAX_FILE_BYTES) == content:
                return
        except StoreError:
            pass  # missing or damaged: write it
        make_private_directory(path.parent)
        write_secret(path, content)

    def names(self) -> list[str]:
        """The shared files that this machine has, as paths relative to its directory."""
        found = [*self._directory.glob("*.json*"), *self._directory.glob("pass-keys/*.pem")]
        names = sorted(path.relative_to(self._directory).as_posix() for path in found)
        names = [name for name in names if _SHARED.fullmatch(name)]
        if len(names) > MAX_FILES:
            raise SharedStoreError(f"{self._directory} has more than {MAX_FILES} files to share")
        return names

    def _copies(self) -> dict[str, bytes]:
        return {name: read_secret(self._directory / name, MAX_FILE_BYTES) for name in self.names()}

    def _state(self) -> State | None:
        path = self._directory / STATE
        if not path.exists():
            return None
        try:
            return msgspec.json.decode(read_secret(path, 4096), type=State)
        except msgspec.MsgspecError as error:
            raise SharedStoreError(f"{path} is damaged", "remove it and the copies in its directory") from error

    def _state_is(self, store: str) -> bool:
        known = self._state()
        return known is not None and (known.store, known.revision) == (store, self._revision)

    def _note(self, store: str, revision: int) -> None:
        if self._state() != (state := State(store=store, revision=revision)):
            write_secret(self._directory / STATE, msgspec.json.encode(state))


def _head(statements: Statements, *, lock: bool = False) -> Head:
    """The newest change. With ``lock``, no other change is possible until the transaction ends."""
    [[store, revision, manifest]] = statements.run(_LOCK_HEAD if lock else _HEAD)
    return Head(str(store), int(revision), bytes(manifest or b""))


def _file(store: str, name: str, revision: int) -> str:
    return f"file {store} {name} {revision}"


def _whole(store: str, revision: int) -> str:
    return f"files {store} {revision}"
