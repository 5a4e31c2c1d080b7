"""The shared store in PostgreSQL.

It makes one change at a time, and the database can neither read nor forge entries.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import trustme

from sluice.core import write_secret
from sluice.gateway.config import SharedStoreConfig
from sluice.gateway.errors import SharedStoreError
from sluice.gateway.shared_store import Entry, new_key
from sluice.gateway.shared_store.cipher import StoreCipher
from sluice.gateway.shared_store.database import Database
from sluice.gateway.shared_store.postgres import PostgresStore
from sluice.gateway.shared_store.store import MAX_KEY_CHARACTERS, MAX_VALUE_BYTES
from tests.postgres.server import Server

NOW = 1_800_000_000.25


def opened(config: SharedStoreConfig) -> PostgresStore:
    return PostgresStore(Database(config), StoreCipher.from_file(Path(config.encryption_key_file)))


@pytest.fixture
def two(config: SharedStoreConfig) -> Iterator[tuple[PostgresStore, PostgresStore]]:
    """Provide two stores of the same database, as two machines have them."""
    with contextlib.closing(opened(config)) as one, contextlib.closing(opened(config)) as other:
        yield one, other


def entry(key: str, value: bytes = b"", *, since: float = NOW, until: float = NOW + 60, group: str = "") -> Entry:
    return Entry(key, value, since, until, group)


def put(store: PostgresStore, *entries: Entry, now: float = NOW) -> None:
    with store.transaction("s", now) as open_:
        for each in entries:
            open_.put(each)


def test_an_entry_written_by_one_store_is_read_by_the_other(two: tuple[PostgresStore, PostgresStore]) -> None:
    one, other = two
    first, second = entry("b", b"1", group="g"), entry("a", b"2", since=NOW + 0.1)
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
    with one.transaction("s", NOW) as open_:
        assert open_.entries() == [entry("a", b"3")]
    with one.transaction("t", NOW) as open_:
        assert open_.entries() == []


def test_an_expired_entry_is_not_returned(two: tuple[PostgresStore, PostgresStore]) -> None:
    one, other = two
    put(one, entry("a", until=NOW + 1), entry("b"))
    with other.transaction("s", NOW + 2) as open_:
        assert [each.key for each in open_.entries()] == ["b"]


def test_a_transaction_that_raises_changes_nothing(two: tuple[PostgresStore, PostgresStore]) -> None:
    one, other = two

    def failing() -> None:
        with one.transaction("s", NOW) as open_:
            open_.put(entry("a"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    with other.transaction("s", NOW) as open_:
        assert open_.count() == 0


def test_a_full_space_refuses_new_entries_and_still_changes_existing_ones(
    two: tuple[PostgresStore, PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.gateway.shared_store.postgres.MAX_ENTRIES", 2)
    one, other = two
    put(one, entry("a"), entry("b"))
    with pytest.raises(SharedStoreError, match="the maximum of 2 entries"):
        put(one, entry("c"))
    put(one, entry("a", b"changed"))
    with other.transaction("s", NOW) as open_:
        assert {each.key: each.value for each in open_.entries()} == {"a": b"changed", "b": entry("b").value}


def test_a_code_is_used_only_once_by_concurrent_stores(config: SharedStoreConfig) -> None:
    stores = [opened(config) for _ in range(8)]
    for number in range(10):
        put(stores[0], entry(f"code-{number}"))
    used: list[str] = []
    together = threading.Barrier(len(stores))

    def take(store: PostgresStore) -> None:
        together.wait(10)
        for number in range(10):
            with store.transaction("s", NOW) as open_:
                if open_.get(f"code-{number}") is not None:
                    open_.remove(f"code-{number}")
                    used.append(f"code-{number}")

    threads = [threading.Thread(target=take, args=[store]) for store in stores]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    for store in stores:
        store.close()
    assert sorted(used) == sorted(f"code-{number}" for number in range(10))


def test_the_database_sees_only_ciphertext_of_entries(two: tuple[PostgresStore, PostgresStore], server: Server) -> None:
    put(two[0], entry("a secret key", b"a secret value", group="192.0.2.1"))
    rows = server.sql(
        "SELECT encode(key, 'escape'), encode(value, 'escape'), encode(grouping, 'escape') FROM sluice_entries",
        "sluice",
    )
    assert rows
    for word in ("secret", "192.0.2.1"):
        assert word not in rows


@pytest.mark.parametrize(
    "forged", ["value = (SELECT value FROM sluice_entries WHERE since = 2)", "until = until + 3600", "value = '\\x00'"]
)
def test_an_entry_forged_in_the_database_is_refused(
    two: tuple[PostgresStore, PostgresStore], server: Server, forged: str
) -> None:
    put(two[0], entry("a", b"1", since=1.0), entry("b", b"2", since=2.0))
    server.sql(f"UPDATE sluice_entries SET {forged} WHERE since = 1", "sluice")  # noqa: S608  our own words
    with pytest.raises(SharedStoreError, match="another key, or changed"), two[1].transaction("s", NOW) as open_:
        open_.get("a")
    with two[1].transaction("s", NOW) as open_:
        assert open_.get("b") == entry("b", b"2", since=2.0)


def test_a_store_with_another_encryption_key_is_refused(config: SharedStoreConfig, tmp_path: Path) -> None:
    with contextlib.closing(opened(config)) as store:
        put(store, entry("a", group="g"))
    write_secret(tmp_path / "other.key", new_key())
    other = msgspec.structs.replace(config, encryption_key_file=str(tmp_path / "other.key"))
    with contextlib.closing(opened(other)) as store, store.transaction("s", NOW) as open_:
        assert open_.get("a") is None, "it has another name"
        with pytest.raises(SharedStoreError, match="another key"):
            open_.entries()


def test_an_entry_that_is_too_large_or_has_an_empty_key_is_refused(two: tuple[PostgresStore, PostgresStore]) -> None:
    for each in (entry("k" * (MAX_KEY_CHARACTERS + 1)), entry(""), entry("k", b"v" * (MAX_VALUE_BYTES + 1))):
        with pytest.raises(SharedStoreError, match="too large"):
            put(two[0], each)
    put(two[0], entry("k", b"v" * MAX_VALUE_BYTES))


def test_stores_survive_a_restart_of_the_database(two: tuple[PostgresStore, PostgresStore], server: Server) -> None:
    put(two[0], entry("a"))
    server.stop("immediate")
    try:
        for store in two:
            with pytest.raises(SharedStoreError, match=r"answer|used"):
                put(store, entry("b"))
    finally:
        server.start()
    for store in two:
        with store.transaction("s", NOW) as open_:
            assert open_.get("a") == entry("a")


def test_a_connection_with_wrong_tls_settings_or_password_is_refused(config: SharedStoreConfig, tmp_path: Path) -> None:
    bare = msgspec.structs.replace(config, certificate_file="", key_file="")
    strange = msgspec.structs.replace(config, ca_file=str(tmp_path / "foreign.pem"))
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "foreign.pem"))
    other_name = msgspec.structs.replace(config, hosts=(config.hosts[0].replace("127.0.0.1", "127.0.0.2"),))
    wrong = tmp_path / "wrong"
    write_secret(wrong, b"wrong\n")
    password = msgspec.structs.replace(config, password_file=str(wrong))
    for each in (bare, strange, other_name, password):
        with contextlib.closing(opened(each)) as store, pytest.raises(SharedStoreError) as refused:
            put(store, entry("a"))
        assert "wrong" not in str(refused.value).replace("wrong.pem", "")


def test_a_certificate_without_password_suffices_where_the_server_allows_it(
    config: SharedStoreConfig, server: Server
) -> None:
    certs = msgspec.structs.replace(config, database="certs", password_file="")
    with contextlib.closing(opened(certs)) as store:
        put(store, entry("a"))
        with store.transaction("s", NOW) as open_:
            assert open_.count() == 1
    for table in ("sluice_head", "sluice_files", "sluice_entries"):
        server.sql(f"DROP TABLE {table}", "certs")


def test_tables_of_another_version_are_refused(config: SharedStoreConfig, server: Server) -> None:
    with contextlib.closing(opened(config)) as store:
        put(store, entry("a"))
    server.sql("UPDATE sluice_head SET version = 2", "sluice")
    with contextlib.closing(opened(config)) as store, pytest.raises(SharedStoreError, match="version 2"):
        put(store, entry("a"))


def test_a_transaction_that_ignores_a_failed_statement_changes_nothing(config: SharedStoreConfig) -> None:
    with contextlib.closing(Database(config)) as database:

        def overlooking() -> None:
            with database.transaction() as statements:
                statements.run("UPDATE sluice_head SET revision = 7")
                with contextlib.suppress(SharedStoreError):
                    statements.run("SELECT no_such_column FROM sluice_head")

        with pytest.raises(SharedStoreError, match="nothing was changed"):
            overlooking()
        with database.transaction() as statements:
            assert statements.run("SELECT revision FROM sluice_head") == [[0]]
