"""The blob store: content-addressed, verified, bounded, and without leftovers of failed writes."""

from __future__ import annotations

import hashlib
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sluice.core.errors import PeerRefused
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.runtime.blob.access import check_read
from sluice.runtime.blob.errors import (
    BlobCorrupt,
    BlobNotFound,
    BlobTooLarge,
    InvalidBlobName,
)
from sluice.runtime.blob.store import MAX_BLOBS_PER_JOB, BlobStore

JOB = "0123456789abcdef" * 2
OTHER = "f" * 32


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    """A store that takes up to 1000 bytes per job."""
    return BlobStore(tmp_path / "blobs", 1000)


def files(store: BlobStore, tmp_path: Path) -> list[Path]:
    """Every file in the store, however many names it has."""
    assert store.max_blob_bytes
    found = [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]
    return list({path.stat().st_ino: path for path in found}.values())


def put(store: BlobStore, content: bytes, *, job: str = JOB, name: str = "pipeline.py") -> str:
    """Store ``content``; returns its digest."""
    with store.writer(job, name) as writer:
        writer.write(content)
        return writer.commit().sha256


def test_a_blob_is_stored_under_its_digest_in_a_private_file(store: BlobStore) -> None:
    with store.writer(JOB, "pipeline.py") as writer:
        writer.write(b"print(")
        writer.write(b"1)")
        ref = writer.commit()
    assert (ref.sha256, ref.name, ref.size) == (hashlib.sha256(b"print(1)").hexdigest(), "pipeline.py", 8)
    path = store.path(JOB, ref.sha256)
    assert path.read_bytes() == b"print(1)"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_the_same_content_twice_is_one_blob(store: BlobStore, tmp_path: Path) -> None:
    assert put(store, b"same") == put(store, b"same", name="other.py")
    assert len(files(store, tmp_path)) == 1


def test_a_blob_of_another_job_is_not_found(store: BlobStore) -> None:
    digest = put(store, b"mine")
    with pytest.raises(BlobNotFound):
        store.path(OTHER, digest)


def test_content_that_does_not_match_the_announced_digest_is_not_stored(store: BlobStore, tmp_path: Path) -> None:
    with store.writer(JOB, "x") as writer:
        writer.write(b"something")
        with pytest.raises(BlobCorrupt):
            writer.commit("0" * 64)
    assert files(store, tmp_path) == []


def test_an_upload_that_breaks_off_leaves_nothing(store: BlobStore, tmp_path: Path) -> None:
    with store.writer(JOB, "x") as writer:
        writer.write(b"half")
    assert files(store, tmp_path) == []


def test_the_size_of_a_blob_and_of_a_job_is_bounded(store: BlobStore, tmp_path: Path) -> None:
    with store.writer(JOB, "x") as writer:
        writer.write(b"x" * 600)
        with pytest.raises(BlobTooLarge):
            writer.write(b"x" * 600)
    put(store, b"y" * 600)
    with pytest.raises(BlobTooLarge):
        put(store, b"z" * 600)
    put(store, b"z" * 600, job=OTHER)
    assert len(files(store, tmp_path)) == 2


def test_the_number_of_blobs_of_a_job_is_bounded(store: BlobStore) -> None:
    for number in range(MAX_BLOBS_PER_JOB):
        put(store, str(number).encode())
    with pytest.raises(BlobTooLarge, match="blobs already"):
        put(store, b"one more")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "/etc/passwd", ".hidden", "a\nb", "a\0b", "a\\b", "a,b"]
)
def test_a_file_name_that_is_not_plain_is_refused(store: BlobStore, name: str) -> None:
    with pytest.raises(InvalidBlobName):
        store.writer(JOB, name)


def test_a_file_name_that_is_too_long_is_refused(store: BlobStore) -> None:
    with pytest.raises(InvalidBlobName):
        store.writer(JOB, "x" * 201)


@pytest.mark.parametrize("job", ["", "..", "../" + "a" * 29, "A" * 32, "a" * 31, "a" * 33, "g" * 32])
def test_a_malformed_job_id_never_becomes_a_path(store: BlobStore, job: str) -> None:
    digest = "0" * 64
    for call in (lambda: store.writer(job, "x"), lambda: store.path(job, digest), lambda: store.remove_job(job)):
        with pytest.raises(InvalidBlobName):
            call()


@pytest.mark.parametrize("digest", ["", "..", "0" * 63, "0" * 65, "G" * 64, "../../" + "0" * 58])
def test_a_malformed_digest_never_becomes_a_path(store: BlobStore, digest: str) -> None:
    with pytest.raises(InvalidBlobName):
        store.path(JOB, digest)


def test_removing_a_job_removes_its_blobs_only(store: BlobStore) -> None:
    mine, theirs = put(store, b"a"), put(store, b"a", job=OTHER)
    store.remove_job(JOB)
    store.remove_job(JOB)
    with pytest.raises(BlobNotFound):
        store.path(JOB, mine)
    assert store.path(OTHER, theirs).is_file()
    assert store.jobs() == {OTHER}


