"""The store that auth services of one machine share: one change at a time, and never two stores."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.gateway.errors import SharedStoreError
from sluice.gateway.shared_store.sqlite import SqliteStore
from sluice.gateway.shared_store.store import MAX_KEY_CHARACTERS, MAX_VALUE_BYTES, Entry

NOW = 1_800_000_000.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gateway" / "shared.sqlite"


@pytest.fixture
def two(path: Path) -> Iterator[tuple[SqliteStore, SqliteStore]]:
    """Open the same store twice, as two processes would."""
    with contextlib.closing(SqliteStore(path)) as one, contextlib.closing(SqliteStore(path)) as other:
        yield one, other


def entry(key: str, value: bytes = b"", *, since: float = NOW, until: float = NOW + 60, group: str = "") -> Entry:
    return Entry(key, value, since, until, group)


def put(store: SqliteStore, *entries: Entry, space: str = "s", now: float = NOW) -> None:
    with store.transaction(space, now) as open_:
        for each in entries:
            open_.put(each)


def keys(store: SqliteStore, group: str | None = None, *, space: str = "s", now: float = NOW) -> list[str]:
    with store.transaction(space, now) as open_:
        return [each.key for each in open_.entries(group)]


def test_an_entry_written_by_one_store_is_read_by_the_other(two: tuple[SqliteStore, SqliteStore]) -> None:
    one, other = two
    first, second = entry("b", b"1", group="g"), entry("a", b"2", since=NOW + 1)
    put(one, second, first)
    with other.transaction("s", NOW) as open_:
        assert open_.get("b") == first
        assert (open_.count(), open_.count("g"), open_.count("h")) == (2, 1, 0)
        assert open_.oldest() == first
        assert open_.oldest("h") is None
        assert open_.entries() == [first, second]
        open_.remove("b")
        open_.remove("no such")
        open_.put(entry("a", b"3"))
    assert keys(one) == ["a"]
    assert keys(one, space="another") == []


def test_an_entry_expires_by_itself(two: tuple[SqliteStore, SqliteStore]) -> None:
    one, other = two
    put(one, entry("k", until=NOW + 60))
    assert keys(other, now=NOW + 60) == ["k"]
    assert keys(other, now=NOW + 61) == []


def test_a_failed_transaction_changes_nothing(two: tuple[SqliteStore, SqliteStore]) -> None:
    one, other = two

    def fail() -> None:
        with one.transaction("s", NOW) as open_:
            open_.put(entry("k"))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert keys(other) == []
    assert keys(one) == []


def test_an_entry_taken_concurrently_is_given_to_exactly_one_store(two: tuple[SqliteStore, SqliteStore]) -> None:
    taken: list[str] = []

    def take(store: SqliteStore) -> None:
        for number in range(20):
            with store.transaction("s", NOW) as open_:
                if open_.get(str(number)) is not None:
                    open_.remove(str(number))
                    taken.append(str(number))

    put(two[0], *(entry(str(number)) for number in range(20)))
    threads = [threading.Thread(target=take, args=(store,)) for store in (*two, *two)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken, key=int) == [str(number) for number in range(20)]


def test_the_store_files_are_readable_only_by_their_owner(two: tuple[SqliteStore, SqliteStore], path: Path) -> None:
    put(two[0], entry("k"))
    found = {each.name: each.stat().st_mode & 0o777 for each in path.parent.iterdir()}
    assert found == dict.fromkeys(("shared.sqlite", "shared.sqlite-wal", "shared.sqlite-shm"), 0o600)


def test_a_store_that_others_can_read_is_refused(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    path.touch(mode=0o644)
    path.chmod(0o644)
    with pytest.raises(SharedStoreError, match="others can use"):
        keys(SqliteStore(path))


def test_a_store_behind_a_symbolic_link_is_refused(path: Path, tmp_path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    (tmp_path / "elsewhere").touch(mode=0o600)
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SharedStoreError, match="cannot open"):
        keys(SqliteStore(path))


def test_a_removed_store_is_not_used_any_longer(two: tuple[SqliteStore, SqliteStore], path: Path) -> None:
    """Otherwise a code that was used in the one store could be used again in the other."""
    one, other = two
    put(one, entry("old"))
    assert keys(other) == ["old"]
    for each in path.parent.iterdir():
        each.unlink()
    put(other, entry("new"))
    assert keys(one) == ["new"]


def test_a_damaged_store_is_refused_until_it_is_replaced(two: tuple[SqliteStore, SqliteStore], path: Path) -> None:
    one, _ = two
    path.parent.mkdir(mode=0o700)
    path.touch(mode=0o600)
    path.write_bytes(b"not a database" * 100)
    for _ in range(2):
        with pytest.raises(SharedStoreError, match="is damaged"):
            keys(one)
    path.unlink()
    assert keys(one) == []


def test_a_store_of_a_later_version_is_refused(path: Path) -> None:
    put(SqliteStore(path), entry("k"))
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 2")
        connection.commit()
    with pytest.raises(SharedStoreError, match="version 2"):
        keys(SqliteStore(path))


def test_a_store_that_stays_locked_too_long_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.gateway.shared_store.sqlite.BUSY_SECONDS", 0.05)
    with contextlib.closing(SqliteStore(path)) as one, contextlib.closing(SqliteStore(path)) as other:
        assert keys(other) == []
        with one.transaction("s", NOW), pytest.raises(SharedStoreError, match="locked"):
            keys(other)
        assert keys(other) == []


def test_a_full_store_refuses_new_entries_and_keeps_the_old_ones(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.gateway.shared_store.sqlite.MAX_PAGES", 32)
    with contextlib.closing(SqliteStore(path)) as store:
        put(store, entry("kept"))
        with pytest.raises(SharedStoreError, match="full"):
            put(store, *(entry(str(number), b"x" * MAX_VALUE_BYTES) for number in range(8)))
        assert keys(store) == ["kept"]


@pytest.mark.parametrize(
    "large", [entry(""), entry("k" * (MAX_KEY_CHARACTERS + 1)), entry("k", b"x" * (MAX_VALUE_BYTES + 1))]
)
def test_an_entry_that_is_too_large_is_refused(two: tuple[SqliteStore, SqliteStore], large: Entry) -> None:
    with pytest.raises(SharedStoreError, match="too large"):
        put(two[0], large)
    assert keys(two[1]) == []
