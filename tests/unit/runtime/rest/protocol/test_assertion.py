"""REST and assertions.

A caller is believed only with a signed, fresh, unused assertion for this very request.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import msgspec
import pytest
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from yarl import URL

from sluice.core.errors import AssertionRefused
from sluice.core.home import Home
from sluice.gateway.credentials.assertion import publish_keys
from sluice.gateway.credentials.signing_keys import PUBLISH_AHEAD, RETAIN, ROTATE_AFTER
from sluice.pki.assertions.keys import AssertionKeys, assertion_keys_file
from sluice.pki.assertions.principal import Credential, Principal
from sluice.pki.assertions.tokens import (
    CONNECT_AUDIENCE,
    HEADER,
    LEEWAY_SECONDS,
    MAX_KEYS,
    AssertionVerifier,
    UsedIds,
    decode_jwks,
    query_digest,
)
from sluice.runtime.rest.protocol.assertion import (
    AUDIENCES,
    asserted,
    for_operation,
    require_assertion,
)
from sluice.runtime.rest.protocol.problems import problems
from sluice.runtime.rest_server.routes import HEALTH_PATH
from sluice.runtime.rest_server.server import RestServer
from tests.assertions import AssertingGateway


def seconds() -> int:
    """The time now, in whole seconds since the epoch."""
    return int(time.time())


PATH = "/v1/jobs"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.at(tmp_path / "home").create()


@pytest.fixture
def gateway(home: Home) -> AssertingGateway:
    return AssertingGateway(home)


def verifier(home: Home, clock: Callable[[], float] = time.time) -> AssertionVerifier:
    return AssertionVerifier(AssertionKeys(assertion_keys_file(home)).keys, AUDIENCES, clock=clock)


def test_a_valid_assertion_identifies_the_caller(home: Home, gateway: AssertingGateway) -> None:
    text = gateway.assertion("GET", PATH, "ada", "viewer", "admin")
    who = verifier(home).verify([text], method="GET", target=PATH)
    assert (who.name, who.principal.roles, who.principal.method) == ("ada", ("viewer", "admin"), "token")
    assert who.principal.credential == Credential("token", "id-1")
    assert who.request_id == "request-1"
    assert (who.bound, set(who.may_any), set(who.may_own)) == (True, {"jobs.list"}, {"jobs.list"})


@pytest.mark.parametrize(
    ("claims", "operation", "changes", "any_owner"),
    [
        pytest.param({}, "jobs.list", False, True, id="what was granted"),
        pytest.param({}, "jobs.list", True, True, id="for one request, whatever it does"),
        pytest.param({"any": False}, "jobs.list", False, False, id="for one's own"),
        pytest.param({}, "jobs.logs", False, None, id="another operation"),
        pytest.param({"op": "jobs.*"}, "jobs.list", False, None, id="no patterns"),
        pytest.param({"op": ""}, "", False, None, id="no operation"),
        pytest.param({"op": None}, "", False, None, id="an assertion without one"),
        pytest.param({"all": "jobs.logs", "own": "jobs.logs"}, "jobs.logs", False, None, id="access token's claims"),
        pytest.param({"aud": "sluice"}, "jobs.list", False, None, id="access token with an assertion's claims"),
        pytest.param({"aud": "sluice", "all": "jobs.list"}, "jobs.list", False, True, id="access token"),
        pytest.param({"aud": "sluice", "own": "jobs.list"}, "jobs.list", False, False, id="access token for one's own"),
        pytest.param({"aud": "sluice", "all": "jobs.list"}, "jobs.list", True, None, id="access token changes nothing"),
        pytest.param({"aud": "sluice", "all": "*"}, "jobs.list", False, None, id="no patterns in an access token"),
        pytest.param({"aud": "sluice", "all": " "}, "", False, None, id="access token for nothing"),
    ],
)
def test_only_the_granted_operation_is_allowed_for_the_granted_owners(  # noqa: PLR0917  # two fixtures and a row of the table
    home: Home,
    gateway: AssertingGateway,
    claims: dict[str, Any],
    operation: str,
    changes: bool,
    any_owner: bool | None,
) -> None:
    """``any_owner`` is None if the operation is refused."""
    text = gateway.forged(gateway.assertion("GET", PATH), **claims)
    who = verifier(home).verify([text], method="GET", target=PATH)
    if any_owner is None:
        with pytest.raises(AssertionRefused):
            who.for_operation(operation, changes=changes)
    else:
        assert who.for_operation(operation, changes=changes).any_owner is any_owner


def foreign_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def public_pem(gateway: AssertingGateway) -> bytes:
    key = gateway.keys.signing(time.time()).private.public_key()
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def hmac_with_the_public_key(gateway: AssertingGateway, text: str) -> str:
    """Return a token that uses the public key as a shared secret (key confusion).

    PyJWT refuses to make such a token; an attacker does not.
    """
    header = base64.urlsafe_b64encode(
        b'{"alg":"HS256","typ":"JWT","kid":"%s"}' % gateway.keys.signing(time.time()).kid.encode()
    ).rstrip(b"=")
    signed = header + b"." + text.split(".")[1].encode()
    signature = base64.urlsafe_b64encode(hmac.digest(public_pem(gateway), signed, hashlib.sha256)).rstrip(b"=")
    return (signed + b"." + signature).decode()


HOSTILE: dict[str, Callable[[AssertingGateway, str], str]] = {
    "alg none": lambda gateway, text: gateway.forged(text, key="", algorithm="none"),
    "alg none, signature kept": lambda gateway, text: (
        gateway.forged(text, key="", algorithm="none") + text.rsplit(".", 1)[1]
    ),
    "key confusion": hmac_with_the_public_key,
    "foreign key": lambda gateway, text: gateway.forged(text, key=foreign_key()),
    "another role, old signature": lambda gateway, text: (
        gateway.forged(text, roles=["admin"]).rsplit(".", 1)[0] + "." + text.rsplit(".", 1)[1]
    ),
    "expired": lambda gateway, text: gateway.forged(text, iat=seconds() - 600, exp=seconds() - 2 * LEEWAY_SECONDS),
    "from the future": lambda gateway, text: gateway.forged(text, iat=seconds() + 600, exp=seconds() + 660),
    "lives for a year": lambda gateway, text: gateway.forged(text, exp=seconds() + 365 * 86400),
    "other audience": lambda gateway, text: gateway.forged(text, aud=CONNECT_AUDIENCE),
    "several audiences": lambda gateway, text: gateway.forged(text, aud=["sluice-rest", "x"]),
    "other issuer": lambda gateway, text: gateway.forged(text, iss="somebody"),
    "other method": lambda gateway, text: gateway.forged(text, htm="PATCH"),
    "other path": lambda gateway, text: gateway.forged(text, htu="/v1/overview"),
    "other query": lambda gateway, text: gateway.forged(text, htq=query_digest("mode=cancel")),
    "no query named": lambda gateway, text: gateway.forged(text, htq=None),
    "no request named": lambda gateway, text: gateway.forged(text, htm=None, htu=None, htq=None),
    "nobody": lambda gateway, text: gateway.forged(text, sub=""),
    "line break in the name": lambda gateway, text: gateway.forged(text, sub="ada\nadmin"),
    "roles as a string": lambda gateway, text: gateway.forged(text, roles="admin"),
    "no expiry": lambda gateway, text: gateway.forged(text, exp=None),
    "no id": lambda gateway, text: gateway.forged(text, jti=None),
    "not a token": lambda gateway, text: "x" * 100,  # noqa: ARG005
    "too long": lambda gateway, text: text + "A" * 9000,  # noqa: ARG005
}


@pytest.mark.parametrize("case", list(HOSTILE))
def test_a_hostile_assertion_is_refused(home: Home, gateway: AssertingGateway, case: str) -> None:
    text = HOSTILE[case](gateway, gateway.assertion("GET", PATH))
    with pytest.raises(AssertionRefused):
        verifier(home).verify([text], method="GET", target=PATH)


@pytest.mark.parametrize("header", ["jku", "jwk", "x5u", "crit"])
def test_an_assertion_with_a_key_location_header_is_refused(home: Home, gateway: AssertingGateway, header: str) -> None:
    key = gateway.keys.signing(time.time())
    claims = jwt.decode(gateway.assertion("GET", PATH), options={"verify_signature": False})
    text = jwt.encode(claims, key.private, algorithm="ES256", headers={"kid": key.kid, header: ["x"]})
    with pytest.raises(AssertionRefused):
        verifier(home).verify([text], method="GET", target=PATH)


def test_an_assertion_is_accepted_only_once_and_only_alone(home: Home, gateway: AssertingGateway) -> None:
    checking, text = verifier(home), gateway.assertion("GET", PATH)
    with pytest.raises(AssertionRefused, match="2 assertions"):
        checking.verify([text, text], method="GET", target=PATH)
    with pytest.raises(AssertionRefused, match="0 assertions"):
        checking.verify([], method="GET", target=PATH)
    checking.verify([text], method="GET", target=PATH)
    for again in (text, gateway.forged(text)):  # another signature, the same assertion
        with pytest.raises(AssertionRefused, match="used before"):
            checking.verify([again], method="GET", target=PATH)


def test_an_access_token_is_accepted_repeatedly_until_it_expires(home: Home, gateway: AssertingGateway) -> None:
    made = seconds()
    text = gateway.forged(
        gateway.assertion("GET", PATH), aud="sluice", all="jobs.list", own="jobs.read", iat=made, exp=made + 300
    )
    now = float(made)
    checking = verifier(home, lambda: now)
    for path in (PATH, PATH, "/v1/overview"):
        who = checking.verify([text], method="GET", target=path)
        assert (who.name, who.bound) == ("ada", False)
        assert (set(who.may_any), set(who.may_own)) == ({"jobs.list"}, {"jobs.read"})
    now += 300 + LEEWAY_SECONDS
    with pytest.raises(AssertionRefused, match="expired"):
        checking.verify([text], method="GET", target=PATH)


def test_assertion_ids_that_had_to_be_forgotten_count_as_used() -> None:
    used = UsedIds(limit=2)
    assert used.use("a", issued_at=10, expires_at=70, now=10)
    assert used.use("b", issued_at=11, expires_at=71, now=11)
    assert used.use("c", issued_at=12, expires_at=72, now=12)  # "a" goes before its time
    assert not used.use("a", issued_at=10, expires_at=70, now=12)
    assert not used.use("new, as old as what was forgotten", issued_at=10, expires_at=70, now=12)
    assert not used.use("b", issued_at=11, expires_at=71, now=12)
    assert used.use("d", issued_at=100, expires_at=160, now=100)


def test_a_key_rotation_refuses_no_valid_assertion(home: Home) -> None:
    gateway = AssertingGateway(home)
    checking = AssertionVerifier(AssertionKeys(assertion_keys_file(home)).keys, AUDIENCES)
    first = gateway.keys.signing(time.time()).kid
    old = gateway.assertion("GET", PATH)
    later = time.time() + ROTATE_AFTER.total_seconds() + 1
    assert gateway.keys.refresh(later)
    publish_keys(home, gateway.keys)
    assert gateway.keys.signing(later).kid == first, "signs before anyone knows it"
    signing = gateway.keys.signing(later + PUBLISH_AHEAD.total_seconds())
    assert signing.kid != first
    claims = jwt.decode(gateway.assertion("GET", PATH), options={"verify_signature": False})
    new = jwt.encode(claims, signing.private, algorithm="ES256", headers={"kid": signing.kid})
    for text in (old, new):
        assert checking.verify([text], method="GET", target=PATH).name == "ada"
    retired = gateway.assertion("GET", PATH)
    assert gateway.keys.refresh(later + PUBLISH_AHEAD.total_seconds() + RETAIN.total_seconds())
    publish_keys(home, gateway.keys)
    with pytest.raises(AssertionRefused, match="did not publish"):
        checking.verify([retired], method="GET", target=PATH)


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"keys":[{"kty":"oct","kid":"a","k":"c2VjcmV0"}]}'])
def test_assertions_are_refused_while_the_keys_are_unreadable(
    home: Home, gateway: AssertingGateway, damage: bytes
) -> None:
    checking, text = verifier(home), gateway.assertion("GET", PATH)
    assertion_keys_file(home).write_bytes(damage)
    with pytest.raises(AssertionRefused):
        checking.verify([text], method="GET", target=PATH)
    publish_keys(home, gateway.keys)
    assert checking.verify([text], method="GET", target=PATH).name == "ada"
    assertion_keys_file(home).unlink()
    with pytest.raises(AssertionRefused):
        checking.verify([gateway.assertion("GET", PATH)], method="GET", target=PATH)


def test_a_key_set_with_anything_but_public_p256_keys_is_refused(gateway: AssertingGateway) -> None:
    good = gateway.keys.signing(time.time()).jwk()
    wrong: list[list[dict[str, Any]]] = [
        [{**good, "d": good["x"]}],
        [{**good, "alg": "HS256"}],
        [{**good, "use": "enc"}],
        [{**good, "crv": "P-384"}],
        [{**good, "x": "AAAA"}],
        [good, good],
        [{**good, "kid": str(number)} for number in range(MAX_KEYS + 1)],
    ]
    for keys in wrong:
        with pytest.raises(AssertionRefused):
            decode_jwks(msgspec.json.encode({"keys": keys}))


@pytest.fixture
async def rest(home: Home, gateway: AssertingGateway, tmp_path: Path) -> AsyncIterator[aiohttp.ClientSession]:  # noqa: ARG001
    async def answer(request: web.Request) -> web.Response:
        if request.path == HEALTH_PATH:
            return web.json_response({"who": ""})
        return await for_operation("jobs.list", show)(request)  # type: ignore[return-value]  # as `show` returns it

    async def show(request: web.Request) -> web.Response:
        return web.json_response({"who": asserted(request).name})

    check = require_assertion(AssertionKeys(assertion_keys_file(home)).keys, except_path=HEALTH_PATH)
    application = web.Application(middlewares=[problems, check])
    application.router.add_route("*", "/{tail:.*}", answer)
    server = RestServer(application, tmp_path / "s" / "rest.sock")
    await server.start()
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(server.path))) as session:
        yield session
    await server.close()


@pytest.mark.parametrize(
    "path", ["/v1/jobs", "/v1/health/", "/v1/health/x", "//v1/health", "/v1//health", "/v1/x/../health", "/nothing"]
)
async def test_a_request_over_the_socket_without_an_assertion_is_refused(
    rest: aiohttp.ClientSession, path: str
) -> None:
    spoofed = {"x-sluice-principal": "root", "x-sluice-roles": "admin", "authorization": "Bearer x"}
    async with rest.get(URL(f"http://rest{path}", encoded=True), headers=spoofed) as answer:
        document = await answer.json(content_type=None)
        if answer.status == 200:  # the client has made it the health resource by itself
            assert (answer.url.path, document) == (HEALTH_PATH, {"who": ""})
        else:
            assert answer.status == 401
            assert "root" not in str(document)


async def test_the_health_resource_needs_no_assertion(rest: aiohttp.ClientSession) -> None:
    async with rest.get(f"http://rest{HEALTH_PATH}") as answer:
        assert await answer.json() == {"who": ""}


async def test_an_assertion_is_valid_only_for_the_undecoded_request_target(
    rest: aiohttp.ClientSession, gateway: AssertingGateway
) -> None:
    """A target that a decoding server treats as equal counts as another request here."""
    target = "/v1/jobs?x=%2F&y=1"

    async def status(sent: str, headers: dict[str, str]) -> int:
        async with rest.get(URL(f"http://rest{sent}", encoded=True), headers=headers) as answer:
            return answer.status

    def signed() -> dict[str, str]:
        principal = Principal("ada", ("viewer",), "token", Credential("token", "id-1"))
        return {
            HEADER: gateway.signer.sign(
                principal, method="GET", target=target, operation="jobs.list", request_id="r", any_owner=True
            )
        }

    headers = signed()
    assert await status(target, headers) == 200
    assert await status(target, headers) == 401, "it was used"
    for other in ("/v1/other?x=%2F&y=1", "/v1/jobs", "/v1/jobs?x=/&y=1", "/v1/jobs?y=1&x=%2F", f"{target}&z"):
        assert await status(other, signed()) == 401, other
