"""Signed tokens: which ones are decoded, and in which order they are checked."""

from __future__ import annotations

import base64
import json
from typing import Any

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, strategies as st

from sluice.core.jws import MAX_JWT_CHARACTERS, InvalidJwt, looks_like_jwt, read_header, verified_claims

KEY = ec.generate_private_key(ec.SECP256R1())
PUBLIC = KEY.public_key()
GOOD = jwt.encode({"sub": "ada", "exp": 1}, KEY, algorithm="ES256", headers={"kid": "k-1"})


class Claims(msgspec.Struct):
    sub: str
    exp: float


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def signed(payload: bytes, **header: Any) -> str:
    """A token with any payload and header, signed with our key."""
    return jwt.PyJWS().encode(payload, KEY, algorithm="ES256", headers=header)


def with_header(header: object) -> str:
    _, body, signature = GOOD.split(".")
    return f"{b64(json.dumps(header).encode())}.{body}.{signature}"


def test_header_and_claims_of_a_valid_token_are_decoded() -> None:
    header = read_header(GOOD)
    assert (header.algorithm, header.kid, header.type, header.hints) == ("ES256", "k-1", "JWT", frozenset())
    assert verified_claims(GOOD, PUBLIC, "ES256", Claims) == Claims("ada", 1)
    assert read_header(signed(b"{}", jku="https://a.test", jwk={})).hints == {"jku", "jwk"}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("..", id="empty parts"),
        pytest.param(GOOD + ".", id="four parts"),
        pytest.param(GOOD + "=", id="padding"),
        pytest.param(GOOD[:-1] + chr(ord(GOOD[-1]) + 1), id="another spelling of the signature"),
        pytest.param("a" + GOOD, id="length of no base64"),
        pytest.param("e30." + "e" * MAX_JWT_CHARACTERS + ".e30", id="too long"),
        pytest.param(with_header([]), id="header no object"),
        pytest.param(with_header({}), id="no algorithm"),
        pytest.param(with_header({"alg": 1}), id="algorithm no text"),
        pytest.param(with_header({"alg": "ES256", "kid": 1}), id="key id no text"),
        pytest.param(with_header({"alg": "ES256", "typ": []}), id="type no text"),
        pytest.param(with_header({"alg": "ES256", "crit": []}), id="critical extensions"),
        pytest.param(with_header({"alg": "ES256", "b64": False}), id="unencoded payload"),
    ],
)
def test_a_malformed_token_header_is_refused(text: str) -> None:
    with pytest.raises(InvalidJwt):
        read_header(text)


@pytest.mark.parametrize(
    "payload",
    [b"", b"[]", b"\xff", b'{"sub":"ada"}', b'{"sub":1,"exp":1}', b'{"sub":"ada","exp":NaN}', b"[" * 5000],
)
def test_claims_of_a_wrong_type_are_refused(payload: bytes) -> None:
    with pytest.raises(InvalidJwt, match="claims"):
        verified_claims(signed(payload), PUBLIC, "ES256", Claims)


@pytest.mark.parametrize("algorithm", ["none", "HS256", "RS256", "ES384"])
def test_only_the_algorithm_of_the_caller_verifies(algorithm: str) -> None:
    with pytest.raises(InvalidJwt, match="signature"):
        verified_claims(GOOD, PUBLIC, algorithm, Claims)
    head, body, signature = GOOD.split(".")
    other = f"{b64(json.dumps({'alg': algorithm, 'kid': 'k-1'}).encode())}.{body}.{signature}"
    assert head != other.split(".", maxsplit=1)[0]
    with pytest.raises(InvalidJwt, match="signature"):
        verified_claims(other, PUBLIC, "ES256", Claims)


def test_another_key_does_not_verify() -> None:
    with pytest.raises(InvalidJwt, match="signature"):
        verified_claims(GOOD, ec.generate_private_key(ec.SECP256R1()).public_key(), "ES256", Claims)


@given(st.text(max_size=200))
def test_arbitrary_text_is_not_a_token(text: str) -> None:
    assert not looks_like_jwt(text) or text.count(".") == 2
    with pytest.raises(InvalidJwt):
        read_header(text)
