"""Short-lived access tokens: how they are issued, verified and refused."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sluice.gateway.authz.policy import Policy, RoleRules
from sluice.gateway.credentials.access_tokens import (
    InvalidAccessToken,
    issue,
    role_access_token_prefix,
    verify,
)
from sluice.gateway.credentials.signing_keys import AccessTokenKeys
from sluice.pki.assertions.principal import Credential, Principal

NOW = 1_800_000_000.0
POLICY = Policy(
    frozenset({"a.read", "a.write"}),
    {
        "viewer": RoleRules("viewer", allow=frozenset({"a.read"})),
        "submitter": RoleRules("submitter", allow=frozenset({"a.read", "a.write"})),
        "suspended": RoleRules("suspended", deny=frozenset({"a.write"})),
    },
)
ADA = Principal("ada", ("viewer", "submitter"), "session", Credential("session", "5e551017"), ("staff",))


@pytest.fixture
def keys(tmp_path: Path) -> AccessTokenKeys:
    keys = AccessTokenKeys(tmp_path / "pass-keys")
    keys.refresh(NOW)
    return keys


def claims_of(text: str) -> dict[str, Any]:
    claims: dict[str, Any] = jwt.decode(text, options={"verify_signature": False})
    return claims


def test_an_access_token_has_the_claims_of_its_principal_and_its_lifetime(keys: AccessTokenKeys) -> None:
    text, made = issue(ADA, keys, POLICY, now=NOW, csrf="c5rf")
    assert verify(text, keys, now=NOW) == made
    assert made.principal == ADA
    assert claims_of(text) == {
        "iss": "sluice-gateway",
        "aud": "sluice",
        "sub": "ada",
        "roles": ["viewer", "submitter"],
        "role": "submitter",
        "groups": ["staff"],
        "method": "session",
        "cred": "5e551017",
        "kind": "session",
        "csrf": "c5rf",
        "all": "a.read a.write",
        "own": "",
        "jti": made.access_token_id,
        "iat": int(NOW),
        "exp": int(NOW) + 300,
    }
    header = {"alg": "ES256", "typ": "JWT", "kid": keys.signing(NOW).kid}
    assert jwt.get_unverified_header(text) == header | {"cty": f"role-decides-{POLICY.digest}"}
    assert text.startswith(role_access_token_prefix(POLICY.digest))


@pytest.mark.parametrize(
    "principal",
    [
        pytest.param(
            Principal("ada", ("submitter", "suspended"), "token", Credential("token", "x")),
            id="roles that deny each other",
        ),
        pytest.param(
            Principal("ada", ("submitter",), "token", Credential("token", "x"), scopes=("a.read",)), id="scopes"
        ),
        pytest.param(Principal("ada", (), "token", Credential("token", "x")), id="no role"),
    ],
)
def test_an_access_token_names_no_sole_role_if_it_does_not_decide_alone(
    keys: AccessTokenKeys, principal: Principal
) -> None:
    text, _ = issue(principal, keys, POLICY, now=NOW)
    assert claims_of(text).keys().isdisjoint({"role", "all", "own"})
    assert "cty" not in jwt.get_unverified_header(text)
    assert verify(text, keys, now=NOW).principal == principal


def test_an_access_token_does_not_outlive_its_credential(keys: AccessTokenKeys) -> None:
    _, made = issue(ADA, keys, POLICY, now=NOW, not_after=NOW + 10)
    assert made.expires_at == NOW + 10


def test_access_token_ids_are_unique(keys: AccessTokenKeys) -> None:
    assert issue(ADA, keys, POLICY, now=NOW)[1].access_token_id != issue(ADA, keys, POLICY, now=NOW)[1].access_token_id


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def forged(keys: AccessTokenKeys, **changes: Any) -> str:
    """Return an access token with changed claims and a correct signature."""
    text, _ = issue(ADA, keys, POLICY, now=NOW)
    claims = {key: value for key, value in {**claims_of(text), **changes}.items() if value is not None}
    key = keys.signing(NOW)
    return jwt.encode(claims, key.private, algorithm="ES256", headers={"kid": key.kid})


def unsigned(keys: AccessTokenKeys, alg: str) -> str:
    text, _ = issue(ADA, keys, POLICY, now=NOW)
    header = {"alg": alg, "typ": "JWT", "kid": keys.signing(NOW).kid}
    return f"{_b64(json.dumps(header).encode())}.{text.split('.')[1]}."


def confused(keys: AccessTokenKeys) -> str:
    """Return a token signed with HS256, using the published public key as the secret."""
    key = keys.signing(NOW)
    public = key.private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    text, _ = issue(ADA, keys, POLICY, now=NOW)
    signed = f"{_b64(json.dumps({'alg': 'HS256', 'kid': key.kid}).encode())}.{text.split('.')[1]}"
    return f"{signed}.{_b64(hmac.digest(public, signed.encode(), hashlib.sha256))}"


def foreign(keys: AccessTokenKeys, kid: str | None) -> str:
    claims = claims_of(issue(ADA, keys, POLICY, now=NOW)[0])
    headers = {} if kid is None else {"kid": kid}
    return jwt.encode(claims, ec.generate_private_key(ec.SECP256R1()), algorithm="ES256", headers=headers)


def accepted(text: str, keys: AccessTokenKeys) -> bool:
    try:
        verify(text, keys, now=NOW)
    except InvalidAccessToken:
        return False
    return True


def test_hostile_access_tokens_are_refused(keys: AccessTokenKeys) -> None:
    good, _ = issue(ADA, keys, POLICY, now=NOW)
    assert verify(good, keys, now=NOW)
    head, body, signature = good.split(".")
    kid = keys.signing(NOW).kid
    hostile = {
        "empty": "",
        "an API token": "slc_0123456789ab_" + "0" * 64,
        "two parts": f"{head}.{body}",
        "no signature": f"{head}.{body}.",
        "alg none": unsigned(keys, "none"),
        "alg None": unsigned(keys, "None"),
        "key confusion": confused(keys),
        "another key, our kid": foreign(keys, kid),
        "another key, its own kid": foreign(keys, "0" * 16),
        "kid is a path": foreign(keys, "../../../../dev/null"),
        "no kid": foreign(keys, None),
        "another issuer": forged(keys, iss="https://elsewhere.example"),
        "another audience": forged(keys, aud="sluice-rest"),
        "several audiences": forged(keys, aud=["sluice", "other"]),
        "no audience": forged(keys, aud=None),
        "no expiry": forged(keys, exp=None),
        "no id": forged(keys, jti=None),
        "no name": forged(keys, sub=None),
        "expired": forged(keys, exp=int(NOW) - 6),
        "expiry no number": forged(keys, exp="tomorrow"),
        "from the future": forged(keys, iat=int(NOW) + 60),
        "roles as text": forged(keys, roles="admin"),
        "another method": forged(keys, method="trust-me"),
        "too long": forged(keys, groups=["a" * 5000]),
        "changed body": f"{head}.{body[:-4]}AAAA.{signature}",
    }
    assert [what for what, text in hostile.items() if accepted(text, keys)] == []


def test_an_access_token_expires_after_its_lifetime(keys: AccessTokenKeys) -> None:
    text, made = issue(ADA, keys, POLICY, now=NOW, lifetime=dt.timedelta(seconds=60))
    assert verify(text, keys, now=made.expires_at + 4)
    with pytest.raises(InvalidAccessToken, match="expired"):
        verify(text, keys, now=made.expires_at + 5)
