"""JWT-SVIDs: what verifies, and what must not."""

from __future__ import annotations

import base64
import datetime as dt
import json
from pathlib import Path
from typing import Any, get_args

import jwt
import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from hypothesis import given, strategies as st

from sluice.core.errors import PkiError, StoreError
from sluice.pki.jwt.authority import LocalJwtAuthority
from sluice.pki.jwt.svid import (
    KEY_LIFETIME,
    MAX_AUDIENCE_BYTES,
    MAX_AUDIENCES,
    MAX_KEYS,
    MAX_LIFETIME,
    MAX_TOKEN_BYTES,
    PUBLISH_AHEAD,
    Algorithm,
    JwtKey,
    TokenRejected,
    advanced,
    check_audiences,
    decode_jwks,
    jwks,
    oidc_jwks,
    public_keys,
    sign_token,
    signing_key,
    validate_token,
)
from sluice.pki.spiffe_id import Role, SpiffeId

NOW = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
ME = SpiffeId.process("sluice.local", Role.TASKMANAGER, "tm-1")
KEY = JwtKey.generate(NOW)
LIFETIME = dt.timedelta(minutes=5)
TOKEN = sign_token(KEY, ME, ["reports"], NOW, LIFETIME)
HEADER = {"alg": "ES256", "kid": KEY.key_id, "typ": "JWT"}
CLAIMS = {"sub": str(ME), "aud": ["reports"], "exp": NOW.timestamp() + 60}


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _forge(header: dict[str, Any], claims: Any, key: JwtKey = KEY) -> str:
    signed = f"{_b64(json.dumps(header).encode())}.{_b64(json.dumps(claims).encode())}"
    assert isinstance(key.key, ec.EllipticCurvePrivateKey)
    r, s = decode_dss_signature(key.key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
    return f"{signed}.{_b64(r.to_bytes(32) + s.to_bytes(32))}"


def _validate(token: str, audience: str = "reports", now: dt.datetime = NOW) -> SpiffeId:
    return validate_token(token, audience, public_keys((KEY,)), trust_domain="sluice.local", now=now)[0]


def test_a_token_names_its_subject_audience_and_end() -> None:
    subject, claims = validate_token(TOKEN, "reports", public_keys((KEY,)), trust_domain="sluice.local", now=NOW)
    assert subject == ME
    assert claims == {
        "sub": str(ME),
        "aud": ["reports"],
        "iat": int(NOW.timestamp()),
        "exp": int(NOW.timestamp()) + 300,
    }


def test_the_forge_helper_makes_a_valid_token_from_unchanged_claims() -> None:
    assert _validate(_forge(HEADER, CLAIMS)) == ME


@pytest.mark.parametrize(
    "token",
    [
        pytest.param(_forge(HEADER, {**CLAIMS, "aud": []}), id="no audience"),
        pytest.param(_forge(HEADER, {**CLAIMS, "aud": "billing"}), id="another audience"),
        pytest.param(_forge(HEADER, {k: v for k, v in CLAIMS.items() if k != "aud"}), id="audience missing"),
        pytest.param(_forge(HEADER, {k: v for k, v in CLAIMS.items() if k != "exp"}), id="end missing"),
        pytest.param(_forge(HEADER, {**CLAIMS, "exp": NOW.timestamp()}), id="ends now"),
        pytest.param(_forge(HEADER, {**CLAIMS, "exp": "2040"}), id="end is text"),
        pytest.param(_forge(HEADER, {**CLAIMS, "nbf": NOW.timestamp() + 1}), id="not yet valid"),
        pytest.param(_forge(HEADER, {**CLAIMS, "sub": "spiffe://other/taskmanager/tm-1"}), id="other trust domain"),
        pytest.param(_forge(HEADER, {**CLAIMS, "sub": "tm-1"}), id="subject is no SPIFFE ID"),
        pytest.param(_forge(HEADER, [1]), id="claims are no object"),
        pytest.param(_forge({**HEADER, "alg": "none"}, CLAIMS), id="alg none"),
        pytest.param(_forge({**HEADER, "alg": "HS256"}, CLAIMS), id="alg HS256"),
        pytest.param(_forge({**HEADER, "typ": "at+jwt"}, CLAIMS), id="another type"),
        pytest.param(_forge({**HEADER, "crit": ["b64"]}, CLAIMS), id="critical extension"),
        pytest.param(_forge({"alg": "ES256"}, CLAIMS), id="no key id"),
        pytest.param(_forge({**HEADER, "kid": "x"}, CLAIMS), id="unknown key id"),
        pytest.param(_forge(HEADER, CLAIMS, JwtKey.generate(NOW)), id="foreign key under our id"),
        pytest.param(TOKEN.rsplit(".", 1)[0] + ".", id="no signature"),
        pytest.param(TOKEN.rsplit(".", 1)[0] + "." + _b64(bytes(64)), id="zero signature"),
        pytest.param(TOKEN + "A", id="one character more"),
        pytest.param(TOKEN + "=", id="padding"),
        pytest.param(TOKEN.replace(".", "..", 1), id="four parts"),
        pytest.param("", id="empty"),
        pytest.param("..", id="empty parts"),
        pytest.param("ü.ü.ü", id="not ASCII"),
        pytest.param("a" * (MAX_TOKEN_BYTES + 1), id="too long"),
    ],
)
def test_a_wrong_token_is_refused(token: str) -> None:
    with pytest.raises(PkiError):
        _validate(token)


def test_an_expired_token_is_refused() -> None:
    assert _validate(TOKEN, now=NOW + LIFETIME - dt.timedelta(seconds=1)) == ME
    with pytest.raises(TokenRejected, match="expired"):
        _validate(TOKEN, now=NOW + LIFETIME)


@pytest.mark.parametrize("audience", ["", "Reports", "report", "reports "])
def test_an_audience_matches_only_exactly(audience: str) -> None:
    with pytest.raises(TokenRejected):
        _validate(TOKEN, audience)


@given(st.integers(0, len(TOKEN) - 1), st.characters(min_codepoint=33, max_codepoint=126))
def test_a_token_with_any_character_changed_does_not_verify(position: int, character: str) -> None:
    changed = TOKEN[:position] + character + TOKEN[position + 1 :]
    if changed == TOKEN:
        assert _validate(changed) == ME
    else:
        with pytest.raises(PkiError):
            _validate(changed)


@given(st.text(max_size=200))
def test_arbitrary_text_as_a_token_raises_a_pki_error(text: str) -> None:
    with pytest.raises(PkiError):
        _validate(text)


@pytest.mark.parametrize(
    ("audience", "lifetime"),
    [
        pytest.param([], LIFETIME, id="no audience"),
        pytest.param([""], LIFETIME, id="empty audience"),
        pytest.param(["a"], MAX_LIFETIME + dt.timedelta(seconds=1), id="too long"),
        pytest.param(["a"], dt.timedelta(0), id="no life"),
    ],
)
def test_a_token_without_audience_or_with_an_invalid_lifetime_is_not_signed(
    audience: list[str], lifetime: dt.timedelta
) -> None:
    with pytest.raises(TokenRejected):
        sign_token(KEY, ME, audience, NOW, lifetime)


def test_a_new_key_is_published_before_it_signs_and_the_old_stays_until_its_tokens_end() -> None:
    (first,) = advanced((), NOW)
    assert advanced((first,), NOW + KEY_LIFETIME - dt.timedelta(seconds=1)) == (first,)
    at = NOW + KEY_LIFETIME
    ring = advanced((first,), at)
    assert ring[0] == first
    assert signing_key(ring, at) == first
    assert signing_key(ring, at + PUBLISH_AHEAD) == ring[1]
    last = at + PUBLISH_AHEAD + MAX_LIFETIME
    assert advanced(ring, last - dt.timedelta(seconds=1)) == ring
    assert advanced(ring, last) == ring[1:]


def test_the_bundle_holds_no_private_member() -> None:
    (key,) = json.loads(jwks((KEY,)))["keys"]
    assert set(key) == {"use", "kid", "kty", "crv", "x", "y", "x5c"}


def test_a_signing_key_is_also_published_as_a_certificate_in_x5c() -> None:
    (published,) = json.loads(oidc_jwks(jwks((KEY,))))["keys"]
    certificate = x509.load_der_x509_certificate(base64.b64decode(published["x5c"][0], validate=True))
    assert certificate.public_key() == KEY.key.public_key()
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    old = JwtKey(KEY.key_id, NOW, KEY.key)
    assert "x5c" not in json.loads(oidc_jwks(jwks((old,))))["keys"][0]


def test_a_ring_changes_its_algorithm_with_overlap_and_both_kinds_of_keys_verify() -> None:
    (first,) = advanced((), NOW)
    ring = advanced((first,), NOW, "RS256")
    assert [key.algorithm for key in ring] == ["ES256", "RS256"]
    assert advanced(ring, NOW, "RS256") == ring, "once is enough"
    keys = decode_jwks(jwks(ring))
    for key in ring:
        token = sign_token(key, ME, ["reports"], NOW, LIFETIME)
        assert validate_token(token, "reports", keys, trust_domain="sluice.local", now=NOW)[0] == ME


def test_a_key_decides_the_algorithm_whatever_the_header_says() -> None:
    ring = advanced(advanced((), NOW), NOW, "RS256")
    confused = _forge({**HEADER, "kid": ring[1].key_id}, CLAIMS, ring[0])
    with pytest.raises(TokenRejected, match="only RS256 is"):
        validate_token(confused, "reports", public_keys(ring), trust_domain="sluice.local", now=NOW)


def test_issuer_and_extra_claims_are_signed_but_extra_claims_cannot_set_reserved_ones() -> None:
    token = sign_token(KEY, ME, ["a"], NOW, LIFETIME, issuer="https://i.example", extra={"sluice": {"owner": "ada"}})
    _, claims = validate_token(token, "a", public_keys((KEY,)), trust_domain="sluice.local", now=NOW)
    assert (claims["iss"], claims["sluice"]) == ("https://i.example", {"owner": "ada"})
    for name in ("sub", "aud", "exp", "nbf", "iat", "iss", "jti"):
        with pytest.raises(TokenRejected, match="is reserved"):
            sign_token(KEY, ME, ["a"], NOW, LIFETIME, extra={name: "x"})


@pytest.mark.parametrize("algorithm", ["ES256", "RS256"])
def test_the_openid_connect_jwks_has_the_public_keys_of_the_bundle(algorithm: Algorithm) -> None:
    key = JwtKey.generate(NOW, algorithm)
    (published,) = json.loads(oidc_jwks(jwks((key,))))["keys"]
    assert (published["use"], published["alg"], published["kid"]) == ("sig", algorithm, key.key_id)
    token = sign_token(key, ME, ["a"], NOW, LIFETIME)
    read = jwt.PyJWK.from_dict(published)
    payload = jwt.decode(
        token, read, algorithms=[algorithm], audience="a", options={"verify_exp": False, "verify_iat": False}
    )
    assert payload["sub"] == str(ME)
    assert not {"d", "p", "q", "dp", "dq", "qi", "oth"} & set(published)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xff", id="no text"),
        pytest.param(b'{"keys": [{"kty": "oct", "kid": "a", "k": "AA"}]}', id="a shared secret"),
        pytest.param(
            b'{"keys": [{"kty": "EC", "kid": "a", "crv": "P-384", "x": "AA", "y": "AA"}]}', id="another curve"
        ),
        pytest.param(b'{"keys": [{"kty": "RSA", "kid": "a", "n": "AQAB", "e": "AQAB"}]}', id="a short key"),
        pytest.param(b'{"keys": [{"kty": "EC", "kid": "a", "crv": "P-256", "x": "AA", "y": "AA"}]}', id="not on it"),
        pytest.param(
            msgspec.json.encode({"keys": json.loads(jwks((KEY,)))["keys"] * (MAX_KEYS + 1)}), id="too many keys"
        ),
    ],
)
def test_a_damaged_bundle_is_refused(data: bytes) -> None:
    with pytest.raises(TokenRejected):
        decode_jwks(data)


