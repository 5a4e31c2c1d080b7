"""The ACME server over HTTP: orders, accounts, certificates, and requests that clients must not send."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from sluice.core.clock import utc_now
from sluice.core.errors import StoreError
from sluice.core.home import Home
from sluice.pki.acme.accounts import make_external_key, revoke_external
from sluice.pki.acme.config import AcmeConfig
from sluice.pki.acme.jwk import decode, encode
from sluice.pki.acme.objects import Certificate, ValidationTask
from sluice.pki.acme.problems import AcmeProblem, ProblemType
from sluice.pki.acme.server import AcmeServer
from sluice.pki.acme.store import AcmeStore, acme_path
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.ca.acme_service import HomeAuthority, name_policy
from sluice.pki.ca.authority import OnlineAuthority
from sluice.pki.config import PkiConfig
from sluice.pki.issuing.host import HostRequest, IssuedHost
from sluice.pki.ledger.file import ledger_path, read_ledger
from sluice.pki.revocation.crl import Reason
from sluice.pki.x509.profiles import host_profile
from tests.acme_client import AcmeClient, Key, csr, jws, p256
from tests.waiting import until

CONFIG = AcmeConfig(names=("*.internal.example",), except_names=("gateway.internal.example",))
JOSE = {"content-type": "application/jose+json"}


@dataclass
class Authority:
    """The real authority, which can be made to fail."""

    real: HomeAuthority
    fails: bool = False

    async def issue(self, request: HostRequest) -> IssuedHost:
        if self.fails:
            raise StoreError("the disk is full")
        return await self.real.issue(request)

    async def revoke(self, certificate: Certificate, reason: Reason, by: str) -> bool:
        return await self.real.revoke(certificate, reason, by)


@dataclass
class World:
    """A server with its authority; names in ``failing`` fail validation."""

    home: Home
    store: AcmeStore
    authority: Authority
    server: AcmeServer
    base: str
    session: aiohttp.ClientSession
    failing: set[str] = field(default_factory=set)
    held: asyncio.Event | None = None

    def url(self, path: str) -> str:
        return f"{self.base}/acme/{path}"

    async def nonce(self) -> str:
        async with self.session.head(self.url("new-nonce")) as answer:
            return answer.headers["replay-nonce"]

    async def send(self, url: str, body: bytes) -> Answer:
        async with self.session.post(url, data=body, headers=JOSE) as answer:
            return Answer(answer.status, await answer.read(), dict(answer.headers))

    async def post(self, client: AcmeClient, url: str, payload: object, **header: object) -> Answer:
        return await self.send(url, client.request(url, payload, await self.nonce(), **header))

    async def account(self, name: str, *names: str, key: Key | None = None) -> AcmeClient:
        """A client with an account for these names."""
        external = make_external_key(name, names, ttl=dt.timedelta(days=1), now=utc_now().timestamp())
        with self.store.change():
            self.store.put_external(external)
        client = AcmeClient(key or p256())
        url = self.url("new-account")
        binding = client.binding(external.id, decode(external.secret, ""), url)
        answer = await self.post(client, url, {"externalAccountBinding": binding})
        assert answer.status == 201, answer.body
        client.kid = answer.headers["Location"]
        return client

    async def order(self, client: AcmeClient, *names: str) -> tuple[str, dict[str, Any]]:
        payload = {"identifiers": [{"type": "dns", "value": name} for name in names]}
        answer = await self.post(client, self.url("new-order"), payload)
        assert answer.status == 201, answer.body
        return answer.headers["Location"], answer.json

    async def ready(self, client: AcmeClient, *names: str) -> tuple[str, dict[str, Any]]:
        """Return the URL and document of an order whose names have been validated."""
        url, order = await self.order(client, *names)
        for authorization in order["authorizations"]:
            challenge = (await self.post(client, authorization, None)).json["challenges"][0]
            assert (await self.post(client, challenge["url"], {})).status == 200
        return url, await self.settled(client, url)

    async def settled(self, client: AcmeClient, url: str) -> dict[str, Any]:
        for _ in range(500):
            order = (await self.post(client, url, None)).json
            if order["status"] != "pending":
                return order
            await asyncio.sleep(0)
        raise AssertionError(order)

    async def certificate(self, client: AcmeClient, *names: str, key: Key | None = None) -> x509.Certificate:
        _, order = await self.ready(client, *names)
        answer = await self.post(client, order["finalize"], {"csr": encode(csr(list(names), key))})
        assert answer.json.get("status") == "valid", answer.body
        chain = await self.post(client, answer.json["certificate"], None)
        return x509.load_pem_x509_certificates(chain.body)[0]


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(self.body)
        return found

    @property
    def problem(self) -> str:
        return str(self.json["type"]).rpartition(":")[2]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with served(tmp_path) as found:
        yield found


@contextlib.asynccontextmanager
async def served(path: Path, config: AcmeConfig = CONFIG) -> AsyncIterator[World]:
    home, pki = Home.at(path / "home"), PkiConfig()
    home.create()
    AuthorityStore(home.pki).ensure(pki, utc_now())
    online = OnlineAuthority(home.pki, pki)

    async def call(function: Callable[[], Any]) -> Any:
        return function()

    authority = Authority(HomeAuthority(home, pki, online, call))
    store = AcmeStore(acme_path(home.pki))
    worlds: list[World] = []

    async def check(task: ValidationTask) -> None:
        if (held := worlds[0].held) is not None:
            await held.wait()
        if task.identifier.value in worlds[0].failing:
            raise AcmeProblem(ProblemType.INCORRECT_RESPONSE, "not there")

    listening = await asyncio.get_running_loop().create_server(
        lambda: worlds[0].server.http(),  # noqa: PLW0108  not made yet
        "127.0.0.1",
        0,
    )
    port = listening.sockets[0].getsockname()[1]
    base = f"http://127.0.0.1:{port}"
    server = AcmeServer(
        store,
        base,
        authority,
        policy=name_policy(home, config, "acme.internal.example"),
        check=check,
        profile=host_profile(dt.timedelta(days=30), pki),
        external_account_required=config.external_account_required,
    )
    async with aiohttp.ClientSession() as session:
        worlds.append(World(home, store, authority, server, base, session))
        await server.start()
        yield worlds[0]
    listening.close()
    await server.close()
    store.close()
    online.close()


async def test_an_order_leads_to_a_certificate_for_its_names(world: World) -> None:
    client = await world.account("web", "*.internal.example")
    leaf = await world.certificate(client, "a.internal.example", "b.internal.example")
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["a.internal.example", "b.internal.example"]
    assert not names.get_values_for_type(x509.UniformResourceIdentifier)
    assert leaf.not_valid_after_utc - utc_now() < dt.timedelta(days=30, minutes=1)
    (record,) = [each for each in read_ledger(ledger_path(world.home.pki)) if each.requester.startswith("acme:")]
    assert record.identity == "dns:a.internal.example,dns:b.internal.example"
    assert record.requester == f"acme:{client.kid.rpartition('/')[2]}"


async def test_an_account_needs_an_external_key_that_is_used_only_once(world: World) -> None:
    url = world.url("new-account")
    assert (await world.post(AcmeClient(), url, {})).problem == "externalAccountRequired"
    external = make_external_key("one", ("a.internal.example",), ttl=dt.timedelta(days=1), now=utc_now().timestamp())
    with world.store.change():
        world.store.put_external(external)
    secret = decode(external.secret, "")
    client, thief = AcmeClient(), AcmeClient()
    forged = client.binding(external.id, b"x" * 32, url)
    assert (await world.post(client, url, {"externalAccountBinding": forged})).problem == "unauthorized"
    # The binding of one client's key is none for another's.
    bound = client.binding(external.id, secret, url)
    assert (await world.post(thief, url, {"externalAccountBinding": bound})).problem == "unauthorized"
    assert (await world.post(client, url, {"externalAccountBinding": bound})).status == 201
    again = await world.post(client, url, {"externalAccountBinding": bound})
    assert again.status == 200
    used = await world.post(thief, url, {"externalAccountBinding": thief.binding(external.id, secret, url)})
    assert used.problem == "unauthorized"
    assert "valid once" in used.json["detail"]


async def test_an_expired_or_revoked_external_key_cannot_create_an_account(world: World) -> None:
    url, now = world.url("new-account"), utc_now().timestamp()
    old = make_external_key("old", ("a.internal.example",), ttl=dt.timedelta(minutes=1), now=now - 100)
    ended = make_external_key("ended", ("a.internal.example",), ttl=dt.timedelta(days=1), now=now)
    with world.store.change():
        world.store.put_external(old)
        world.store.put_external(ended)
    revoke_external(world.store, "ended")
    for key in (old, ended):
        client = AcmeClient()
        binding = client.binding(key.id, decode(key.secret, ""), url)
        assert (await world.post(client, url, {"externalAccountBinding": binding})).problem == "unauthorized"


async def test_every_request_of_a_revoked_account_is_refused(world: World) -> None:
    client = await world.account("gone", "a.internal.example")
    _, order = await world.ready(client, "a.internal.example")
    revoke_external(world.store, "gone")
    finalize = {"csr": encode(csr(["a.internal.example"]))}
    for url, payload in ((order["finalize"], finalize), (client.kid, {"contact": []}), (client.kid, None)):
        assert (await world.post(client, url, payload)).problem == "unauthorized"
    account = world.store.account(client.kid.rpartition("/")[2])
    assert account is not None
    assert account.status == "revoked"


async def test_a_replayed_request_is_refused(world: World) -> None:
    client = await world.account("web", "*.internal.example")
    body = client.request(client.kid, None, await world.nonce())
    assert (await world.send(client.kid, body)).status == 200
    assert (await world.send(client.kid, body)).problem == "badNonce"


async def test_a_request_signed_for_another_url_is_refused(world: World) -> None:
    client = await world.account("web", "*.internal.example")
    body = client.request(client.kid, None, await world.nonce())
    assert (await world.send(world.url("new-order"), body)).problem == "unauthorized"


async def test_a_wrong_signature_uses_up_no_nonce(world: World) -> None:
    client = await world.account("web", "*.internal.example")
    nonce = await world.nonce()
    forged = AcmeClient(p256(), client.kid)
    assert (await world.send(client.kid, forged.request(client.kid, None, nonce))).problem == "malformed"
    assert (await world.send(client.kid, client.request(client.kid, None, nonce))).status == 200


async def test_an_account_cannot_access_resources_of_another_account(world: World) -> None:
    owner = await world.account("owner", "*.internal.example")
    other = await world.account("other", "*.internal.example")
    url, order = await world.ready(owner, "a.internal.example")
    leaf = await world.certificate(owner, "b.internal.example")
    challenge = (await world.post(owner, order["authorizations"][0], None)).json["challenges"][0]["url"]
    finalize = {"csr": encode(csr(["a.internal.example"]))}
    hostile: list[tuple[str, object]] = [
        (url, None),
        (order["authorizations"][0], None),
        (order["authorizations"][0], {"status": "deactivated"}),
        (challenge, {}),
        (order["finalize"], finalize),
        (world.url(f"certificate/{leaf.serial_number:x}"), None),
        (owner.kid, {"status": "deactivated"}),
        (f"{owner.kid}/orders", None),
        (world.url("revoke-cert"), {"certificate": encode(leaf.public_bytes(Encoding.DER))}),
    ]
    for target, payload in hostile:
        answer = await world.post(other, target, payload)
        assert (answer.status, answer.problem) == (403, "unauthorized"), target
    assert (await world.post(owner, url, None)).json["status"] == "ready"


@pytest.mark.parametrize("path", ["new-order", "key-change"])
async def test_a_request_with_an_account_key_instead_of_its_url_is_refused(world: World, path: str) -> None:
    client = await world.account("web", "*.internal.example")
    stranger = AcmeClient(client.key)
    assert (await world.post(stranger, world.url(path), {})).problem == "malformed"


async def test_an_account_url_of_another_server_is_unknown(world: World) -> None:
    client = await world.account("web", "*.internal.example")
    for kid in (client.kid.replace("http://", "https://"), client.kid + "x", "https://evil.example/acme/account/1"):
        answer = await world.post(AcmeClient(client.key, kid), world.url("new-order"), {})
        assert answer.problem == "accountDoesNotExist"


@pytest.mark.parametrize(
    ("identifiers", "problem"),
    [
        ([], "malformed"),
        ([("dns", "www.example.org")], "rejectedIdentifier"),
        ([("dns", "a.internal.example"), ("dns", "www.example.org")], "rejectedIdentifier"),
        ([("dns", "gateway.internal.example")], "rejectedIdentifier"),
        ([("dns", "acme.internal.example")], "rejectedIdentifier"),
        ([("dns", "*.internal.example")], "rejectedIdentifier"),
        ([("dns", "x y")], "rejectedIdentifier"),
        ([("ip", "127.0.0.1")], "rejectedIdentifier"),
        ([("email", "a@internal.example")], "unsupportedIdentifier"),
        ([("dns", f"n{n}.internal.example") for n in range(17)], "malformed"),
    ],
)
async def test_an_order_with_disallowed_or_malformed_identifiers_is_refused(
    world: World, identifiers: list[tuple[str, str]], problem: str
) -> None:
    client = await world.account("web", "*.internal.example", "*.example.org")
    payload = {"identifiers": [{"type": kind, "value": value} for kind, value in identifiers]}
    assert (await world.post(client, world.url("new-order"), payload)).problem == problem


async def test_a_wildcard_is_validated_by_dns_alone(world: World) -> None:
    client = await world.account("web", "*.internal.example")
    _, order = await world.order(client, "*.apps.internal.example", "apps.internal.example")
    wild, plain = [(await world.post(client, each, None)).json for each in order["authorizations"]]
    assert wild["wildcard"]
    assert wild["identifier"]["value"] == "apps.internal.example"
    assert [each["type"] for each in wild["challenges"]] == ["dns-01"]
    assert {each["type"] for each in plain["challenges"]} == {"http-01", "tls-alpn-01", "dns-01"}


async def test_an_order_without_validation_cannot_be_finalized(world: World) -> None:
    client = await world.account("web", "*.internal.example")
    _, order = await world.order(client, "a.internal.example")
    answer = await world.post(client, order["finalize"], {"csr": encode(csr(["a.internal.example"]))})
    assert answer.problem == "orderNotReady"


async def test_a_failed_validation_makes_the_order_invalid(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.pki.acme.validation.validator.PAUSES_SECONDS", (0.0,))
    world.failing.add("a.internal.example")
    client = await world.account("web", "*.internal.example")
    _, order = await world.ready(client, "a.internal.example")
    assert order["status"] == "invalid"
    assert order["error"]["type"].endswith("incorrectResponse")
    answer = await world.post(client, order["finalize"], {"csr": encode(csr(["a.internal.example"]))})
    assert answer.problem == "orderNotReady"


@pytest.mark.parametrize(
    "request_of",
    [
        pytest.param(lambda _: csr(["b.internal.example"]), id="another name"),
        pytest.param(lambda _: csr(["a.internal.example", "b.internal.example"]), id="one name more"),
        pytest.param(lambda _: csr([]), id="no name"),
        pytest.param(lambda _: csr(["a.internal.example"], subject="b.internal.example"), id="in the subject"),
        pytest.param(lambda client: csr(["a.internal.example"], client.key), id="the account's key"),
        pytest.param(lambda _: csr(["a.internal.example"], rsa.generate_private_key(65537, 2048)), id="a weak key"),
        pytest.param(
            lambda _: csr(["a.internal.example"], ec.generate_private_key(ec.SECP521R1())), id="another curve"
        ),
        pytest.param(
            lambda _: csr(["a.internal.example"], None, x509.BasicConstraints(ca=True, path_length=None)),
            id="an authority",
        ),
        pytest.param(
            lambda _: csr(["a.internal.example"], None, x509.TLSFeature([x509.TLSFeatureType.status_request])),
            id="must-staple",
        ),
        pytest.param(lambda _: csr(["a.internal.example"])[:-3] + b"abc", id="a wrong signature"),
        pytest.param(lambda _: b"\x30\x00", id="no request"),
    ],
)
async def test_a_bad_csr_is_refused_and_the_order_stays_ready(
    world: World, request_of: Callable[[AcmeClient], bytes]
) -> None:
    client = await world.account("web", "*.internal.example")
    url, order = await world.ready(client, "a.internal.example")
    answer = await world.post(client, order["finalize"], {"csr": encode(request_of(client))})
    assert answer.problem == "badCSR", answer.body
    assert (await world.post(client, url, None)).json["status"] == "ready"


async def test_a_signing_request_with_a_spiffe_id_is_refused(world: World) -> None:
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    names = [
        x509.DNSName("a.internal.example"),
        x509.UniformResourceIdentifier("spiffe://sluice.local/jobmanager/jm-1"),
    ]
    request = builder.add_extension(x509.SubjectAlternativeName(names), critical=False).sign(p256(), hashes.SHA256())
    client = await world.account("web", "*.internal.example")
    _, order = await world.ready(client, "a.internal.example")
    answer = await world.post(client, order["finalize"], {"csr": encode(request.public_bytes(Encoding.DER))})
    assert answer.problem == "badCSR"


async def test_the_order_stays_ready_when_issuing_fails_and_can_be_finalized_later(world: World) -> None:
    client = await world.account("web", "*.internal.example")
    url, order = await world.ready(client, "a.internal.example")
    finalize = {"csr": encode(csr(["a.internal.example"]))}
    world.authority.fails = True
    answer = await world.post(client, order["finalize"], finalize)
    assert (answer.status, answer.problem) == (500, "serverInternal")
    assert "disk" not in answer.json["detail"]
    assert (await world.post(client, url, None)).json["status"] == "ready"
    world.authority.fails = False
    assert (await world.post(client, order["finalize"], finalize)).json["status"] == "valid"


async def test_a_key_change_needs_signatures_of_the_old_and_the_new_key(world: World) -> None:
    client = await world.account("web", "*.internal.example")
    other = await world.account("other", "*.internal.example")
    url, new = world.url("key-change"), AcmeClient()

    def inner(signer: AcmeClient, shown: AcmeClient, old: AcmeClient, **header: object) -> dict[str, str]:
        members = {"alg": "ES256", "jwk": shown.jwk, "url": url} | header
        return jws(members, {"account": client.kid, "oldKey": old.jwk}, signer.key)

    for wrong in (
        inner(client, new, client),  # the new key did not sign
        inner(new, new, other),  # another old key
        inner(new, new, client, url=url + "x"),
        inner(new, new, client, nonce="n"),
        inner(other, other, client),  # the key of another account
    ):
        answer = await world.post(client, url, wrong)
        assert answer.problem == "malformed", wrong
    # Another account cannot take this one over with its own signature.
    assert (await world.post(other, url, inner(new, new, client))).problem == "malformed"
    assert (await world.post(client, url, inner(new, new, client))).status == 200
    assert (await world.post(client, client.kid, None)).problem == "malformed"
    new.kid = client.kid
    assert (await world.post(new, new.kid, None)).status == 200


async def test_a_certificate_is_revoked_by_its_account_or_its_key_only(world: World) -> None:
    client = await world.account("web", "*.internal.example")
    url, key = world.url("revoke-cert"), p256()
    first = await world.certificate(client, "a.internal.example", key=key)
    second = await world.certificate(client, "b.internal.example")
    payload = {"certificate": encode(first.public_bytes(Encoding.DER)), "reason": 1}
    assert (await world.post(AcmeClient(), url, payload)).problem == "unauthorized"
    assert (await world.post(client, url, payload | {"reason": 2})).problem == "badRevocationReason"
    assert (await world.post(AcmeClient(key), url, payload)).status == 200
    assert (await world.post(client, url, payload)).problem == "alreadyRevoked"
    # The key was revoked as compromised: neither a certificate nor an account gets it again.
    _, order = await world.ready(client, "a.internal.example")
    reused = {"csr": encode(csr(["a.internal.example"], key))}
    assert (await world.post(client, order["finalize"], reused)).problem == "badCSR"
    by_account = {"certificate": encode(second.public_bytes(Encoding.DER))}
    assert (await world.post(client, url, by_account)).status == 200


async def test_a_deactivated_account_is_refused(world: World) -> None:
    client = await world.account("web", "*.internal.example")
    assert (await world.post(client, client.kid, {"status": "deactivated"})).json["status"] == "deactivated"
    assert (await world.post(client, world.url("new-order"), {})).problem == "unauthorized"
    again = await world.post(AcmeClient(client.key), world.url("new-account"), {"onlyReturnExisting": True})
    assert again.problem == "unauthorized"


async def test_a_deactivated_authorization_makes_its_order_invalid(world: World) -> None:
    client = await world.account("web", "*.internal.example")
    url, order = await world.ready(client, "a.internal.example")
    answer = await world.post(client, order["authorizations"][0], {"status": "deactivated"})
    assert answer.json["status"] == "deactivated"
    assert (await world.post(client, url, None)).json["status"] == "invalid"


async def test_pending_validations_continue_after_a_restart(tmp_path: Path) -> None:
    async with served(tmp_path) as before:
        client = await before.account("web", "*.internal.example")
        before.held = asyncio.Event()  # never set: as when the process is killed meanwhile
        url, order = await before.order(client, "a.internal.example")
        challenge = (await before.post(client, order["authorizations"][0], None)).json["challenges"][0]
        assert (await before.post(client, challenge["url"], {})).json["status"] == "processing"
    async with served(tmp_path) as after:
        identifier = url.rpartition("/")[2]
        await until(lambda: (found := after.store.order(identifier)) is not None and found.status == "ready")


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/acme/directory", {}, 200),
        ("GET", "/acme/new-nonce", {}, 204),
        ("POST", "/acme/directory", JOSE, 405),
        ("GET", "/acme/new-order", {}, 405),
        ("POST", "/acme/new-order", {"content-type": "application/json"}, 415),
        ("GET", "/v1/authority", {}, 404),
        ("POST", "/v1/renew", JOSE, 404),
        ("GET", "/acme/directory?x=1", {}, 404),
        ("GET", "/acme/../acme/directory", {}, 200),
        ("POST", "/acme/order/%2e%2e/finalize", JOSE, 404),
        ("DELETE", "/acme/new-order", {}, 405),
    ],
)
async def test_each_method_path_and_content_type_gets_its_status(
    world: World, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    async with world.session.request(method, world.base + path, headers=headers) as answer:
        assert answer.status == status


async def test_a_large_request_is_refused(world: World) -> None:
    assert (await world.send(world.url("new-account"), b"x" * (65 << 10))).status == 413


async def test_requests_from_one_address_are_rate_limited_with_a_retry_after_header(world: World) -> None:
    for _ in range(2000):
        async with world.session.get(world.url("directory")) as answer:
            if answer.status == 429:
                assert int(answer.headers["retry-after"]) >= 1
                return
    raise AssertionError("there is no limit")
