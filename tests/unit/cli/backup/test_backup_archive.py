"""Forged archives: anybody with the recipient can create a backup that Sluice will open."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pyrage
import pytest
from hypothesis import given, strategies as st

from sluice.cli.backup.archive import ArchiveReader, ArchiveStream, Content, InMemory
from sluice.cli.backup.contents import is_included
from sluice.cli.backup.encryption import HashingWriter, Keys, encrypt
from sluice.cli.backup.errors import BackupDamaged, BackupFailed
from sluice.cli.backup.extraction import extract
from sluice.cli.backup.manifest import MANIFEST, Manifest, Member
from sluice.core.clock import utc_now

IDENTITY = pyrage.x25519.Identity.generate()
KEYS = Keys(identities=(IDENTITY,))
GOOD = "pki/ca/ledger.jsonl"


def quiet(_done: int, _total: int, _path: str) -> None:
    """Show no progress."""


def manifest(members: tuple[Member, ...]) -> Manifest:
    return Manifest(id="1", created=utc_now(), product="0", trust_domain="td", left_out=(), members=members)


def archive(*contents: Content) -> bytes:
    stream = ArchiveStream(contents, manifest, quiet)
    return b"".join(iter(stream.read, b""))


def encrypted(path: Path, plain: bytes) -> Path:
    path.write_bytes(pyrage.encrypt(plain, [IDENTITY.to_public()]))
    return path


def forged(change: Callable[[tarfile.TarInfo], None]) -> bytes:
    """An archive of one file whose header was changed."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as made:
        info = tarfile.TarInfo(GOOD)
        info.size = 4
        change(info)
        made.addfile(info, io.BytesIO(b"data"))
        text = manifest((Member(info.name, 4, "0" * 64),)).encode()
        last = tarfile.TarInfo(MANIFEST)
        last.size = len(text)
        made.addfile(last, io.BytesIO(text))
    return file.getvalue()


def restored(tmp_path: Path, plain: bytes) -> Path:
    """The folder with the extracted files; raises what ``extract`` raises."""
    target = tmp_path / "target"
    target.mkdir()
    extract(encrypted(tmp_path / "backup", plain), KEYS, target, wanted=lambda _: True, progress=quiet)
    return target


PLACES = (
    "../evil",
    "/etc/passwd",
    "pki/../../evil",
    "pki/ca/ledger.jsonl/../../../evil",
    "pki/identities/jobmanager/j/key.pem",
    "pki/ca/tokens/1.json",
    "ha/storage/.hidden",
    "ha/storage//x",
    "ha/storage/../x",
    "gateway/pass-keys/1.pem",
    "run/cluster.json",
    ".restoring",
    "sluice.toml\n",
    "unknown",
    "",
)


@pytest.mark.parametrize("place", PLACES)
def test_an_archive_with_a_path_that_no_home_has_is_refused(tmp_path: Path, place: str) -> None:
    def move(info: tarfile.TarInfo) -> None:
        info.name = place

    with pytest.raises(BackupDamaged):
        restored(tmp_path, forged(move))
    assert [path.name for path in tmp_path.rglob("*")] == ["target", "backup"] or not list(
        (tmp_path / "target").iterdir()
    )
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    "kind",
    [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE, b"x", b"L"],
)
def test_an_archive_with_anything_but_regular_files_is_refused(tmp_path: Path, kind: bytes) -> None:
    def change(info: tarfile.TarInfo) -> None:
        info.type, info.linkname = kind, "/etc/passwd" if kind in {tarfile.SYMTYPE, tarfile.LNKTYPE} else ""

    with pytest.raises(BackupDamaged):
        restored(tmp_path, forged(change))
    assert not list((tmp_path / "target").iterdir())


def test_an_archive_whose_files_differ_from_the_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackupDamaged, match="does not have the files"):
        restored(tmp_path, forged(lambda _: None))


def test_an_archive_with_the_same_file_twice_is_refused() -> None:
    twice = archive(InMemory(GOOD, b"one"), InMemory(GOOD, b"two"))
    with pytest.raises(BackupDamaged, match="twice"):
        list(ArchiveReader(io.BytesIO(twice)).entries())


@pytest.mark.parametrize("end", [b"", b"\0" * 512, b"\0" * 1024, b"x"])
def test_an_archive_without_a_manifest_or_with_data_after_it_is_refused(end: bytes) -> None:
    whole = archive(InMemory(GOOD, b"data"))
    without = whole[: 512 + 512]
    for bad in (without + end, whole + (end or b"y")):
        with pytest.raises(BackupDamaged):
            list(ArchiveReader(io.BytesIO(bad)).entries())


def test_manifest_of_a_later_version_is_refused() -> None:
    data = json.loads(manifest(()).encode()) | {"version": 2}
    text = json.dumps(data).encode()
    info = tarfile.TarInfo(MANIFEST)
    info.size = len(text)
    whole = info.tobuf(tarfile.USTAR_FORMAT) + text + b"\0" * (-len(text) % 512) + b"\0" * 1024
    with pytest.raises(BackupDamaged, match="later version"):
        list(ArchiveReader(io.BytesIO(whole)).entries())


@given(st.binary(max_size=3000))
def test_data_that_is_not_an_archive_is_refused(data: bytes) -> None:
    with pytest.raises(BackupDamaged):
        list(ArchiveReader(io.BytesIO(data)).entries())


@given(
    st.dictionaries(
        st.from_regex(r"ha/storage/[a-z]{1,30}(/[a-z0-9.-]{1,60}[a-z]){0,2}", fullmatch=True), st.binary(), max_size=5
    )
)
def test_an_archive_round_trips(files: dict[str, bytes]) -> None:
    reader = ArchiveReader(io.BytesIO(archive(*(InMemory(path, data) for path, data in files.items()))))
    assert {entry.path: b"".join(entry.chunks) for entry in reader.entries()} == files
    assert reader.manifest is not None


def test_an_error_of_the_archive_stream_is_raised_unchanged_through_the_encryption(tmp_path: Path) -> None:
    stream = ArchiveStream([InMemory("x" * 300, b"")], manifest, quiet)
    with (tmp_path / "backup").open("wb") as file, pytest.raises(BackupFailed, match="cannot be in a backup"):
        encrypt(stream, HashingWriter(file), [IDENTITY.to_public()], "")


@given(st.text(alphabet="abc./\0-_ é\n", max_size=40))
def test_no_included_path_leaves_the_home_or_is_hidden(path: str) -> None:
    for prefix in ("", "ha/storage/", "pki/retired/"):
        if is_included(prefix + path):
            parts = (prefix + path).split("/")
            assert not {"", ".", ".."} & set(parts)
            assert not any(part.startswith(".") for part in parts)
