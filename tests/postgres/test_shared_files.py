"""Credential files that several machines share.

Only one machine writes at a time, no change is lost, and what was revoked does not come back.
"""

from __future__ import annotations

import datetime as dt
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sluice.core import Home, write_secret
from sluice.gateway.credentials import AccessTokenKeys, Revocations, TokenStore, UserStore
from sluice.gateway.errors import SharedStoreError
from sluice.gateway.shared_store.database import Database
from sluice.gateway.shared_store.record import STATE
from sluice.gateway.shared_store.shared_files import PENDING
from tests.postgres.conftest import Machine
from tests.postgres.server import Server
from tests.waiting import wait_until

HOUR = dt.timedelta(hours=1)


def created(home: Home, name: str = "ada") -> str:
    return TokenStore(home).create(name, "submitter", HOUR)[0].id


def ids(home: Home) -> set[str]:
    return {record.id for record in TokenStore(home).read().records}


def test_files_written_by_one_machine_appear_on_the_other(machine: Machine) -> None:
    (one, files), (other, others) = machine("one"), machine("other")
    token = created(one)
    UserStore(one).add("grace", "correct horse battery", roles=("viewer",), groups=())
    AccessTokenKeys.of(one).refresh(1_800_000_000.0)
    others.pull()
    assert ids(other) == {token}
    assert UserStore(other).read().get("grace") is not None
    assert [path.name for path in sorted((other.gateway / "pass-keys").iterdir())] == [
        path.name for path in sorted((one.gateway / "pass-keys").iterdir())
    ]
    Revocations.of(other).revoke(("user", "grace"))
    UserStore(other).remove("grace")
    files.pull()
    assert Revocations.of(one).is_revoked(("user", "grace"))
    assert UserStore(one).read().get("grace") is None
    assert files.revision == others.revision


def test_retired_keys_are_removed_on_all_machines(machine: Machine) -> None:
    (one, _), (other, others) = machine("one"), machine("other")
    keys, start = AccessTokenKeys.of(one), 1_800_000_000.0
    keys.refresh(start)
    keys.refresh(start + 90_000)
    others.pull()
    assert len(list((other.gateway / "pass-keys").iterdir())) == 2
    keys.refresh(start + 180_000)
    keys.refresh(start + 190_000)
    others.pull()
    names = {path.name for path in (other.gateway / "pass-keys").iterdir()}
    assert names == {path.name for path in (one.gateway / "pass-keys").iterdir()}
    assert not any(name.startswith(str(int(start))) for name in names)


def test_writers_on_several_machines_lose_nothing(machine: Machine) -> None:
    homes = [machine(name)[0] for name in ("one", "two", "three")]
    with ThreadPoolExecutor(9) as pool:
        made = list(pool.map(lambda number: created(homes[number % 3], f"user-{number}"), range(45)))
    assert len(set(made)) == 45
    for home, files in (machine(name) for name in ("one", "two", "three")):
        files.pull()
        assert ids(home) == set(made)


def test_the_database_sees_only_ciphertext_of_files(machine: Machine, server: Server) -> None:
    home, _ = machine("one")
    created(home)
    AccessTokenKeys.of(home).refresh(1_800_000_000.0)
    rows = server.sql("SELECT encode(content, 'escape') FROM sluice_files", "sluice")
    assert rows
    for word in ("ada", "submitter", "PRIVATE", "BEGIN"):
        assert word not in rows


def test_no_change_is_made_without_the_database(machine: Machine, server: Server) -> None:
    home, files = machine("one")
    token = created(home)
    before = {path.name: path.read_bytes() for path in home.gateway.iterdir() if path.is_file()}
    server.stop()
    try:
        for change in (lambda: created(home), lambda: Revocations.of(home).revoke(("user", "ada"))):
            with pytest.raises(SharedStoreError):
                change()
        assert {path.name: path.read_bytes() for path in home.gateway.iterdir() if path.is_file()} == before
    finally:
        server.start()
    assert ids(home) == {token}
    Revocations.of(home).revoke(("user", "ada"))
    files.pull()
    assert Revocations.of(home).is_revoked(("user", "ada"))