def test_a_half_written_blob_of_a_crash_is_removed_with_its_job(store: BlobStore, tmp_path: Path) -> None:
    digest = put(store, b"complete")
    half = tmp_path / "blobs" / JOB / "abc.part"
    half.write_bytes(b"half")
    again = BlobStore(tmp_path / "blobs", 1000)
    assert again.jobs() == {JOB}
    assert again.path(JOB, digest).read_bytes() == b"complete"
    again.remove_job(JOB)
    assert not half.exists()


def test_a_standby_that_opens_the_store_leaves_a_blob_that_is_being_written(store: BlobStore, tmp_path: Path) -> None:
    with store.writer(JOB, "a.py") as writer:
        writer.write(b"content")
        BlobStore(tmp_path / "blobs", 1000)
        stored = writer.commit()
    assert store.path(JOB, stored.sha256).read_bytes() == b"content"


def identity(role: Role, job: str = "") -> SpiffeId:
    """Return an identity with this role."""
    if role is Role.DRIVER:
        return SpiffeId.driver("td", job)
    if role is Role.EXECUTOR:
        return SpiffeId.executor("td", job, 1)
    return SpiffeId.process("td", role, "x")


@pytest.mark.parametrize(
    ("peer", "may_read"),
    [
        pytest.param(identity(Role.DRIVER, JOB), True, id="own driver"),
        pytest.param(identity(Role.EXECUTOR, JOB), False, id="own executor"),
        pytest.param(identity(Role.DRIVER, OTHER), False, id="driver of another job"),
        pytest.param(identity(Role.EXECUTOR, OTHER), False, id="executor of another job"),
        pytest.param(identity(Role.JOBMANAGER), False, id="JobManager"),
        pytest.param(identity(Role.TASKMANAGER), False, id="TaskManager"),
        pytest.param(identity(Role.GATEWAY), False, id="gateway"),
        pytest.param(identity(Role.USER), False, id="user"),
        pytest.param(identity(Role.SHUFFLE_WORKER), False, id="ShuffleWorker"),
    ],
)
def test_only_the_driver_of_a_job_reads_its_blobs(peer: SpiffeId, may_read: bool) -> None:
    if may_read:
        check_read(peer, JOB)
    else:
        with pytest.raises(PeerRefused):
            check_read(peer, JOB)


def test_a_blob_of_several_jobs_is_on_disk_once_and_kept_until_the_last_job_is_removed(
    store: BlobStore, tmp_path: Path
) -> None:
    digest = put(store, b"library")
    assert put(store, b"library", job=OTHER) == digest
    assert len(files(store, tmp_path)) == 1
    store.remove_job(JOB)
    with pytest.raises(BlobNotFound):
        store.path(JOB, digest)
    assert store.path(OTHER, digest).read_bytes() == b"library"
    store.remove_job(OTHER)
    assert files(store, tmp_path) == []


def test_damaged_content_is_not_shared(store: BlobStore) -> None:
    digest = put(store, b"library")
    store.path(JOB, digest).write_bytes(b"LIBRARY")
    assert put(store, b"library", job=OTHER) == digest
    assert store.path(OTHER, digest).read_bytes() == b"library"
    third = "e" * 32
    put(store, b"library", job=third)
    assert store.path(third, digest).samefile(store.path(OTHER, digest))


def test_a_reopened_store_still_shares_blobs_between_jobs(store: BlobStore, tmp_path: Path) -> None:
    put(store, b"library")
    again = BlobStore(tmp_path / "blobs", 1000)
    put(again, b"library", job=OTHER)
    assert len(files(again, tmp_path)) == 1
    assert again.jobs() == {JOB, OTHER}


def test_jobs_come_and_go_in_several_threads(store: BlobStore, tmp_path: Path) -> None:
    """The last job with a shared blob may end while another stores the same content, or ends as well."""
    together = threading.Barrier(4)

    def one_after_the_other(digit: str) -> None:
        for number in range(50):
            together.wait(30)
            digest = put(store, b"library", job=digit * 32)
            assert store.path(digit * 32, digest).read_bytes() == b"library", number
            store.remove_job(digit * 32)

    with ThreadPoolExecutor(4) as pool:
        for ended in [pool.submit(one_after_the_other, digit) for digit in "abcd"]:
            ended.result()
    assert files(store, tmp_path) == []


def test_a_store_whose_shared_folder_another_release_removed_stores_shares_and_removes(
    store: BlobStore, tmp_path: Path
) -> None:
    """A JobManager of an earlier release, with the same home during an upgrade, removes the folder when it is empty."""
    shared = tmp_path / "blobs" / "shared"
    shared.rmdir()
    store.remove_job(JOB)
    put(store, b"library")
    put(store, b"library", job=OTHER)
    assert len(files(store, tmp_path)) == 1
    assert stat.S_IMODE(shared.stat().st_mode) == 0o700
    store.remove_job(JOB)
    store.remove_job(OTHER)
    assert files(store, tmp_path) == []
