"""Signing keys are published before they sign and until their last access token has expired."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from sluice.gateway.credentials.signing_keys import (
    PUBLISH_AHEAD,
    RETAIN,
    ROTATE_AFTER,
    AccessTokenKeys,
    plan,
)
from sluice.gateway.errors import AccessTokenKeyError

NOW = 1_800_000_000.0
AHEAD, KEPT, DAY = PUBLISH_AHEAD.total_seconds(), RETAIN.total_seconds(), ROTATE_AFTER.total_seconds()


def kids(keys: AccessTokenKeys) -> list[str]:
    published = keys.jwks()["keys"]
    assert isinstance(published, list)
    return [key["kid"] for key in published]


def test_the_first_key_signs_at_once(tmp_path: Path) -> None:
    keys = AccessTokenKeys(tmp_path / "keys")
    assert keys.refresh(NOW)
    assert kids(keys) == [keys.signing(NOW).kid]
    assert not keys.refresh(NOW + 1)


def test_key_rotation_publishes_before_signing_and_retires_after_expiry(tmp_path: Path) -> None:
    keys = AccessTokenKeys(tmp_path / "keys")
    keys.refresh(NOW)
    first = keys.signing(NOW).kid
    begun = NOW + DAY
    assert keys.refresh(begun)
    second = next(kid for kid in kids(keys) if kid != first)
    assert keys.signing(begun + AHEAD - 1).kid == first
    assert keys.signing(begun + AHEAD).kid == second
    assert not keys.refresh(begun + AHEAD + KEPT - 1)
    assert kids(keys) == [first, second]
    assert keys.refresh(begun + AHEAD + KEPT)
    assert kids(keys) == [second]


def test_signing_keys_are_private_files_and_the_jwks_is_public_only(tmp_path: Path) -> None:
    keys = AccessTokenKeys(tmp_path / "keys")
    keys.refresh(NOW)
    (file,) = (tmp_path / "keys").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    published = keys.jwks()["keys"]
    assert isinstance(published, list)
    assert published[0].keys() == {"kty", "crv", "x", "y", "kid", "use", "alg"}
    assert "private" not in repr(keys.signing(NOW))


def test_keys_survive_a_restart(tmp_path: Path) -> None:
    keys, again, reader = (AccessTokenKeys(tmp_path / "keys") for _ in range(3))
    keys.refresh(NOW)
    again.refresh(NOW + 1)
    reader.load()
    assert keys.jwks() == again.jwks() == reader.jwks()


def test_nothing_signs_without_a_key(tmp_path: Path) -> None:
    keys = AccessTokenKeys(tmp_path / "keys")
    keys.load()
    with pytest.raises(AccessTokenKeyError, match="no key"):
        keys.signing(NOW)


@pytest.mark.parametrize("content", [b"", b"not a key"])
def test_a_damaged_signing_key_is_an_error(tmp_path: Path, content: bytes) -> None:
    keys = AccessTokenKeys(tmp_path / "keys")
    keys.refresh(NOW)
    (file,) = (tmp_path / "keys").iterdir()
    file.write_bytes(content)
    with pytest.raises(AccessTokenKeyError, match="damaged"):
        keys.refresh(NOW)


@given(st.lists(st.floats(NOW - 3 * DAY, NOW + DAY), min_size=1, max_size=5))
def test_the_signing_key_is_never_retired(created: list[float]) -> None:
    entries = [(f"k{number}", each) for number, each in enumerate(created)]
    due = plan(entries, NOW)
    assert due.signing is not None
    assert due.signing not in due.retired
