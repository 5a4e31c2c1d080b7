"""A consistent view of a home's files while its cluster runs, with the locks of its writers, if any.

Small files are read into memory. Append-only logs are read up to their size at that moment. Entries of jobs in the HA
storage never change under one name, and get a second name (a hard link) until they have been copied.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from sluice.cli.backup.archive import Content, InMemory, OnDisk, Opened
from sluice.cli.backup.contents import is_included
from sluice.cli.backup.errors import BackupFailed
from sluice.core import Home, StoreError, locked, make_private_directory, read_bounded, staged_name
from sluice.gateway.audit_log import audit_directory, log_files
from sluice.pki.ledger import ledger_path

MAX_SMALL_BYTES = 64 << 20
MAX_FILES = 150_000
LOCK_SECONDS = 10.0
MAX_PASSES = 50
"""How often to read pointers until each is the same before and after linking its target."""
MAX_LINE_BYTES = 64 << 10
SCRATCH = ".backup"
_OF_JOBS = frozenset({"jobs", "results", "attempts", "checkpoints", "history", "shuffles"})
"""Folders in which names begin with the id of a job."""


@contextlib.contextmanager
def home_files(home: Home) -> Iterator[list[Content]]:
    """All files of ``home`` that belong into a backup, valid within the block.

    Raises :class:`BackupFailed` or ``StoreError``: something could not be read completely.
    """
    with contextlib.ExitStack() as stack:
        contents: dict[str, Content] = {}

        def take(found: list[Content]) -> None:
            contents.update((each.path, each) for each in found)

        take(_small(home, "sluice.toml"))
        take(_authorities(home))
        for directory in _directories(home.pki / "revocation"):
            with locked(directory, patience=LOCK_SECONDS):
                take(_small(home, f"pki/revocation/{directory.name}"))
        # Notes before the ledger that absorbs them: a note in both is recognised, one in neither would be lost.
        for name in ("jwt", "pending", "outside.json", "audit-identities.jsonl", "ca/notes"):
            take(_small(home, f"pki/{name}"))
        take(stack.enter_context(_ledger(home)))
        take(_small(home, "pki/ca/superseded.json"))
        for path in sorted((home.pki / "ca").glob("followers*.json")):
            take(_small(home, f"pki/ca/{path.name}"))
        if home.gateway.is_dir():
            with locked(home.gateway, patience=LOCK_SECONDS):
                for path in sorted(home.gateway.iterdir()):
                    if not path.is_dir():
                        take(_small(home, f"gateway/{path.name}"))
            # Before the log: a second export is harmless, a missing one is not.
            take(_small(home, "gateway/audit-export"))
            # Some servers allow one account per binding: its key cannot be replaced by a new one.
            take(_small(home, "gateway/acme/accounts"))
        envoys = _directories(home.root / "envoys")
        for directory in envoys:
            take(_small(home, f"envoys/{directory.name}/gateway/audit-export"))
        take(stack.enter_context(_jobs(home)))
        take(stack.enter_context(_audit_log(home, home)))
        for directory in envoys:
            take(stack.enter_context(_audit_log(home, home.envoy(directory.name))))
        yield [contents[path] for path in sorted(contents)]


def _authorities(home: Home) -> list[Content]:
    """The authorities, under the lock with which a rotation swaps the two generations."""
    directory = home.pki / "authorities"
    if not directory.is_dir():
        return []
    with locked(directory, patience=LOCK_SECONDS):
        return [
            each for name in ("authorities", "rotation", "retired", "trust") for each in _small(home, f"pki/{name}")
        ]


def _small(home: Home, name: str) -> list[Content]:
    """The file, or all files below the directory, of this name, in memory; empty if missing."""
    found: list[Content] = []
    for path in _walk(home.root / name):
        relative = path.relative_to(home.root).as_posix()
        if is_included(relative):
            with contextlib.suppress(FileNotFoundError):
                found.append(InMemory(relative, _read(path)))
    return found


def _read(path: Path) -> bytes:
    try:
        return read_bounded(path, MAX_SMALL_BYTES)
    except StoreError as error:
        if not path.exists():
            raise FileNotFoundError(path) from error
        raise


def _walk(top: Path) -> Iterator[Path]:
    """Files in a fixed order, without links and incomplete files."""
    try:
        mode = top.lstat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISREG(mode):
        yield top
    elif stat.S_ISDIR(mode):
        with contextlib.suppress(FileNotFoundError):  # it went meanwhile
            for path in sorted(top.iterdir()):
                if not path.name.startswith("."):
                    yield from _walk(path)


def _directories(top: Path) -> list[Path]:
    return sorted(path for path in top.iterdir() if path.is_dir()) if top.is_dir() else []


@contextlib.contextmanager
def _ledger(home: Home) -> Iterator[list[Content]]:
    """The ledger up to its last whole record: a certificate leaves only after its record is written."""
    path = ledger_path(home.pki)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield []
        return
    try:
        size = os.fstat(descriptor).st_size
        start = max(0, size - MAX_LINE_BYTES)
        whole = start + os.pread(descriptor, size - start, start).rfind(b"\n") + 1
        yield [Opened(path.relative_to(home.root).as_posix(), descriptor, whole)]
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _audit_log(home: Home, part: Home) -> Iterator[list[Content]]:
    """The audit log of ``part``: of the home itself, or of an Envoy beside the first."""
    with log_files(audit_directory(part)) as files:
        yield [
            OnDisk(relative, each.path) if each.descriptor < 0 else Opened(relative, each.descriptor, each.size)
            for each in files
            for relative in (each.path.relative_to(home.root).as_posix(),)
        ]


@contextlib.contextmanager
def _jobs(home: Home) -> Iterator[list[Content]]:
    """Pointers with their targets, and the keys of secrets."""
    ha = home.root / "ha"
    if not (ha / "pointers").is_dir():
        yield _small(home, "secret-keys")
        return
    with locked(ha, patience=0):  # one backup at a time
        for left in ha.glob(f".{SCRATCH}.*"):
            shutil.rmtree(left, ignore_errors=True)
        scratch = make_private_directory(ha / staged_name(SCRATCH))
        try:
            keys = _small(home, "secret-keys")
            pointers = _settled(home, scratch)
            entries = [OnDisk(f"ha/storage/{path.relative_to(scratch).as_posix()}", path) for path in _walk(scratch)]
            # Keys may be replaced meanwhile: everything is encrypted with keys of before or after.
            yield [*keys, *_small(home, "secret-keys"), *_of_known_jobs([*pointers, *entries])]
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _of_known_jobs(found: list[Content]) -> list[Content]:
    """The files without those of removed jobs, which a leader would treat as jobs with lost pointers."""
    parts = {each.path: each.path.split("/") for each in found if is_included(each.path)}
    jobs = {part[3] for part in parts.values() if part[:2] == ["ha", "pointers"] and part[2] in {"jobs", "results"}}
    return [
        each
        for each in found
        if (part := parts.get(each.path)) is not None
        and (part[2] not in _OF_JOBS or len(part) < 4 or part[3].partition("-")[0] in jobs)
    ]


def _settled(home: Home, scratch: Path) -> list[Content]:
    """The pointers that were equal before and after linking the storage, so that their targets existed."""
    before = _pointers(home)
    settled: dict[str, bytes] = {}
    for _ in range(MAX_PASSES):
        _keep(home.root / "ha" / "storage", scratch)
        after = _pointers(home)
        settled.update((name, data) for name, data in after.items() if before.get(name) == data)
        if after.keys() <= settled.keys():
            return [InMemory(name, settled[name]) for name in after]
        before = after
    raise BackupFailed("jobs changed all the time while they were read", "try again when fewer are submitted")


def _tops(storage: Path) -> list[Path]:
    """The top folders of the storage without the history, which may be large and is not needed."""
    return sorted(path for path in storage.iterdir() if path.name != "history") if storage.is_dir() else []


def _pointers(home: Home) -> dict[str, bytes]:
    return {each.path: each.data for each in _small(home, "ha/pointers") if isinstance(each, InMemory)}


def _keep(storage: Path, scratch: Path) -> None:
    """Hard-link each new entry; entries are never changed, only removed."""
    count = 0
    for path in (file for top in _tops(storage) for file in _walk(top)):
        count += 1
        if count > MAX_FILES:
            raise BackupFailed(f"the HA storage has more than {MAX_FILES} entries")
        target = scratch / path.relative_to(storage)
        if target.exists():
            continue
        make_private_directory(target.parent)
        with contextlib.suppress(FileNotFoundError):  # it was removed just now
            try:
                os.link(path, target, follow_symlinks=False)
            except FileNotFoundError:
                raise
            except OSError:  # a file system without links
                shutil.copyfile(path, target, follow_symlinks=False)
