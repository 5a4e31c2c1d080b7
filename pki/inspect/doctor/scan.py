"""Reads the files of a home with size limits, without trusting them."""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from sluice.core import (
    MAX_MATERIAL_BYTES,
    Home,
    PkiError,
    StoreError,
    files_below,
    is_locked,
    lock_within,
    paths_matching,
    read_bounded,
)
from sluice.pki.authorities import CERTIFICATE_FILE, AuthorityStore, bundle_file, rotation_directory
from sluice.pki.ca import Refusal, needing_attention, refusals_path
from sluice.pki.identities import CA_FILE, CHAIN_FILE, KEY_FILE, KEYSTORE_FILE, PASSWORD_FILE, PEERS_FILE, PREVIOUS_FILE
from sluice.pki.inspect.doctor.facts import AuthorityFact, FileFact, HomeFacts, IdentityFact, ListFact
from sluice.pki.ledger import ledger_path, verify_ledger
from sluice.pki.revocation import (
    BASE_FILE,
    COMPLETE_LISTS_FILE,
    CRL_FILE,
    DELTA_FILE,
    JOB_IDENTITIES,
    MAX_CRL_BYTES,
    PROCESS_IDENTITIES,
)
from sluice.pki.x509 import ISSUING, AuthorityKind

MAX_FILES = 200_000
"""Most files and directories read in one home."""
LOCK_SECONDS = 1.0
"""How long to wait for a writer of one identity."""
_PUBLIC = frozenset(
    {
        CERTIFICATE_FILE,
        CHAIN_FILE,
        CA_FILE,
        CRL_FILE,
        COMPLETE_LISTS_FILE,
        BASE_FILE,
        DELTA_FILE,
        PREVIOUS_FILE,
        PEERS_FILE,
        *(bundle_file(Path(), kind).name for kind in ISSUING),
    }
)
"""Names that others may read below ``pki``: everything else there counts as secret."""
_SECRET = frozenset({KEY_FILE, KEYSTORE_FILE, PASSWORD_FILE})
"""The secret files of a job's identity; its JVM writes other files beside them."""


def read_home(home: Home, *, running: bool) -> HomeFacts:
    """Read all facts of ``home`` for the checks; :class:`StoreError` when there is no home."""
    try:
        owner = home.root.stat().st_uid
    except OSError as error:
        raise StoreError(f"cannot read {home.root}: {error.strerror or error}", "name a home with --home") from error
    reader = _Reader()
    ledger = ledger_path(home.pki)
    return HomeFacts(
        root=home.root,
        owner=owner,
        running=running,
        files=tuple(_files(home)),
        identities=tuple(_identities(home, reader)),
        authorities=tuple(_authorities(home, reader)),
        bundles=tuple(_bundles(home, reader)),
        lists=tuple(_lists(home, reader)),
        leftovers=tuple(_leftovers(home)),
        unreadable=tuple(reader.failed),
        ledger=ledger if ledger.exists() else None,
        ledger_error=_ledger_error(ledger) if ledger.exists() else "",
        refusals=_refusals(home, reader),
    )


class _Reader:
    """Reads files that may be missing, and remembers unreadable ones."""

    def __init__(self) -> None:
        self.failed: list[tuple[Path, str]] = []

    def read(self, path: Path, limit: int = MAX_MATERIAL_BYTES) -> bytes | None:
        """The content; None when there is no such file, or it cannot be read."""
        if not path.exists():
            return None
        try:
            return read_bounded(path, limit)
        except StoreError as error:
            self.failed.append((path, error.what))
            return None


def _files(home: Home) -> Iterator[FileFact]:
    places = [home.root, home.gateway, home.run, home.run / "endpoints", home.sockets]
    for path in places:
        yield from _fact(path, secret=False)
    for count, path in enumerate(_below(home.pki)):
        if count >= MAX_FILES:
            raise StoreError(f"{home.pki} holds more than {MAX_FILES} files", "is it the right directory?")
        yield from _fact(path, secret=path.name not in _PUBLIC)
    for directory in _matching(home, JOB_IDENTITIES):
        yield from _fact(directory, secret=False)
        for name in sorted(_SECRET | _PUBLIC):
            yield from _fact(directory / name, secret=name in _SECRET)


def _below(directory: Path) -> Iterator[Path]:
    """``directory`` and everything in it, without staged files (leftovers) and without following symbolic links."""
    if not directory.is_dir():
        return
    yield directory
    for where, directories, names in os.walk(directory):
        directories[:] = sorted(name for name in directories if not _is_staged(name))
        for name in (*directories, *sorted(names)):
            path = Path(where, name)
            if not _is_staged(name) and not path.is_symlink():
                yield path


