"""The store of many identities: writes are atomic, one writer at a time, and damage is reported."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from sluice.core.clock import utc_now
from sluice.core.errors import StoreError
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.config import PkiConfig
from sluice.pki.identities.database import IdentityStore
from sluice.pki.issuing.engine import IssuingEngine
from sluice.pki.issuing.inventory import parse_inventory
from sluice.pki.issuing.leaf import IssuedLeaf
from sluice.pki.spiffe_id import Role, SpiffeId
from tests.unit.core.files.test_files import disk_full_beyond

ROOT = Path(__file__).parents[4]
MANY = 3000
"""Enough that SQLite writes to the file before the transaction ends (its cache holds 2 MiB)."""


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> IssuedLeaf:
    pki = tmp_path_factory.mktemp("pki")
    AuthorityStore(pki).ensure(PkiConfig(), utc_now())
    request = next(iter(parse_inventory(b"[[identity]]\nid = 'taskmanager/tm-0'", PkiConfig())))
    return IssuingEngine(pki, PkiConfig()).sign(request)


def identity(number: int) -> SpiffeId:
    return SpiffeId.process("sluice.local", Role.TASKMANAGER, f"tm-{number}")


def put(store: IdentityStore, number: int, issued: IssuedLeaf) -> None:
    store.put(
        identity(number),
        key=issued.own_key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()),
        leaf=issued.leaf.public_bytes(Encoding.DER),
        authority=issued.authority.certificate.public_bytes(Encoding.DER),
    )


@pytest.fixture
def file(tmp_path: Path, issued: IssuedLeaf) -> Path:
    """A store with one identity."""
    with IdentityStore(tmp_path / "store", create=True) as store:
        put(store, 0, issued)
        store.commit()
    return tmp_path / "store"


def names(file: Path) -> list[SpiffeId]:
    with IdentityStore(file) as store:
        found = list(store.identities())
        assert len(store) == len(found)
    return found


def test_a_stored_identity_can_be_read_back(file: Path, issued: IssuedLeaf) -> None:
    with IdentityStore(file) as store:
        found = store.get(identity(0))
        assert store.get(identity(1)) is None
    assert found is not None
    assert found[0].leaf == issued.leaf
    assert found[0].anchors == (issued.authority.certificate,)
    assert names(file) == [identity(0)]


def test_a_writer_reads_its_own_uncommitted_identities(file: Path, issued: IssuedLeaf) -> None:
    with IdentityStore(file, create=True) as store:
        put(store, 1, issued)
        assert len(store) == 2
        put(store, 2, issued)
        assert store.get(identity(2)) is not None


def test_the_store_is_private_and_a_readable_one_is_refused(file: Path) -> None:
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o640)
    with pytest.raises(StoreError, match="chmod 600"):
        IdentityStore(file)


def test_closing_the_store_without_commit_changes_nothing(file: Path, issued: IssuedLeaf) -> None:
    with IdentityStore(file, create=True) as store:
        for number in range(MANY):
            put(store, number, issued)
    assert names(file) == [identity(0)]


def put_many(file: Path, issued: IssuedLeaf) -> None:
    with IdentityStore(file, create=True) as store:
        for number in range(MANY):
            put(store, number, issued)
        store.commit()


def test_a_full_disk_leaves_the_store_unchanged(file: Path, issued: IssuedLeaf) -> None:
    with disk_full_beyond(64 << 10), pytest.raises(StoreError, match="cannot use"):
        put_many(file, issued)
    assert names(file) == [identity(0)]
    assert [path.name for path in file.parent.iterdir()] == ["store"]


def test_a_writer_killed_during_its_transaction_leaves_the_store_unchanged(file: Path) -> None:
    """The killed writer had already written pages to the file, and left a journal beside it."""
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from sluice.pki.spiffe_id import Role, SpiffeId\n"
        "from sluice.pki.identities.database import IdentityStore\n"
        "store = IdentityStore(Path(sys.argv[1]), create=True)\n"
        f"for number in range({MANY}):\n"
        "    name = SpiffeId.process('sluice.local', Role.TASKMANAGER, f'tm-{number}')\n"
        "    store.put(name, key=b'k' * 138, leaf=b'l' * 2000, authority=b'a')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    before = file.stat().st_size
    done = subprocess.run([sys.executable, "-c", script, str(file)], cwd=ROOT, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert file.stat().st_size > before, "the crash came before anything was written"
    with IdentityStore(file, create=True) as store:
        assert list(store.identities()) == [identity(0)]
        assert store.get(identity(0)) is not None


def test_a_second_writer_fails_after_waiting_for_the_lock(file: Path) -> None:
    with IdentityStore(file, create=True), pytest.raises(StoreError, match="another process is writing it"):
        IdentityStore(file, create=True, lock_seconds=0.01)
    assert names(file) == [identity(0)]


def test_a_reader_sees_the_last_committed_state_during_a_write(file: Path, issued: IssuedLeaf) -> None:
    with IdentityStore(file, create=True) as store:
        put(store, 1, issued)
        assert names(file) == [identity(0)]
        store.commit()
    assert names(file) == [identity(0), identity(1)]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(b"hello" * 1000, "is damaged", id="not-sqlite"),
        pytest.param(b"", "not a store of identities", id="empty"),
    ],
)
def test_files_that_are_not_identity_stores_are_refused(content: bytes, says: str, tmp_path: Path) -> None:
    file = tmp_path / "other"
    file.write_bytes(content)
    file.chmod(0o600)
    with pytest.raises(StoreError, match=says):
        IdentityStore(file)


def test_a_truncated_store_is_refused(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:6000])
    with pytest.raises(StoreError), IdentityStore(file) as store:
        store.get(identity(0))


def test_database_of_another_program_is_left_alone(file: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    data = bytearray(file.read_bytes())
    data[68:72] = b"ELSE"  # the application id in the file's header
    foreign.write_bytes(data)
    foreign.chmod(0o600)
    with pytest.raises(StoreError, match="not a store of identities"):
        IdentityStore(foreign, create=True)
    assert foreign.read_bytes() == data


def test_key_and_leaf_that_do_not_belong_together_are_refused(file: Path, issued: IssuedLeaf, tmp_path: Path) -> None:
    AuthorityStore(tmp_path / "pki").ensure(PkiConfig(), utc_now())
    request = next(iter(parse_inventory(b"[[identity]]\nid = 'taskmanager/tm-0'", PkiConfig())))
    other = IssuingEngine(tmp_path / "pki", PkiConfig()).sign(request)
    with IdentityStore(file, create=True) as store:
        put(store, 0, replace(issued, key=other.key))
        with pytest.raises(StoreError, match="is not the key of"):
            store.get(identity(0))


def test_a_missing_store_or_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file"):
        IdentityStore(tmp_path / "none")
    with pytest.raises(StoreError, match="cannot write"):
        IdentityStore(tmp_path / "no" / "none", create=True)
