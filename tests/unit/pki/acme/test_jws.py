"""Signed requests: every offered algorithm, and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given, strategies as st

from sluice.pki.acme.jwk import canonical, encode, public_key, thumbprint
from sluice.pki.acme.jws import check_binding, parse_request
from sluice.pki.acme.problems import AcmeProblem, ProblemType
from tests.acme_client import AcmeClient, Key, jws

URL = "https://acme.example:1/acme/new-order"
RSA = rsa.generate_private_key(65537, 2048)


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(ec.generate_private_key(ec.SECP256R1()), id="ES256"),
        pytest.param(ec.generate_private_key(ec.SECP384R1()), id="ES384"),
        pytest.param(ed25519.Ed25519PrivateKey.generate(), id="EdDSA"),
        pytest.param(RSA, id="RS256"),
    ],
)
def test_a_request_verifies_only_with_its_own_key(key: Key) -> None:
    client = AcmeClient(key)
    request = parse_request(client.request(URL, {"a": 1}, "n"))
    request.verify(client.jwk)
    assert request.payload == b'{"a":1}'
    for other in (AcmeClient(), AcmeClient(ed25519.Ed25519PrivateKey.generate())):
        with pytest.raises(AcmeProblem, match=r"signature|algorithm"):
            request.verify(other.jwk)


def test_the_thumbprint_matches_the_example_of_rfc_7638() -> None:
    modulus = (
        "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknj"
        "hMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQ"
        "vRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzK"
        "nqDKgw"
    )
    jwk = canonical({"kty": "RSA", "n": modulus, "e": "AQAB", "alg": "RS256", "kid": "2011-04-29"})
    assert thumbprint(jwk) == "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs"


@pytest.mark.parametrize(
    ("header", "kind"),
    [
        pytest.param({"alg": "none"}, ProblemType.BAD_SIGNATURE_ALGORITHM, id="none"),
        pytest.param({"alg": "HS256"}, ProblemType.BAD_SIGNATURE_ALGORITHM, id="HS256"),
        pytest.param({"alg": "ES512"}, ProblemType.BAD_SIGNATURE_ALGORITHM, id="ES512"),
        pytest.param({"kid": "https://acme.example:1/acme/account/x"}, ProblemType.MALFORMED, id="jwk and kid"),
        pytest.param({"jwk": None}, ProblemType.MALFORMED, id="neither jwk nor kid"),
        pytest.param({"nonce": None}, ProblemType.BAD_NONCE, id="no nonce"),
        pytest.param({"url": None}, ProblemType.MALFORMED, id="no url"),
        pytest.param({"crit": ["b64"], "b64": False}, ProblemType.MALFORMED, id="crit"),
        pytest.param({"b64": False}, ProblemType.MALFORMED, id="b64"),
        pytest.param({"url": "https://x/" + "a" * 2000}, ProblemType.MALFORMED, id="long url"),
        pytest.param({"jwk": {"kty": "oct", "k": "AAAA"}}, ProblemType.BAD_PUBLIC_KEY, id="symmetric key"),
        pytest.param({"jwk": {"kty": "EC", "crv": "P-256", "x": 1, "y": 2}}, ProblemType.BAD_PUBLIC_KEY, id="numbers"),
    ],
)
def test_a_wrong_header_is_refused(header: dict[str, Any], kind: ProblemType) -> None:
    with pytest.raises(AcmeProblem) as caught:
        parse_request(AcmeClient().request(URL, {}, "n", **header))
    assert caught.value.kind is kind


def test_a_private_key_in_a_request_is_refused() -> None:
    client = AcmeClient()
    with pytest.raises(AcmeProblem, match="secret key"):
        parse_request(client.request(URL, {}, "n", jwk=client.jwk | {"d": "AAAA"}))


@pytest.mark.parametrize(
    "jwk",
    [
        pytest.param({"kty": "RSA", "n": encode(b"\xff" * 128), "e": "AQAB"}, id="RSA of 1024 bits"),
        pytest.param({"kty": "RSA", "n": encode(b"\xff" * 1024), "e": "AQAB"}, id="RSA of 8192 bits"),
        pytest.param({"kty": "RSA", "n": encode(b"\xff" * 256), "e": "Aw"}, id="exponent 3"),
        pytest.param({"kty": "EC", "crv": "P-256", "x": encode(b"\1" * 32), "y": encode(b"\1" * 32)}, id="no point"),
        pytest.param({"kty": "EC", "crv": "P-256", "x": encode(b"\1" * 31), "y": encode(b"\1" * 32)}, id="short"),
        pytest.param({"kty": "EC", "crv": "P-521", "x": "AA", "y": "AA"}, id="another curve"),
        pytest.param({"kty": "OKP", "crv": "X25519", "x": encode(b"\1" * 32)}, id="X25519"),
        pytest.param({"kty": "OKP", "crv": "Ed25519", "x": encode(b"\1" * 31)}, id="short Ed25519"),
    ],
)
def test_a_weak_or_damaged_key_is_refused(jwk: dict[str, str]) -> None:
    with pytest.raises(AcmeProblem) as caught:
        public_key(canonical(jwk))
    assert caught.value.kind is ProblemType.BAD_PUBLIC_KEY


def test_a_changed_payload_does_not_verify() -> None:
    client = AcmeClient()
    whole = msgspec.json.decode(client.request(URL, {"a": 1}, "n"))
    whole["payload"] = encode(b'{"a":2}')
    with pytest.raises(AcmeProblem, match="signature"):
        parse_request(msgspec.json.encode(whole)).verify(client.jwk)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b'{"protected":"e30","payload":"","signature":""}', id="an empty header"),
        pytest.param(b'{"protected":"e30=","payload":"","signature":""}', id="padding"),
        pytest.param(b'{"protected":"e31","payload":"","signature":""}', id="not canonical"),
        pytest.param(b'{"protected":"","payload":"","signature":"","header":{}}', id="an unprotected header"),
        pytest.param(b'{"payload":"","signatures":[]}', id="several signatures"),
        pytest.param(b"[" * 100_000, id="nesting"),
        pytest.param(b"\xff\xfe", id="no UTF-8"),
    ],
)
def test_a_malformed_jws_is_refused(body: bytes) -> None:
    with pytest.raises(AcmeProblem) as caught:
        parse_request(body)
    assert caught.value.kind is ProblemType.MALFORMED


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused_as_a_request(body: bytes) -> None:
    with pytest.raises(AcmeProblem):
        parse_request(body)


SECRET = b"s" * 32
NEW_ACCOUNT = "https://acme.example:1/acme/new-account"


def test_a_binding_verifies_only_with_its_secret_account_and_url() -> None:
    client = AcmeClient()
    binding = parse_request(client.binding("k", SECRET, NEW_ACCOUNT), nonce=False, symmetric=True)
    check_binding(binding, secret=SECRET, account=client.jwk, url=NEW_ACCOUNT)
    for wrong in (
        {"secret": b"t" * 32},
        {"account": AcmeClient().jwk},
        {"url": NEW_ACCOUNT + "2"},
    ):
        arguments: dict[str, Any] = {"secret": SECRET, "account": client.jwk, "url": NEW_ACCOUNT} | wrong
        with pytest.raises(AcmeProblem):
            check_binding(binding, **arguments)


@pytest.mark.parametrize(
    "header",
    [
        pytest.param({"alg": "none"}, id="none"),
        pytest.param({"alg": "ES256"}, id="asymmetric"),
        pytest.param({"nonce": "n"}, id="a nonce"),
        pytest.param({"kid": ""}, id="no key id"),
    ],
)
def test_a_binding_with_a_wrong_header_is_refused(header: dict[str, Any]) -> None:
    with pytest.raises(AcmeProblem):
        parse_request(AcmeClient().binding("k", SECRET, NEW_ACCOUNT, **header), nonce=False, symmetric=True)


def test_an_account_key_cannot_be_used_as_an_hmac_key() -> None:
    """Key confusion: an HMAC keyed with the public key must not count as a signature."""
    client = AcmeClient()
    signed = jws(
        {"alg": "HS256", "jwk": client.jwk, "nonce": "n", "url": URL}, {}, secret=msgspec.json.encode(client.jwk)
    )
    with pytest.raises(AcmeProblem) as caught:
        parse_request(msgspec.json.encode(signed))
    assert caught.value.kind is ProblemType.BAD_SIGNATURE_ALGORITHM