def _fact(path: Path, *, secret: bool) -> Iterator[FileFact]:
    """The facts of one file; None when it is missing."""
    with contextlib.suppress(FileNotFoundError):
        info = path.stat()
        yield FileFact(path, info.st_mode, info.st_uid, secret)


def _matching(home: Home, patterns: tuple[str, ...]) -> list[Path]:
    return sorted(
        path
        for pattern in patterns
        for path in paths_matching(home.root, pattern)
        if path.is_dir() and not path.name.startswith(".")
    )


def _identities(home: Home, reader: _Reader) -> Iterator[IdentityFact]:
    for patterns, job in ((PROCESS_IDENTITIES, False), (JOB_IDENTITIES, True)):
        for directory in _matching(home, patterns):
            with _no_writer(directory.parent):
                if directory.exists():  # a job's directory may have gone meanwhile
                    yield _identity(directory, reader, job=job)


def _identity(directory: Path, reader: _Reader, *, job: bool) -> IdentityFact:
    chain = directory / CHAIN_FILE
    written_at = None
    with contextlib.suppress(FileNotFoundError):
        written_at = dt.datetime.fromtimestamp(chain.stat().st_mtime, dt.UTC)
    return IdentityFact(
        directory,
        job,
        key_pem=reader.read(directory / KEY_FILE),
        chain_pem=reader.read(chain),
        ca_pem=reader.read(directory / CA_FILE),
        crl_pem=reader.read(directory / CRL_FILE, MAX_CRL_BYTES),
        keystore=reader.read(directory / KEYSTORE_FILE),
        password=reader.read(directory / PASSWORD_FILE),
        written_at=written_at,
    )


@contextlib.contextmanager
def _no_writer(directory: Path) -> Iterator[None]:
    """Keep writers (see ``locked``) out while a set is read; does not wait long for a running one."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield
        return
    try:
        lock_within(descriptor, LOCK_SECONDS, kind=fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def _authorities(home: Home, reader: _Reader) -> Iterator[AuthorityFact]:
    store = AuthorityStore(home.pki)
    for kind in AuthorityKind:
        if store.exists(kind):
            directory = store.directory(kind)
            yield AuthorityFact(
                kind, directory, reader.read(store.certificate_file(kind)), reader.read(directory / KEY_FILE)
            )


def _bundles(home: Home, reader: _Reader) -> Iterator[bytes]:
    """The bundles of a rotation: the other generation, and the published trust."""
    others = sorted(rotation_directory(home.pki).glob(f"authorities/*/{CERTIFICATE_FILE}"))
    for path in (*others, *(bundle_file(home.pki, kind) for kind in ISSUING)):
        pem = reader.read(path)
        if pem is not None:
            yield pem


def _lists(home: Home, reader: _Reader) -> Iterator[ListFact]:
    for path in sorted((home.pki / "revocation").glob(f"*/{CRL_FILE}")):
        pem = reader.read(path, MAX_CRL_BYTES)
        if pem is not None:
            yield ListFact(path, pem)


def _is_staged(name: str) -> bool:
    """Whether a name is one of :func:`sluice.core.files.staged_name`."""
    return name.startswith(".") and name.endswith(".tmp")


def _leftovers(home: Home) -> Iterator[Path]:
    """Staged content of dead writers: a living one holds the lock of the directory, or of the one above."""
    staged = sorted(
        folder / name
        for folder, folders, files in files_below(home.pki)
        for name in (*folders, *files)
        if _is_staged(name)
    )
    for directory in _matching(home, JOB_IDENTITIES):
        staged += paths_matching(directory.parent, ".*.tmp") + paths_matching(directory, ".*.tmp")
    for path in staged:
        inside = any(_is_staged(part.name) for part in path.parents)
        if inside or is_locked(path.parent) or is_locked(path.parent.parent):
            continue
        if os.path.lexists(path):  # its writer may have finished since
            yield path


def _refusals(home: Home, reader: _Reader) -> tuple[Refusal, ...]:
    try:
        return needing_attention(home, dt.datetime.now(dt.UTC))
    except PkiError as error:
        reader.failed.append((refusals_path(home.pki), error.what))
        return ()


def _ledger_error(path: Path) -> str:
    try:
        verify_ledger(path)
    except PkiError as error:
        return error.what
    return ""
