"""Bearer tokens and certificates at the auth service: which it accepts and what it exchanges for them."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import gzip
import hashlib
import hmac
import json
from typing import Any

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives import serialization

from sluice.gateway.credentials.access_tokens import ACCESS_TOKEN_COOKIE
from sluice.gateway.credentials.token_file import TokenStore
from sluice.gateway.credentials.token_last_used import read_last_used
from sluice.gateway.jwt.jwks import UNKNOWN_KEY_SECONDS
from sluice.pki.assertions.principal import CertificateId, Jti, TokenId
from tests.identity_provider import IdentityProvider, Signer

from .conftest import TRUST_DOMAIN, House, Start

HOUR = dt.timedelta(hours=1)


def token(house: House, role: str = "viewer", **more: Any) -> tuple[str, str]:
    record, text = TokenStore(house.home).create("ada", role, HOUR, **more)
    return record.id, text


def certified(user: str, trust_domain: str = TRUST_DOMAIN, role: str = "user") -> str:
    return f"Hash={'ab' * 32};URI=spiffe://{trust_domain}/{role}/{user}"


def bearer(provider: IdentityProvider, **claims: Any) -> str:
    told = {key: value for key, value in provider.claims("robot", "cluster", **claims).items() if value is not None}
    return provider.signer.sign(told)


async def exchanged(house: House, **headers: str) -> dict[str, Any]:
    reply = await house.browser().post("/auth/exchange", None, **headers)
    assert reply.status == 200, reply.text
    document: dict[str, Any] = reply.json
    return document


async def test_every_kind_of_credential_can_be_exchanged_for_a_working_access_token(house: House) -> None:
    identifier, text = token(house)
    kinds = {
        "token": ({"authorization": f"Bearer {text}"}, "ada", identifier),
        "jwt": ({"authorization": f"Bearer {bearer(house.provider, jti='j1')}"}, "ci-robot", None),
        "certificate": ({"x_forwarded_client_cert": certified("cert-user")}, "cert-user", "ab" * 32),
    }
    for method, (headers, name, credential) in kinds.items():
        document = await exchanged(house, **headers)
        assert 290 <= document["expires_in"] <= 300
        claims = jwt.decode(document["pass"], options={"verify_signature": False})
        assert (claims["sub"], claims["method"]) == (name, method)
        assert credential in {None, claims["cred"]}
        assert await house.bearer(document["pass"]) == 200


async def test_a_revocation_ends_both_the_credential_and_its_access_tokens(house: House) -> None:
    identifier, text = token(house)
    got = (await exchanged(house, authorization=f"Bearer {text}"))["pass"]
    assert await house.bearer(got) == await house.bearer(text) == 200
    TokenStore(house.home).revoke(TokenId(identifier))
    assert await house.bearer(got) == await house.bearer(text) == 401
    shown = {"x_forwarded_client_cert": certified("cert-user")}
    assert (await house.check(**shown)).status == 200
    house.service.checks.authenticator.revocations.revoke(("certificate", CertificateId("ab" * 32)))
    assert (await house.check(**shown)).status == 401


async def test_a_single_access_token_can_be_revoked(house: House) -> None:
    _, text = token(house)
    got = (await exchanged(house, authorization=f"Bearer {text}"))["pass"]
    jti = jwt.decode(got, options={"verify_signature": False})["jti"]
    house.service.checks.authenticator.revocations.revoke(("pass", Jti(jti)))
    assert await house.bearer(got) == 401
    assert await house.bearer(text) == 200


async def test_an_access_token_is_not_exchanged_for_another(house: House) -> None:
    _, text = token(house)
    got = (await exchanged(house, authorization=f"Bearer {text}"))["pass"]
    reply = await house.browser().post("/auth/exchange", authorization=f"Bearer {got}")
    assert reply.status == 403


async def test_scopes_limit_a_token_and_the_access_token_it_is_exchanged_for(house: House) -> None:
    _, text = token(house, "submitter", scopes=("jobs.list",))
    got = (await exchanged(house, authorization=f"Bearer {text}"))["pass"]
    assert "role" not in jwt.decode(got, options={"verify_signature": False})
    for credential in (text, got):
        assert await house.bearer(credential) == 200
        assert await house.bearer(credential, "POST") == 403


async def test_the_last_use_of_a_token_is_recorded(house: House) -> None:
    used, text = token(house)
    unused, _ = token(house)
    assert await house.bearer(text) == 200
    assert house.service.checks.sign_in.token_use is not None
    house.service.checks.sign_in.token_use.flush()
    assert read_last_used(house.home).keys() == {used}
    assert unused != used


async def test_an_invalid_bearer_token_is_refused_despite_a_valid_cookie_or_certificate(house: House) -> None:
    browser = house.browser()
    await browser.sign_in()
    assert (await browser.get("/v1/jobs", authorization="Bearer x")).status == 401
    assert (await house.check(authorization="Bearer x", x_forwarded_client_cert=certified("cert-user"))).status == 401


async def test_a_client_certificate_is_accepted_despite_an_invalid_cookie(house: House) -> None:
    shown = {"x_forwarded_client_cert": certified("cert-user"), "cookie": f"{ACCESS_TOKEN_COOKIE}=a.b.c"}
    assert (await house.check(**shown)).status == 200


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(certified("cert-user", "evil.test"), id="another trust domain"),
        pytest.param(certified("cert-user", role="gateway"), id="another role"),
        pytest.param(certified("cert-user") + f",{certified('cert-user')}", id="two elements"),
        pytest.param(certified("cert-user") + f";URI=spiffe://{TRUST_DOMAIN}/user/root", id="two identities"),
        pytest.param(certified("cert-user").replace("ab" * 32, "xyz"), id="no fingerprint"),
        pytest.param("Hash=" + "ab" * 32, id="no identity"),
        pytest.param(f"By=spiffe://{TRUST_DOMAIN}/user/cert-user", id="only ourselves"),
        pytest.param(
            f'Subject="URI=spiffe://{TRUST_DOMAIN}/user/cert-user";Hash={"ab" * 32}', id="in a quoted subject"
        ),
        pytest.param("", id="empty"),
    ],
)
async def test_a_client_certificate_header_without_one_valid_user_is_401(house: House, value: str) -> None:
    assert (await house.check(x_forwarded_client_cert=value)).status == 401


def _b64(value: object) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _confused(provider: IdentityProvider) -> str:
    public = provider.signer.key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    head = {"alg": "HS256", "typ": "JWT", "kid": provider.signer.kid}
    signed = f"{_b64(head)}.{_b64(provider.claims('robot', 'cluster'))}"
    return f"{signed}.{_b64(hmac.digest(public, signed.encode(), hashlib.sha256))}"


def _hostile(provider: IdentityProvider) -> dict[str, str]:
    claims = provider.claims("robot", "cluster")
    sign = provider.signer.sign
    good = sign(claims)
    return {
        "alg none": f"{_b64({'alg': 'none', 'typ': 'JWT'})}.{_b64(claims)}.",
        "alg none with something signed": f"{_b64({'alg': 'none'})}.{_b64(claims)}.AAAA",
        "HS256 with the public key": _confused(provider),
        "audience of the login client": sign({**claims, "aud": "sluice"}),
        "audience that only begins alike": sign({**claims, "aud": "cluster2"}),
        "no audience": bearer(provider, aud=None),
        "another issuer": sign({**claims, "iss": "https://evil.example"}),
        "issuer with a slash more": sign({**claims, "iss": provider.issuer + "/"}),
        "no issuer": bearer(provider, iss=None),
        "our own issuer, foreign key": sign({**claims, "iss": "sluice-gateway", "aud": "sluice"}),
        "expired": sign({**claims, "exp": claims["iat"] - 60}),
        "no expiry": bearer(provider, exp=None),
        "expiry as text": sign({**claims, "exp": str(claims["exp"])}),
        "not yet": sign({**claims, "nbf": claims["iat"] + 120}),
        "issued in the future": sign({**claims, "iat": claims["iat"] + 120, "exp": claims["exp"] + 120}),
        "valid for years": sign({**claims, "exp": claims["exp"] + 10**8}),
        "name with a comma": sign({**claims, "sub": "a,b"}),
        "no name": bearer(provider, sub=None),
        "groups that are no list": sign({**claims, "groups": {"staff": True}}),
        "a thousand groups": sign({**claims, "groups": [f"g{n}" for n in range(1000)]}),
        "kid is a path": Signer("../../../../dev/null").sign(claims),
        "kid is SQL": Signer("' OR 1=1 --").sign(claims),
        "kid is no text": _b64({"alg": "ES256", "kid": 7}) + good[good.index(".") :],
        "another key under a known kid": Signer(provider.signer.kid).sign(claims),
        "brings its own key": sign(claims, jwk=Signer().jwk())[:-4] + "AAAA",
        "demands an extension": sign(claims, crit=["exp"]),
        "another type": sign(claims, typ="logout+jwt"),
        "changed": good[:-6] + "AAAAAA",
        "very long": sign({**claims, "x": "y" * 20_000}),
        "deeply nested": f"{_b64({'alg': 'ES256'})}.{_b64(b'[' * 5000)}.AAAA",
    }


async def test_no_forged_or_invalid_jwt_is_accepted(house: House) -> None:
    assert await house.bearer(bearer(house.provider)) == 200
    accepted = {
        what: status for what, text in _hostile(house.provider).items() if (status := await house.bearer(text)) != 401
    }
    assert accepted == {}


async def test_the_prefix_of_an_issuer_is_prepended_to_the_names_in_its_tokens(house: House) -> None:
    reply = await house.browser().get("/auth/whoami", authorization=f"Bearer {bearer(house.provider, groups=['x'])}")
    assert (reply.json["name"], reply.json["groups"], reply.json["roles"]) == ("ci-robot", ["x"], [])


async def test_a_key_rotation_of_an_issuer_is_followed_and_unknown_keys_cause_no_repeated_fetches(house: House) -> None:
    assert await house.bearer(bearer(house.provider)) == 200
    _, cache = house.service.checks.authenticator.issuers[house.provider.issuer]
    moved = [0.0]
    real = cache.clock
    cache.clock = lambda: real() + moved[0]
    asked = house.provider.asked.count("/jwks")
    for _ in range(20):
        assert await house.bearer(Signer().sign(house.provider.claims("robot", "cluster"))) == 401
    assert house.provider.asked.count("/jwks") == asked
    house.provider.signer = Signer()
    moved[0] = UNKNOWN_KEY_SECONDS
    assert await house.bearer(bearer(house.provider)) == 200
    assert house.provider.asked.count("/jwks") == asked + 1


async def _huge(_: web.BaseRequest) -> web.Response:
    return web.Response(body=b'{"keys":[' + b" " * (300 << 10) + b"]}", content_type="application/json")


async def _elsewhere(_: web.BaseRequest) -> web.Response:
    return web.Response(status=302, headers={"location": "https://127.0.0.1:1/keys"})


async def _inflated(_: web.BaseRequest) -> web.Response:
    body = gzip.compress(b'{"keys":[' + b" " * (16 << 20) + b"]}")
    return web.Response(body=body, headers={"content-encoding": "gzip"}, content_type="application/json")


async def _nonsense(_: web.BaseRequest) -> web.Response:
    return web.Response(body=b"<html>", content_type="text/html")


async def _secret_keys(_: web.BaseRequest) -> web.Response:
    keys = [{"kty": "oct", "k": _b64(b"0" * 32), "alg": "HS256"}]
    return web.json_response({"keys": keys})


@pytest.mark.parametrize(
    "answer", [_huge, _elsewhere, _inflated, _nonsense, _secret_keys], ids=lambda each: each.__name__
)
async def test_a_jwt_is_refused_when_the_issuer_serves_unusable_keys(
    start: Start, provider: IdentityProvider, answer: Any
) -> None:
    provider.answers["/jwks"] = answer
    house = await start()
    assert await house.bearer(bearer(provider)) in {401, 500}
    # Envoy makes a 503 of the 500. Other credentials go on working.
    assert await house.bearer(token(house)[1]) == 200


async def test_a_slow_issuer_does_not_delay_other_requests(start: Start, provider: IdentityProvider) -> None:
    waiting = asyncio.Event()

    async def slow(_: web.BaseRequest) -> web.Response:
        await waiting.wait()
        return web.json_response({"keys": [provider.signer.jwk()]})

    provider.answers["/jwks"] = slow
    house = await start()
    asking = asyncio.create_task(house.bearer(bearer(provider)))
    assert await house.bearer(token(house)[1]) == 200
    assert not asking.done()
    waiting.set()
    assert await asking == 200


async def test_oversized_and_malformed_requests_to_the_auth_service_are_refused(house: House) -> None:
    browser = house.browser()
    assert (await browser.post("/auth/exchange", {"x": "y" * 20_000})).status == 413
    assert (await browser.get("/auth/login?a=1&a=2")).status == 400
    assert (await browser.get("/auth/nothing")).status == 404
    assert (await browser.get("/auth/exchange")).status == 404


async def test_the_jwks_endpoint_serves_only_public_keys(house: House) -> None:
    keys = (await house.browser().get("/auth/jwks.json")).json["keys"]
    assert [key["crv"] for key in keys] == ["P-256"]
    assert all("d" not in key for key in keys)
