"""Trust files: their permissions, and what remains when a write fails half-way."""

from __future__ import annotations

import contextlib
import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.core.errors import StoreError
from sluice.core.files import trusted_files
from sluice.core.files.locks import locked
from sluice.core.files.trusted_files import (
    MAX_MATERIAL_BYTES,
    _exposing_bits,
    make_private_directory,
    read_bounded,
    read_deployed_secret,
    read_secret,
    replace_set,
    write_public,
    write_secret,
)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@contextlib.contextmanager
def disk_full_beyond(limit: int) -> Iterator[None]:
    """The kernel refuses to write files larger than ``limit`` bytes: a write fails half-way, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_secret_public_and_directory_modes_are_set(tmp_path: Path) -> None:
    write_secret(tmp_path / "secret", b"s")
    write_public(tmp_path / "public", b"p")
    made = make_private_directory(tmp_path / "a" / "b" / "c")
    assert mode_of(tmp_path / "secret") == 0o600
    assert mode_of(tmp_path / "public") == 0o644
    assert [mode_of(path) for path in (made, made.parent, made.parent.parent)] == [0o700] * 3


def test_an_existing_open_directory_is_made_private(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    make_private_directory(tmp_path / "open")
    assert mode_of(tmp_path / "open") == 0o700


def test_a_private_directory_below_a_file_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="cannot create"):
        make_private_directory(tmp_path / "file" / "below")


def test_a_private_directory_behind_a_link_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "way").symlink_to(tmp_path / "own")
    assert make_private_directory(tmp_path / "way") == tmp_path / "way"
    monkeypatch.setattr(trusted_files, "link_owner", lambda _: os.geteuid() + 4711)
    with pytest.raises(StoreError, match="is a link of user id"):
        make_private_directory(tmp_path / "way")


def test_writing_over_a_link_replaces_the_link_and_not_its_target(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"precious")
    (tmp_path / "key.pem").symlink_to(tmp_path / "elsewhere")
    write_secret(tmp_path / "key.pem", b"key")
    assert (tmp_path / "elsewhere").read_bytes() == b"precious"
    assert not (tmp_path / "key.pem").is_symlink()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o601])
def test_a_secret_readable_by_others_is_refused_with_a_remedy(mode: int, tmp_path: Path) -> None:
    write_secret(tmp_path / "key", b"secret-content")
    (tmp_path / "key").chmod(mode)
    with pytest.raises(StoreError, match=f"{mode:04o}") as caught:
        read_secret(tmp_path / "key")
    assert caught.value.remedy == f"chmod 600 {tmp_path / 'key'}"
    assert "secret-content" not in str(caught.value)


@pytest.mark.parametrize(
    ("mode", "owner", "accepted"),
    [
        (0o600, 0, True),
        (0o440, 0, True),
        (0o640, 0, True),
        (0o640, 1000, False),
        (0o660, 0, False),
        (0o644, 0, False),
        (0o604, 0, False),
    ],
)
def test_a_deployed_secret_may_be_group_readable_only_if_root_owns_it(mode: int, owner: int, accepted: bool) -> None:
    info = os.stat_result((stat.S_IFREG | mode, 0, 0, 1, owner, 1000, 0, 0, 0, 0))
    assert (_exposing_bits(info, 0o077, stat.S_IRGRP) == 0) is accepted


def test_a_deployed_secret_is_read_unless_it_is_readable_by_others(tmp_path: Path) -> None:
    write_secret(tmp_path / "key", b"secret-content")
    assert read_deployed_secret(tmp_path / "key") == b"secret-content"
    (tmp_path / "key").chmod(0o604)
    with pytest.raises(StoreError, match="others can read"):
        read_deployed_secret(tmp_path / "key")


def test_a_file_that_is_too_large_or_missing_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * (MAX_MATERIAL_BYTES + 1))
    for name, reason in (("large", "larger than"), ("missing", "No such file"), (".", "directory")):
        with pytest.raises(StoreError, match=reason):
            read_bounded(tmp_path / name)


def test_a_full_disk_while_replacing_a_set_changes_no_file_and_leaves_none_behind(tmp_path: Path) -> None:
    """The second of three files does not fit: the first one, already staged, is not put in place either."""
    before = {name: (name.encode() * 10, 0o600) for name in ("one", "two", "three")}
    replace_set(tmp_path, before)
    with disk_full_beyond(100), pytest.raises(StoreError, match="cannot write"):
        replace_set(tmp_path, {"one": (b"new", 0o600), "two": (b"x" * 5000, 0o600), "three": (b"new", 0o600)})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        name: data for name, (data, _) in before.items()
    }


def test_writing_or_locking_in_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot write"):
        write_secret(tmp_path / "missing" / "key", b"x")
    with pytest.raises(StoreError, match="cannot open"), locked(tmp_path / "missing"):
        pass


def test_a_fifo_or_device_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    (tmp_path / "device").symlink_to("/dev/zero")
    for read in (read_bounded, read_secret):
        for name in ("fifo", "device"):
            with pytest.raises(StoreError, match="not a file"):
                read(tmp_path / name)


def test_a_pipe_passed_as_a_file_descriptor_is_read() -> None:
    """As ``sluice pki inspect <(…)`` does."""
    reading, writing = os.pipe()
    try:
        os.write(writing, b"certificate")
        os.close(writing)
        assert read_bounded(Path(f"/dev/fd/{reading}")) == b"certificate"
    finally:
        os.close(reading)


def test_waiting_for_a_held_lock_times_out(tmp_path: Path) -> None:
    refused = pytest.raises(StoreError, match="another process holds the lock")
    with locked(tmp_path), refused, locked(tmp_path, patience=0.05):
        pass
    with locked(tmp_path, patience=0.05):
        pass


def test_a_linked_directory_is_not_written_into_unless_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    (tmp_path / "identity").symlink_to(tmp_path / "others")
    with pytest.raises(StoreError, match="cannot write"):
        replace_set(tmp_path / "identity", {"key.pem": (b"x", 0o600)}, follow=False)
    assert list((tmp_path / "others").iterdir()) == []
    replace_set(tmp_path / "identity", {"key.pem": (b"x", 0o600)})
    assert (tmp_path / "others" / "key.pem").exists(), "an administrator may link a home to where there is space"
