"""Uploads in pieces: what the store keeps, what it refuses, and what it forgets."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sluice.runtime.blob import uploads as module
from sluice.runtime.blob.errors import (
    BlobCorrupt,
    BlobError,
    BlobTooLarge,
    InvalidBlobName,
    TooManyUploads,
    UploadConflict,
    UploadNotFound,
)
from sluice.runtime.blob.store import BlobStore
from sluice.runtime.blob.uploads import KEPT_SECONDS, Upload, UploadStore

CONTENT = bytes(range(256)) * 10
DIGEST = hashlib.sha256(CONTENT).hexdigest()
JOB = "a" * 32


class Clock:
    """A clock that a test moves."""

    ahead = 0.0

    def __call__(self) -> float:
        import time

        return time.time() + self.ahead


@pytest.fixture
def clock() -> Clock:
    """A clock that shows the current time."""
    return Clock()


@pytest.fixture
def uploads(tmp_path: Path, clock: Clock) -> UploadStore:
    """An empty store with room for 10,000 bytes per owner."""
    return UploadStore(tmp_path / "uploads", 10_000, clock=clock)


def announced(uploads: UploadStore, owner: str = "ann") -> Upload:
    """Announce an upload of :data:`CONTENT`."""
    return uploads.create(owner, "data.csv", len(CONTENT), DIGEST)


def send(uploads: UploadStore, upload: Upload, start: int, end: int, owner: str = "ann") -> Upload:
    """Send the bytes from ``start`` to ``end`` of :data:`CONTENT` as one piece."""
    with uploads.append(upload.id, owner, start) as piece:
        piece.write(CONTENT[start:end])
    return uploads.finish(upload.id, owner)


def test_a_broken_upload_continues_at_its_offset_with_another_store(uploads: UploadStore, tmp_path: Path) -> None:
    upload = announced(uploads)

    def broken() -> None:
        with uploads.append(upload.id, "ann", 0) as piece:
            piece.write(CONTENT[:1000])
            raise ConnectionError

    with pytest.raises(ConnectionError):
        broken()
    after = UploadStore(tmp_path / "uploads", 10_000)
    stands = after.get(upload.id, "ann")
    assert (stands.offset, stands.complete) == (1000, False)
    assert send(after, upload, 1000, 2000).offset == 2000
    done = send(after, upload, 2000, len(CONTENT))
    assert (done.offset, done.complete) == (len(CONTENT), True)
    ref, path = after.content(upload.id, "ann")
    assert (ref.sha256, ref.name, path.read_bytes()) == (DIGEST, "data.csv", CONTENT)


def test_an_empty_file_is_complete_with_an_empty_piece(uploads: UploadStore) -> None:
    upload = uploads.create("ann", "empty", 0, hashlib.sha256(b"").hexdigest())
    assert not upload.complete
    with uploads.append(upload.id, "ann", 0):
        pass
    assert uploads.finish(upload.id, "ann").complete


@pytest.mark.parametrize("offset", [0, 999, 1001, 1 << 40])
def test_a_piece_that_does_not_begin_at_the_offset_of_the_upload_is_refused(uploads: UploadStore, offset: int) -> None:
    upload = announced(uploads)
    send(uploads, upload, 0, 1000)
    with pytest.raises(UploadConflict, match="is at offset 1000"), uploads.append(upload.id, "ann", offset):
        pass
    assert uploads.get(upload.id, "ann").offset == 1000


def test_an_upload_of_another_user_is_not_found(uploads: UploadStore) -> None:
    upload = announced(uploads)
    send(uploads, upload, 0, len(CONTENT))
    for attempt in (
        lambda: uploads.get(upload.id, "eve"),
        lambda: send(uploads, upload, 0, 10, "eve"),
        lambda: uploads.finish(upload.id, "eve"),
        lambda: uploads.content(upload.id, "eve"),
        lambda: uploads.remove(upload.id, "eve"),
    ):
        with pytest.raises(UploadNotFound):
            attempt()
    assert uploads.owned("eve") == ()
    assert uploads.get(upload.id, "ann").complete


@pytest.mark.parametrize("upload_id", ["", "..", "../jobs", "a" * 32, "A" * 32, "a" * 31 + "/", "a" * 33])
def test_a_malformed_upload_id_is_not_found(uploads: UploadStore, upload_id: str) -> None:
    announced(uploads)
    with pytest.raises(UploadNotFound):
        uploads.get(upload_id, "ann")


def test_an_upload_with_other_content_than_announced_is_removed(uploads: UploadStore) -> None:
    upload = announced(uploads)
    with uploads.append(upload.id, "ann", 0) as piece:
        piece.write(b"x" * len(CONTENT))
    with pytest.raises(BlobCorrupt):
        uploads.finish(upload.id, "ann")
    with pytest.raises(UploadNotFound):
        uploads.get(upload.id, "ann")


def test_more_bytes_than_announced_are_not_written(uploads: UploadStore) -> None:
    upload = announced(uploads)
    with uploads.append(upload.id, "ann", 0) as piece:
        piece.write(CONTENT[:2000])
        with pytest.raises(BlobTooLarge):
            piece.write(CONTENT)
    assert uploads.get(upload.id, "ann").offset == 2000


def test_a_complete_upload_accepts_no_further_piece(uploads: UploadStore) -> None:
    upload = announced(uploads)
    send(uploads, upload, 0, len(CONTENT))
    with pytest.raises(UploadConflict), uploads.append(upload.id, "ann", len(CONTENT)):
        pass


def test_the_later_of_two_requests_to_append_continues_the_upload(uploads: UploadStore) -> None:
    upload = announced(uploads)
    with uploads.append(upload.id, "ann", 0) as first:
        first.write(CONTENT[:100])
        with uploads.append(upload.id, "ann", 100) as second:
            with pytest.raises(UploadConflict):
                first.write(CONTENT[100:200])
            second.write(CONTENT[100:300])
    assert send(uploads, upload, 300, len(CONTENT)).complete


def test_an_incomplete_upload_has_no_content(uploads: UploadStore) -> None:
    upload = announced(uploads)
    send(uploads, upload, 0, 1000)
    with pytest.raises(UploadConflict):
        uploads.content(upload.id, "ann")


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a,b", "x" * 300])
def test_an_upload_with_an_invalid_file_name_is_refused(uploads: UploadStore, name: str) -> None:
    with pytest.raises(InvalidBlobName):
        uploads.create("ann", name, 1, DIGEST)


@pytest.mark.parametrize("digest", ["", "../" + DIGEST[3:], DIGEST.upper(), DIGEST + "0"])
def test_an_upload_with_a_malformed_digest_is_refused(uploads: UploadStore, digest: str) -> None:
    with pytest.raises(InvalidBlobName):
        uploads.create("ann", "x", 1, digest)


def test_the_announced_bytes_of_an_owner_are_limited_when_an_upload_is_created(uploads: UploadStore) -> None:
    for number in range(3):
        uploads.create("ann", f"f{number}", 3000, DIGEST)
    with pytest.raises(BlobTooLarge):
        uploads.create("ann", "f4", 3000, DIGEST)
    with pytest.raises(BlobTooLarge):
        uploads.create("ann", "f4", -1, DIGEST)
    assert uploads.create("bob", "f4", 3000, DIGEST).offset == 0


def test_the_number_of_uploads_is_bounded_per_owner_and_in_total(
    uploads: UploadStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_UPLOADS_PER_OWNER", 2)
    monkeypatch.setattr(module, "MAX_UPLOADS", 3)
    for owner in ("ann", "ann", "bob"):
        uploads.create(owner, "f", 1, DIGEST)
    for owner in ("ann", "eve"):
        with pytest.raises(TooManyUploads):
            uploads.create(owner, "f", 1, DIGEST)


def test_a_concurrent_burst_creates_no_more_uploads_than_the_limit(
    uploads: UploadStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The REST server creates each upload in a thread of its own."""
    monkeypatch.setattr(module, "MAX_UPLOADS_PER_OWNER", 2)
    start = threading.Barrier(8)

    def create(number: int) -> bool:
        start.wait(30)
        try:
            uploads.create("ann", f"f{number}", 1, DIGEST)
        except TooManyUploads:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(create, range(8))) == 2
    assert len(uploads.owned("ann")) == 2