@pytest.mark.parametrize(
    "audience",
    [
        pytest.param([], id="none"),
        pytest.param(["a", ""], id="an empty one"),
        pytest.param(["a" * (MAX_AUDIENCE_BYTES + 1)], id="too long"),
        pytest.param(["ü" * MAX_AUDIENCE_BYTES], id="too long in bytes"),
        pytest.param(["a\nb"], id="a line break"),
        pytest.param(["\ud800"], id="half a character"),
        pytest.param([f"a{n}" for n in range(MAX_AUDIENCES + 1)], id="too many"),
    ],
)
def test_impossible_audiences_are_refused(audience: list[str]) -> None:
    with pytest.raises(TokenRejected):
        check_audiences(audience)


def test_duplicate_audiences_are_removed() -> None:
    assert check_audiences(["b", "a", "b"]) == ("b", "a")


def test_a_restarted_jwt_authority_verifies_the_tokens_it_signed_before(tmp_path: Path) -> None:
    tokens = []
    for _ in range(2):
        authority = LocalJwtAuthority(tmp_path, "sluice.local", lambda: NOW)
        assert authority.refresh()
        assert not authority.refresh()
        tokens.append(authority.sign(ME, ["reports"], LIFETIME))
    assert authority.validate(tokens[0], "reports")[0] == ME
    assert (tmp_path / "jwt" / "sluice.local.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"[]", id="no key"),
        pytest.param(b"\xff", id="no text"),
        pytest.param(msgspec.json.encode([{"key_id": "a", "created": NOW, "key_pem": "x"}]), id="no key in it"),
    ],
)
def test_a_damaged_jwt_key_file_is_an_error_and_is_not_overwritten(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "jwt").mkdir(mode=0o700)
    file = tmp_path / "jwt" / "sluice.local.json"
    file.write_bytes(content)
    file.chmod(0o600)
    with pytest.raises(StoreError):
        LocalJwtAuthority(tmp_path, "sluice.local", lambda: NOW).refresh()
    assert file.read_bytes() == content


def test_nothing_is_signed_without_a_key(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no JWT signing key"):
        LocalJwtAuthority(tmp_path, "sluice.local", lambda: NOW).sign(ME, ["reports"], LIFETIME)


def test_two_authorities_that_disagree_about_the_algorithm_leave_a_readable_key_file(tmp_path: Path) -> None:
    both = [
        LocalJwtAuthority(tmp_path, "sluice.local", lambda: NOW, algorithm=algorithm)
        for algorithm in get_args(Algorithm)
    ]
    for _ in range(MAX_KEYS):
        for authority in both:
            authority.refresh()
    assert both[0].sign(ME, ["reports"], LIFETIME)
