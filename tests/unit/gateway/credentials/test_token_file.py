"""The token file: concurrent writers, a reader that never sees half a file, no access for others."""

from __future__ import annotations

import concurrent.futures
import datetime as dt
import os
from pathlib import Path

import pytest

from sluice.core.errors import SluiceError, StoreError
from sluice.core.files import write_secret
from sluice.core.home import Home
from sluice.gateway.credentials.api_tokens import TokenBook
from sluice.gateway.credentials.token_file import (
    TokenStore,
    create_token,
    token_file,
    token_snapshot,
)
from sluice.gateway.errors import InvalidTokenRequest, TokenStoreError
from sluice.pki.assertions.principal import TokenId

NOW_FAR_FROM_EXPIRY = 0.0


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.at(tmp_path).create()


def test_token_changes_are_seen_by_an_existing_reader(home: Home) -> None:
    snapshot = token_snapshot(home)
    assert snapshot.get().records == ()
    token = create_token(home, name="ada", role="submitter")
    assert snapshot.get().authenticate(token, now=NOW_FAR_FROM_EXPIRY).name == "ada"
    identifier = TokenId(token.split("_")[1])
    TokenStore(home).revoke(identifier)
    assert snapshot.get().find(identifier).revoked_at is not None


def test_unknown_role_is_refused_by_name(home: Home) -> None:
    with pytest.raises(InvalidTokenRequest, match=r"'root' is not a role .*viewer, submitter, operator, admin"):
        create_token(home, name="ada", role="root")


def test_token_file_is_private(home: Home) -> None:
    create_token(home, name="ada", role="viewer")
    for path in home.gateway.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600, path
    assert sorted(path.name for path in home.gateway.iterdir()) == ["tokens.json"]


def test_concurrent_writers_lose_no_tokens(home: Home) -> None:
    def write(number: int) -> str:
        return create_token(home, name=f"user-{number}", role="viewer", lifetime=dt.timedelta(hours=1))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        tokens = list(pool.map(write, range(24)))
    book = TokenStore(home).read()
    assert {book.authenticate(token, now=NOW_FAR_FROM_EXPIRY).name for token in tokens} == {
        f"user-{number}" for number in range(24)
    }


def test_reader_refuses_a_damaged_file_instead_of_using_the_last_good_one(home: Home) -> None:
    """The damaged file may be the one that revokes something."""
    snapshot = token_snapshot(home)
    create_token(home, name="ada", role="viewer")
    good = token_file(home).read_bytes()
    assert len(snapshot.get().records) == 1
    write_secret(token_file(home), good[:-10])
    for _ in range(2):
        with pytest.raises(TokenStoreError, match="damaged"):
            snapshot.get()
    write_secret(token_file(home), good)
    assert len(snapshot.get().records) == 1


def test_token_file_readable_by_others_is_refused_by_reader_and_writer(home: Home) -> None:
    snapshot = token_snapshot(home)
    create_token(home, name="ada", role="viewer")
    snapshot.get()
    token_file(home).chmod(0o640)
    with pytest.raises(StoreError, match="others can read"):
        snapshot.get()
    with pytest.raises(StoreError, match="others can read"):
        create_token(home, name="eve", role="admin")


def test_removed_file_means_no_tokens(home: Home) -> None:
    snapshot = token_snapshot(home)
    create_token(home, name="ada", role="viewer")
    assert snapshot.get().records
    token_file(home).unlink()
    assert snapshot.get().records == ()


def test_directory_in_place_of_the_file_is_an_error(home: Home) -> None:
    token_file(home).mkdir()
    with pytest.raises(SluiceError):
        token_snapshot(home).get()


def test_change_that_keeps_file_size_and_time_is_noticed(home: Home) -> None:
    """A reader that looks at the modification time alone can be fooled."""
    snapshot = token_snapshot(home)
    create_token(home, name="ada", role="viewer")
    assert snapshot.get().records[0].name == "ada"
    info = token_file(home).stat()
    write_secret(token_file(home), token_file(home).read_bytes().replace(b'"ada"', b'"eve"'))
    os.utime(token_file(home), ns=(info.st_atime_ns, info.st_mtime_ns))
    assert snapshot.get().records[0].name == "eve"


def test_failed_change_leaves_the_file_unchanged_and_the_lock_free(home: Home) -> None:
    create_token(home, name="ada", role="viewer")
    before = token_file(home).read_bytes()
    with pytest.raises(InvalidTokenRequest):
        create_token(home, name="not a name", role="viewer")
    assert token_file(home).read_bytes() == before
    create_token(home, name="eve", role="viewer")
    assert len(TokenBook.decode(token_file(home).read_bytes()).records) == 2
