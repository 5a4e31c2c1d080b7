"""Encryption of values in a database: each value can be decrypted only at its place and with its key."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.core import write_secret
from sluice.gateway.errors import SharedStoreError
from sluice.gateway.shared_store import new_key
from sluice.gateway.shared_store.cipher import KEY_BYTES, StoreCipher


def test_an_encrypted_value_can_be_decrypted_only_at_its_own_place() -> None:
    cipher = StoreCipher(b"k" * KEY_BYTES)
    kept = cipher.encrypted(b"a value", "place 1")
    assert b"a value" not in kept
    assert cipher.encrypted(b"a value", "place 1") != kept
    assert cipher.decrypted(kept, "place 1") == b"a value"
    for value, place in ((kept, "place 2"), (kept[:-1], "place 1"), (kept[:-1] + b"x", "place 1"), (b"", "place 1")):
        with pytest.raises(SharedStoreError, match="another key, or changed"):
            cipher.decrypted(value, place)
    with pytest.raises(SharedStoreError, match="another key, or changed"):
        StoreCipher(b"j" * KEY_BYTES).decrypted(kept, "place 1")


def test_names_are_equal_only_for_equal_parts_and_keys() -> None:
    cipher = StoreCipher(b"k" * KEY_BYTES)
    assert cipher.name("a", "b") == cipher.name("a", "b")
    assert len({cipher.name("a", "b"), cipher.name("b", "a"), cipher.name("ab", ""), cipher.name("a", "c")}) == 4
    assert StoreCipher(b"j" * KEY_BYTES).name("a", "b") != cipher.name("a", "b")


@pytest.mark.parametrize("content", [b"", b"AAAA\n", b"not base64 \xff\n"])
def test_a_malformed_encryption_key_is_refused(tmp_path: Path, content: bytes) -> None:
    write_secret(tmp_path / "key", content)
    with pytest.raises(SharedStoreError, match="not a base64 key"):
        StoreCipher.from_file(tmp_path / "key")


def test_a_key_that_everybody_can_read_is_refused(tmp_path: Path) -> None:
    write_secret(tmp_path / "key", new_key())
    StoreCipher.from_file(tmp_path / "key")
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(SharedStoreError, match="others can read"):
        StoreCipher.from_file(tmp_path / "key")