def test_the_check_of_a_new_upload_gets_the_total_bytes_of_the_owner_and_may_refuse(uploads: UploadStore) -> None:
    """It may refuse before anything is created."""
    told: list[int] = []

    def refuse(size: int) -> None:
        told.append(size)
        if size > 1000:
            raise TooManyUploads("too much")

    uploads.create("ann", "f", 600, DIGEST, check=refuse)
    with pytest.raises(TooManyUploads):
        uploads.create("ann", "g", 600, DIGEST, check=refuse)
    assert told == [600, 1200]
    assert [each.name for each in uploads.owned("ann")] == ["f"]


def test_abandoned_uploads_and_remains_of_a_crash_are_swept(uploads: UploadStore, tmp_path: Path, clock: Clock) -> None:
    upload = announced(uploads)
    (tmp_path / "uploads" / ("b" * 32)).mkdir()
    assert uploads.sweep() == 0
    clock.ahead = KEPT_SECONDS + 60
    assert uploads.sweep() == 2
    with pytest.raises(UploadNotFound):
        uploads.get(upload.id, "ann")
    assert list((tmp_path / "uploads").iterdir()) == []


def test_a_job_adopts_an_upload_of_its_owner_without_a_second_copy_on_disk(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "blobs", 10_000)
    upload = announced(store.uploads)
    with pytest.raises(UploadConflict):
        store.adopt(JOB, upload.id, "ann")
    send(store.uploads, upload, 0, len(CONTENT))
    with pytest.raises(UploadNotFound):
        store.adopt(JOB, upload.id, "eve")
    ref = store.adopt(JOB, upload.id, "ann")
    assert store.adopt(JOB, upload.id, "ann") == ref
    blob = store.path(JOB, DIGEST)
    assert blob.stat().st_nlink == 2
    store.uploads.remove(upload.id, "ann")
    assert blob.read_bytes() == CONTENT
    assert store.jobs() == {JOB}


