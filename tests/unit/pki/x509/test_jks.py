"""Foreign JKS stores: a wrong password, damage and nonsense raise one kind of error.

The tests with Java are in test_keystores.py.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import struct

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, strategies as st

from sluice.pki.authorities.signing import create_root
from sluice.pki.config import PkiConfig
from sluice.pki.x509.jks import (
    MAGIC,
    VERSION,
    jks_key_store,
    jks_trust_store,
    read_jks,
)
from sluice.pki.x509.parse_errors import DAMAGED

ROOT = create_root(PkiConfig(), dt.datetime(2030, 1, 1, tzinfo=dt.UTC))
PASSWORD = b"password of a test"
STORE = jks_key_store(ROOT.key, ROOT.certificate, [ROOT.certificate], PASSWORD, alias="identity")


def sealed(content: bytes) -> bytes:
    """Return ``content`` with the digest that someone who knows the password would add."""
    text = PASSWORD.decode().encode("utf-16-be") + b"Mighty Aphrodite" + content
    return content + hashlib.sha1(text, usedforsecurity=False).digest()


def test_written_jks_stores_are_read_back() -> None:
    assert read_jks(STORE, PASSWORD) == (True, [ROOT.certificate] * 2)
    assert read_jks(jks_trust_store([ROOT.certificate], PASSWORD), PASSWORD) == (False, [ROOT.certificate])
    assert sealed(STORE[:-20]) == STORE


def test_the_private_key_is_not_stored_in_the_clear() -> None:
    assert isinstance(ROOT.key, ec.EllipticCurvePrivateKey)
    assert ROOT.key.private_numbers().private_value.to_bytes(32, "big") not in STORE


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(STORE[:-1], id="cut-off"),
        pytest.param(STORE[:200] + b"x" + STORE[201:], id="changed"),
        pytest.param(sealed(STORE[:-30]), id="sealed-but-cut-off"),
        pytest.param(sealed(struct.pack(">III", 0xCECECECE, VERSION, 0)), id="jceks"),
        pytest.param(sealed(struct.pack(">III", MAGIC, 1, 0)), id="version-1"),
        pytest.param(sealed(struct.pack(">III", MAGIC, VERSION, 2**32 - 1)), id="endless"),
    ],
)
def test_a_damaged_jks_store_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="JKS store"):
        read_jks(data, PASSWORD)


def test_a_wrong_password_is_refused() -> None:
    with pytest.raises(ValueError, match="this password opens"):
        read_jks(STORE, b"another")


@given(st.binary(max_size=200))
def test_arbitrary_sealed_content_is_read_or_raises_a_damage_error(content: bytes) -> None:
    try:
        read_jks(sealed(struct.pack(">III", MAGIC, VERSION, 1) + content), PASSWORD)
    except DAMAGED:
        return
