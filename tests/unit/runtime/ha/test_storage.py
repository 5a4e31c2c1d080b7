"""Both HA storages: entries can be read back, missing ones are reported, and names stay inside."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from sluice.runtime.ha.errors import (
    EntryDamaged,
    EntryMissing,
    HaError,
    HaMisconfigured,
)
from sluice.runtime.ha.fsspec_storage import FsspecStorage
from sluice.runtime.ha.storage import HaStorage, LocalStorage, StoredEntry


@pytest.fixture(params=["local", "fsspec", "fsspec of files"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> HaStorage:
    """An empty storage."""
    match request.param:
        case "local":
            return LocalStorage(tmp_path / "storage")
        case "fsspec":
            return FsspecStorage(f"memory://{uuid.uuid4().hex}/storage")
        case _:
            return FsspecStorage(f"file://{tmp_path}/storage")


def test_entries_are_written_read_listed_and_removed(storage: HaStorage) -> None:
    storage.write("jobs/a/x.json", b"1")
    storage.write("jobs/b/y.json", b"2")
    storage.write("top", b"3")
    assert storage.read("jobs/a/x.json") == b"1"
    assert storage.names("jobs") == ["a", "b"]
    storage.remove("jobs/a")
    storage.remove("jobs/a")
    assert storage.names("jobs") == ["b"]
    assert storage.names("nowhere") == []
    with pytest.raises(EntryMissing):
        storage.read("jobs/a/x.json")
    with pytest.raises(EntryMissing):
        list(storage.chunks("jobs/a/x.json"))


def test_files_are_stored_and_read_in_pieces(storage: HaStorage, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x" * 3_000_000)
    for _ in range(2):
        storage.put_file("jobs/a/blobs/0", source)
    source.unlink()
    assert b"".join(storage.chunks("jobs/a/blobs/0")) == b"x" * 3_000_000
    assert storage.names("jobs/a/blobs") == ["0"]


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", ".hidden", "a//b", "", "a/\n"])
def test_an_entry_name_that_leads_out_of_the_storage_is_refused(storage: HaStorage, name: str) -> None:
    with pytest.raises(HaError):
        storage.write(name, b"")
    with pytest.raises(HaError):
        storage.read(name)


def test_an_entry_is_checked_against_its_pointer() -> None:
    entry = StoredEntry.of("x", b"content")
    assert entry.check(b"content") == b"content"
    for other in (b"conten", b"Content", b""):
        with pytest.raises(EntryDamaged):
            entry.check(other)


def test_a_storage_url_with_a_password_or_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(HaMisconfigured, match="password"):
        FsspecStorage("ftp://user:secret@host/x")
    with pytest.raises(HaMisconfigured):
        FsspecStorage("unheard-of://x")