def test_a_job_cannot_adopt_an_upload_beyond_its_size_limit(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "blobs", 10_000)
    upload = announced(store.uploads)
    send(store.uploads, upload, 0, len(CONTENT))
    with store.writer(JOB, "other") as writer:
        writer.write(b"x" * 9000)
        writer.commit()
    with pytest.raises(BlobTooLarge):
        store.adopt(JOB, upload.id, "ann")


def test_an_upload_that_another_thread_removes_meanwhile_is_not_found(
    tmp_path: Path, uploads: UploadStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BlobStore(tmp_path / "blobs", 10_000)
    store.uploads = uploads
    read = uploads._read

    def read_and_remove(upload_id: str) -> object:
        note = read(upload_id)
        uploads._remove(upload_id)
        return note

    complete, begun = announced(uploads), announced(uploads)
    send(uploads, complete, 0, len(CONTENT))
    uploads.finish(complete.id, "ann")
    monkeypatch.setattr(uploads, "_read", read_and_remove)
    with pytest.raises(UploadNotFound, match="no longer exists"):
        store.adopt(JOB, complete.id, "ann")
    with pytest.raises(UploadNotFound, match="no longer exists"):
        send(uploads, begun, 0, 10)
    monkeypatch.setattr(uploads, "_read", read)
    kept = announced(uploads)
    announced(uploads)
    monkeypatch.setattr(uploads, "_read", lambda name: read(name) if name == kept.id else read_and_remove(name))
    assert [upload.id for upload in uploads.owned("ann")] == [kept.id]
    monkeypatch.setattr(uploads, "_read", read_and_remove)
    with pytest.raises(UploadNotFound, match="no longer exists"):
        uploads.finish(kept.id, "ann")


def test_a_disk_error_is_not_reported_as_a_missing_upload(
    tmp_path: Path, uploads: UploadStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BlobStore(tmp_path / "blobs", 10_000)
    store.uploads = uploads
    upload = announced(uploads)
    send(uploads, upload, 0, len(CONTENT))
    uploads.finish(upload.id, "ann")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "hardlink_to", full)
    with pytest.raises(BlobError, match=r"cannot store data\.csv: No space left") as refused:
        store.adopt(JOB, upload.id, "ann")
    assert not isinstance(refused.value, UploadNotFound)
    status = Path.stat

    def broken(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if path.name == "content":
            raise OSError(errno.EIO, "Input/output error")
        return status(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", broken)
    with pytest.raises(BlobError, match="cannot read upload") as failed:
        uploads.get(upload.id, "ann")
    assert not isinstance(failed.value, UploadNotFound)