def test_a_change_is_rolled_back_when_the_connection_is_lost_before_the_commit(
    machine: Machine, server: Server
) -> None:
    home, files = machine("one")
    token = created(home)

    def interrupted() -> None:
        with files.writing():
            write_secret(home.gateway / "tokens.json", b"not committed")
            write_secret(home.gateway / "users.json", b"new")
            server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'sluice'")

    with pytest.raises(SharedStoreError):
        interrupted()
    assert ids(home) == {token}
    assert not (home.gateway / "users.json").exists()
    assert not (home.gateway / PENDING).exists()
    assert created(home) in ids(home)


def test_a_first_upload_that_was_not_committed_is_repeated_at_the_next_start(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = created(Home.at(tmp_path / "one"))

    def lost(*_: object) -> None:
        raise SharedStoreError("the connection broke before the commit")

    with monkeypatch.context() as broken:
        broken.setattr(Database, "_commit", lost)
        with pytest.raises(SharedStoreError, match="before the commit"):
            machine("one")
    machine("one")
    assert ids(machine("other")[0]) == {mine}


_KILLED = """
import os, signal, sys
from pathlib import Path
from sluice.core import Home, write_secret
from sluice.gateway.shared_store import shared_files_in
home = Home.at(Path(sys.argv[1]))
with shared_files_in(home.gateway).writing():
    write_secret(home.gateway / "tokens.json", b"of one who was killed")
    write_secret(home.gateway / "users.json", b"likewise")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_change_of_a_writer_that_was_killed_is_undone(machine: Machine) -> None:
    home, files = machine("one")
    token = created(home)
    done = subprocess.run([sys.executable, "-c", _KILLED, str(home.root)], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert (home.gateway / "tokens.json").read_bytes() == b"of one who was killed"
    assert (home.gateway / PENDING).exists()
    files.pull()
    assert ids(home) == {token}
    assert not (home.gateway / "users.json").exists()
    assert not (home.gateway / PENDING).exists()


def test_a_manual_change_of_a_file_is_undone_at_the_next_start(machine: Machine) -> None:
    home, files = machine("one")
    token = created(home)
    files.close()
    write_secret(home.gateway / "tokens.json", b"[]")
    _, again = machine("one", stale_after=3.0)
    assert ids(home) == {token}
    assert again.revision == files.revision


def test_a_database_with_an_older_revision_is_refused(machine: Machine, server: Server) -> None:
    (home, files), (other, others) = machine("one"), machine("other")
    token = created(home)
    server.sql("CREATE TABLE kept AS TABLE sluice_files; CREATE TABLE head AS TABLE sluice_head", "sluice")
    try:
        TokenStore(home).revoke(TokenStore(home).read().records[0].id)
        server.sql(
            "DELETE FROM sluice_files; INSERT INTO sluice_files TABLE kept;"
            "DELETE FROM sluice_head; INSERT INTO sluice_head TABLE head",
            "sluice",
        )
    finally:
        server.sql("DROP TABLE kept; DROP TABLE head", "sluice")
    for refused in (files.pull, lambda: created(home)):
        with pytest.raises(SharedStoreError, match="gone back"):
            refused()
    assert [record.state(time.time()) for record in TokenStore(home).read().records] == ["revoked"]
    assert files.replace_store() >= 1
    others.pull()
    assert [record.state(time.time()) for record in TokenStore(other).read().records] == ["revoked"]
    assert ids(other) == {token}


def test_an_emptied_database_is_refused(machine: Machine, server: Server) -> None:
    home, files = machine("one")
    created(home)
    for table in ("sluice_head", "sluice_files", "sluice_entries"):
        server.sql(f"DROP TABLE {table}", "sluice")
    files.close()
    with pytest.raises(SharedStoreError, match="gone back"):
        files.pull()
    assert len(ids(home)) == 1


def test_a_home_with_its_own_files_is_refused_and_keeps_them(machine: Machine, tmp_path: Path) -> None:
    one, _ = machine("one")
    token = created(one)
    single = Home.at(tmp_path / "other")
    mine = created(single)
    with pytest.raises(SharedStoreError, match=r"files of its own \(tokens.json\)"):
        machine("other")
    assert ids(single) == {mine}
    (single.gateway / "tokens.json").unlink()
    machine("other")
    assert ids(single) == {token}


def test_the_first_home_fills_the_database(machine: Machine, tmp_path: Path) -> None:
    mine = created(Home.at(tmp_path / "one"))
    machine("one")
    assert ids(machine("other")[0]) == {mine}


def test_rows_altered_in_the_database_are_refused(machine: Machine, server: Server) -> None:
    (one, _), (other, others) = machine("one"), machine("other")
    token = created(one)
    others.pull()
    Revocations.of(one).revoke(("user", "ada"))
    for forged in (
        "UPDATE sluice_files SET content = '\\x00' WHERE name = 'revocations.jsonl'",
        "UPDATE sluice_files SET name = '../../escaped' WHERE name = 'revocations.jsonl'",
        "DELETE FROM sluice_files",
        "UPDATE sluice_head SET revision = revision + 1",
        "UPDATE sluice_head SET manifest = NULL",
    ):
        server.sql(
            f"CREATE TABLE kept AS TABLE sluice_files; CREATE TABLE head AS TABLE sluice_head; {forged}", "sluice"
        )
        with pytest.raises(SharedStoreError, match=r"changed"):
            others.pull()
        server.sql(
            "DELETE FROM sluice_files; INSERT INTO sluice_files TABLE kept; DROP TABLE kept;"
            "DELETE FROM sluice_head; INSERT INTO sluice_head TABLE head; DROP TABLE head",
            "sluice",
        )
    assert not Revocations.of(other).is_revoked(("user", "ada"))
    others.pull()
    assert Revocations.of(other).is_revoked(("user", "ada"))
    assert ids(other) == {token}
    assert not (other.root.parent / "escaped").exists()


def test_stale_copies_are_not_used_for_decisions(machine: Machine, server: Server) -> None:
    home, files = machine("one", stale_after=0.5)
    ended = threading.Event()
    following = threading.Thread(target=files.follow, args=[ended])
    following.start()
    revocations = Revocations.of(home, files.check_fresh)

    def decides() -> bool:
        try:
            return not revocations.is_revoked(("user", "ada"))
        except SharedStoreError as error:
            if "not answered for more than" not in error.what:
                raise
            return False

    try:
        wait_until(decides, "it does not follow")
        server.stop()
        try:
            wait_until(lambda: not decides(), "it goes on with old copies")
        finally:
            server.start()
        wait_until(decides, "it does not come back")
    finally:
        ended.set()
        following.join(20)


_WITHOUT_SPACE = """
import resource, signal, sys
from pathlib import Path
from sluice.core import Home
from sluice.gateway.credentials import UserStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (8, 8))
UserStore(Home.at(Path(sys.argv[1]))).add("eve", "correct horse battery", roles=("viewer",), groups=())
"""


def test_a_full_disk_fails_a_change_and_does_not_block_later_ones(machine: Machine) -> None:
    (one, _), (other, others) = machine("one"), machine("other")
    token = created(one)
    others.pull()
    command = [sys.executable, "-c", _WITHOUT_SPACE, str(one.root)]
    limit = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert limit.returncode != 0
    others.pull()
    assert ids(other) == ids(one) == {token}
    assert UserStore(other).read().get("eve") is None
    assert created(one) in ids(one)
    assert (one.gateway / STATE).exists()
