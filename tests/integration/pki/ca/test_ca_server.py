"""The online authority on real sockets: who is admitted on which port, and what they get there."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import http.client
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from cryptography import x509

from sluice.core.clock import utc_now
from sluice.core.errors import CertificateRejected, PkiError
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.ca import server
from sluice.pki.ca.address import CaAddress, parse_address, read_ca, read_cas
from sluice.pki.ca.authority import OnlineAuthority
from sluice.pki.ca.config import CaConfig
from sluice.pki.ca.enrolment_listener import EnrolmentListener
from sluice.pki.ca.process import online_ca
from sluice.pki.ca.protocol import (
    AUTHORITY_PATH,
    ENROL_PATH,
    JOB_PATH,
    MAX_REQUEST_BYTES,
    RENEW_PATH,
    TOKEN_PATH,
    EnrolRequest,
)
from sluice.pki.ca.token_store import TokenStore
from sluice.pki.channels import Channel, server_policy
from sluice.pki.enrolment.client import enrol, renew
from sluice.pki.enrolment.online_issuer import RETRY_SECONDS, OnlineIssuer
from sluice.pki.enrolment.online_tokens import OnlineTokens
from sluice.pki.errors import (
    CaUnavailable,
    EnrolmentRefused,
    IssuanceRefused,
    RateLimited,
)
from sluice.pki.identities.directory import read_identity
from sluice.pki.identities.join_tokens import mint
from sluice.pki.jwt.svid import decode_jwks, validate_token
from sluice.pki.ledger.file import ledger_path, read_ledger
from sluice.pki.ledger.records import LedgerRecord
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity, unverified_client_context
from sluice.pki.x509.csr import new_csr
from sluice.pki.x509.peer_identity import certified_identity
from sluice.pki.x509.profiles import AuthorityKind
from tests.hostile import HOSTILE_CLIENTS, HOSTILE_SERVERS, TRUST_DOMAIN, Hostile, TestPki, assert_refused

JOB = "a" * 32
DRIVER = SpiffeId.driver(TRUST_DOMAIN, JOB)
WORKER = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1")
MASTER = SpiffeId.process(TRUST_DOMAIN, Role.JOBMANAGER, "jobmanager-1")
T = TypeVar("T")


class Ca:
    """A running authority, and what a test does with it."""

    def __init__(self, pki: TestPki, address: CaAddress) -> None:
        self.pki = pki
        self.address = address

    def token(self, spiffe_id: SpiffeId = WORKER, **options: Any) -> str:
        """A fresh join token."""
        certificate = AuthorityStore(self.pki.home.pki).certificate(AuthorityKind.INTERNAL)
        record, text = mint(spiffe_id, certificate, now=utc_now(), **options)
        TokenStore(self.pki.home.pki).add(record, now=utc_now())
        return text

    def ledger(self) -> list[LedgerRecord]:
        """Return the records of what was issued, except the authority's own and local identities."""
        return [
            each
            for each in read_ledger(ledger_path(self.pki.home.pki))
            if each.kind not in {"self", "local", "edge-local"}
        ]

    def issuer(self, spiffe_id: SpiffeId = MASTER) -> OnlineIssuer:
        """Return an issuer that does not wait between tries."""
        return OnlineIssuer(self.pki.identity(spiffe_id), lambda: (self.address,), retry_seconds=0)


@pytest.fixture
async def ca(tmp_path: Path) -> AsyncIterator[Ca]:
    pki = TestPki(tmp_path)
    async with online_ca(pki.home, pki.config, CaConfig()) as address:
        yield Ca(pki, address)


async def off_loop(function: Callable[..., T], *arguments: Any, **options: Any) -> T:
    return await asyncio.to_thread(function, *arguments, **options)


def call(
    address: tuple[str, int], context: ssl.SSLContext, method: str, path: str, body: bytes = b""
) -> tuple[int, Any]:
    connection = http.client.HTTPSConnection(*address, context=context, timeout=20)
    try:
        connection.request(method, path, body=body)
        answer = connection.getresponse()
        return answer.status, msgspec.json.decode(answer.read())
    finally:
        connection.close()


async def test_an_enrolment_gives_the_identity_of_the_token_and_the_key_stays_with_the_client(
    ca: Ca, tmp_path: Path
) -> None:
    token = ca.token(dns=["tm.example.org"], ips=["10.0.0.7"])
    out = tmp_path / "out"
    got = await off_loop(
        enrol, out, ca.address.enrolment, token, Role.TASKMANAGER, "tm-1", dns=["tm.example.org"], ips=["10.0.0.7"]
    )
    assert got == WORKER == TlsIdentity(out).spiffe_id
    material, _ = read_identity(out)
    assert (out / "key.pem").stat().st_mode & 0o777 == 0o600
    [record] = ca.ledger()
    assert (record.kind, record.identity, record.token) == ("enrolment", str(WORKER), token.split("_")[1])
    assert int(record.serial, 16) == material.leaf.serial_number
    with pytest.raises(EnrolmentRefused):
        await off_loop(enrol, tmp_path / "again", ca.address.enrolment, token, Role.TASKMANAGER, "tm-1")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    ("role", "name", "dns"),
    [
        pytest.param(Role.TASKMANAGER, "tm-2", [], id="another name"),
        pytest.param(Role.JOBMANAGER, "tm-1", [], id="another role"),
        pytest.param(Role.TASKMANAGER, "tm-1", ["db.example.org"], id="a host name more"),
        pytest.param(Role.CA, "ca-1", [], id="the authority itself"),
    ],
)
async def test_a_join_token_is_valid_only_for_its_own_identity_and_names(
    role: Role, name: str, dns: list[str], ca: Ca, tmp_path: Path
) -> None:
    token = ca.token()
    with pytest.raises(CertificateRejected):
        await off_loop(enrol, tmp_path / "out", ca.address.enrolment, token, role, name, dns=dns)
    assert ca.ledger() == []
    await off_loop(enrol, tmp_path / "out", ca.address.enrolment, token, Role.TASKMANAGER, "tm-1")


class Pretender:
    """A server that pretends to be the authority without its certificate, and records what it receives."""

    def __init__(self, ca_pem: str) -> None:
        self.ca_pem = ca_pem
        self.seen = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer every request with the genuine trust anchors."""
        with_body = b""
        try:
            self.seen += await reader.readuntil(b"\r\n\r\n")
            with_body = msgspec.json.encode({"ca_pem": self.ca_pem})
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(with_body) + with_body)
            await writer.drain()
            self.seen += await reader.read(1 << 16)
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()


@asynccontextmanager
async def pretending(context: ssl.SSLContext, ca_pem: str) -> AsyncIterator[tuple[Pretender, tuple[str, int]]]:
    pretender = Pretender(ca_pem)
    listening = await asyncio.start_server(pretender.serve, "127.0.0.1", 0, ssl=context)
    async with listening:
        yield pretender, listening.sockets[0].getsockname()[:2]


@pytest.mark.parametrize("case", HOSTILE_SERVERS)
async def test_a_join_token_is_never_sent_to_a_server_that_is_not_the_authority(
    case: Hostile, ca: Ca, tmp_path: Path
) -> None:
    token = ca.token()
    own = SpiffeId.process(TRUST_DOMAIN, Role.CA, "ca-1")
    context = ca.pki.hostile(case, pretending=own).server_context()
    anchors = AuthorityStore(ca.pki.home.pki).certificate_file(AuthorityKind.INTERNAL).read_text()
    async with pretending(context, anchors) as (pretender, address):
        with pytest.raises(CaUnavailable):
            await off_loop(enrol, tmp_path / "out", address, token, Role.TASKMANAGER, "tm-1")
    assert b"GET" in pretender.seen
    assert b"POST" not in pretender.seen
    assert b"slj_" not in pretender.seen


async def test_a_server_of_another_authority_is_detected_by_the_fingerprint(ca: Ca, tmp_path: Path) -> None:
    other = TestPki(tmp_path / "other")
    async with online_ca(other.home, other.config, CaConfig()) as elsewhere:
        with pytest.raises(CaUnavailable, match="not of the authority"):
            await off_loop(enrol, tmp_path / "out", elsewhere.enrolment, ca.token(), Role.TASKMANAGER, "tm-1")


async def test_renewal_gives_the_same_names_with_a_new_key(ca: Ca) -> None:
    directory = ca.pki.directory(WORKER, accept=["spiffe://sluice.local/job/*"])
    before, _ = read_identity(directory)
    await off_loop(renew, directory, ca.address.mutual)
    after, _ = read_identity(directory)
    assert after.spiffe_id == WORKER
    assert after.key_pem != before.key_pem
    assert (directory / "peers").read_text() == "spiffe://sluice.local/job/*\n"
    san = [list(m.leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value) for m in (before, after)]
    assert san[0] == san[1]
    assert [(record.kind, record.requester) for record in ca.ledger()] == [("renewal", str(WORKER))]


@pytest.mark.parametrize("case", HOSTILE_CLIENTS)
async def test_a_hostile_client_is_refused_by_the_mutual_tls_port(case: Hostile, ca: Ca) -> None:
    hostile = ca.pki.hostile(case, pretending=WORKER)
    await assert_refused(*ca.address.mutual, hostile.client_context(alpn=("http/1.1",)))
    assert ca.ledger() == []


@pytest.mark.parametrize(
    "spiffe_id", [DRIVER, SpiffeId.executor(TRUST_DOMAIN, JOB, 1), SpiffeId.process(TRUST_DOMAIN, Role.CA, "ca-2")]
)
async def test_jobs_and_other_authorities_are_refused_by_the_mutual_tls_port(spiffe_id: SpiffeId, ca: Ca) -> None:
    identity = ca.pki.identity(spiffe_id)
    context = identity.client_context(server_policy(Channel.CA, TRUST_DOMAIN), alpn=("http/1.1",))
    await assert_refused(*ca.address.mutual, context)


async def test_jobmanager_gets_identities_of_its_jobs(ca: Ca) -> None:
    issuer = ca.issuer()
    lifetime = dt.timedelta(minutes=30)
    signed = await off_loop(issuer.sign_csr, new_csr(DRIVER)[1], DRIVER, lifetime=lifetime)
    leaf = x509.load_pem_x509_certificate(signed.chain_pem.encode())
    assert certified_identity(leaf) == DRIVER
    assert leaf.not_valid_after_utc <= utc_now() + lifetime
    executor = SpiffeId.executor(TRUST_DOMAIN, JOB, 3)
    signed = await off_loop(issuer.sign_csr, new_csr(executor)[1], executor)
    assert "BEGIN CERTIFICATE" in signed.chain_pem
    assert [(each.kind, each.identity, each.requester) for each in ca.ledger()] == [
        ("job", str(DRIVER), str(MASTER)),
        ("job", str(executor), str(MASTER)),
    ]


@pytest.mark.parametrize("role", [Role.TASKMANAGER, Role.GATEWAY, Role.AUTH, Role.SHUFFLE_WORKER, Role.ZOOKEEPER])
async def test_no_other_role_gets_identities_of_jobs(role: Role, ca: Ca) -> None:
    issuer = ca.issuer(SpiffeId.process(TRUST_DOMAIN, role, "x"))
    with pytest.raises(IssuanceRefused, match="may not ask"):
        await off_loop(issuer.sign_csr, new_csr(DRIVER)[1], DRIVER)
    assert ca.ledger() == []


@pytest.mark.parametrize("wanted", [WORKER, MASTER, SpiffeId.process(TRUST_DOMAIN, Role.USER, "eve")])
async def test_a_jobmanager_gets_identities_only_for_jobs(wanted: SpiffeId, ca: Ca) -> None:
    with pytest.raises(IssuanceRefused):
        await off_loop(ca.issuer().sign_csr, new_csr(wanted)[1], wanted)
    context = ca.pki.identity(MASTER).client_context(server_policy(Channel.CA, TRUST_DOMAIN), alpn=("http/1.1",))
    body = msgspec.json.encode({"spiffe_id": str(wanted), "csr_pem": new_csr(wanted)[1].decode()})
    status, problem = await off_loop(call, ca.address.mutual, context, "POST", JOB_PATH, body)
    assert (status, problem["title"]) == (403, "IssuanceRefused"), "the server says so too"
    assert ca.ledger() == []


async def test_a_jobmanager_gets_job_tokens_signed_and_every_process_gets_the_verification_keys(ca: Ca) -> None:
    token = await OnlineTokens(ca.pki.identity(MASTER), lambda: (ca.address,)).sign_token(DRIVER, ["reports"], "ada")
    answer = await OnlineTokens(ca.pki.identity(WORKER), lambda: (ca.address,)).keys()
    keys = decode_jwks(answer.jwks.encode())
    subject, claims = validate_token(token, "reports", keys, trust_domain=TRUST_DOMAIN, now=utc_now())
    assert subject == DRIVER
    assert claims["exp"] - claims["iat"] == 300
    assert claims["sluice"] == {"job": JOB, "owner": "ada"}
    assert "iss" not in claims, "none is configured"
    assert answer.issuer == ""


@pytest.mark.parametrize(
    ("requester", "wanted", "audience", "status"),
    [
        pytest.param(WORKER, DRIVER, ["a"], 403, id="a TaskManager"),
        pytest.param(DRIVER, DRIVER, ["a"], 403, id="the job itself"),
        pytest.param(MASTER, WORKER, ["a"], 403, id="for a process"),
        pytest.param(MASTER, DRIVER, [""], 422, id="an empty audience"),
        pytest.param(MASTER, DRIVER, ["a" * 513], 422, id="a long audience"),
        pytest.param(MASTER, DRIVER, [], 400, id="no audience"),
        pytest.param(MASTER, DRIVER, [f"a{n}" for n in range(9)], 400, id="too many"),
    ],
)
async def test_a_job_token_for_another_requester_subject_or_invalid_audience_is_refused(
    ca: Ca, requester: SpiffeId, wanted: SpiffeId, audience: list[str], status: int
) -> None:
    identity = ca.pki.identity(requester)
    context = identity.client_context(server_policy(Channel.CA, TRUST_DOMAIN), alpn=("http/1.1",))
    body = msgspec.json.encode({"spiffe_id": str(wanted), "audience": audience})
    try:
        answered, _ = await off_loop(call, ca.address.mutual, context, "POST", TOKEN_PATH, body)
    except (ssl.SSLError, ConnectionError):
        assert requester == DRIVER, "jobs do not even get in"
        return
    assert answered == status


@pytest.mark.parametrize(
    ("method", "path"), [("POST", RENEW_PATH), ("POST", JOB_PATH), ("POST", TOKEN_PATH), ("GET", "/"), ("PUT", "/v1/x")]
)
async def test_enrolment_port_has_no_other_route(method: str, path: str, ca: Ca) -> None:
    body = msgspec.json.encode({"csr_pem": new_csr(WORKER)[1].decode()})
    status, _ = await off_loop(call, ca.address.enrolment, unverified_client_context(), method, path, body)
    assert status == 404


@pytest.mark.parametrize(("method", "path"), [("POST", ENROL_PATH), ("GET", AUTHORITY_PATH)])
async def test_mutual_tls_port_has_no_enrolment(method: str, path: str, ca: Ca) -> None:
    context = ca.pki.identity(WORKER).client_context(server_policy(Channel.CA, TRUST_DOMAIN), alpn=("http/1.1",))
    status, _ = await off_loop(call, ca.address.mutual, context, method, path)
    assert status == 404


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param(b"", 400, id="nothing"),
        pytest.param(b"\xff\x00", 400, id="no text"),
        pytest.param(b"[" * 20_000, 400, id="deeply nested"),
        pytest.param(b'{"token": 1, "csr_pem": "x"}', 400, id="wrong type"),
        pytest.param(b'{"token": "x", "csr_pem": "x", "role": "ca"}', 400, id="a field more"),
        pytest.param(b'{"token": "x", "csr_pem": "x"}', 403, id="no token"),
        pytest.param(b"x" * (MAX_REQUEST_BYTES + 1), 413, id="too large"),
    ],
)
async def test_a_malformed_enrolment_gets_an_error_and_the_authority_keeps_serving(
    body: bytes, status: int, ca: Ca
) -> None:
    answered, _ = await off_loop(call, ca.address.enrolment, unverified_client_context(), "POST", ENROL_PATH, body)
    assert answered == status
    answered, document = await off_loop(call, ca.address.enrolment, unverified_client_context(), "GET", AUTHORITY_PATH)
    assert (answered, set(document)) == (200, {"ca_pem"})


async def test_the_secret_of_a_join_token_is_never_logged(
    ca: Ca, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token = ca.token()
    for body in ({"token": token, "csr_pem": "x"}, {"token": token, "x": 1}, {"token": token + "0", "csr_pem": "x"}):
        await off_loop(
            call, ca.address.enrolment, unverified_client_context(), "POST", ENROL_PATH, msgspec.json.encode(body)
        )
    await off_loop(enrol, tmp_path / "out", ca.address.enrolment, token, Role.TASKMANAGER, "tm-1")
    assert caplog.records
    assert token.split("_")[2] not in caplog.text
    assert token.split("_")[2].encode() not in ledger_path(ca.pki.home.pki).read_bytes()


async def test_concurrent_enrolments_with_one_token_get_one_certificate(ca: Ca) -> None:
    token = ca.token()
    bodies = [msgspec.json.encode(EnrolRequest(token=token, csr_pem=new_csr(WORKER)[1].decode())) for _ in range(12)]
    answers = await asyncio.gather(
        *(
            off_loop(call, ca.address.enrolment, unverified_client_context(), "POST", ENROL_PATH, body)
            for body in bodies
        )
    )
    assert sorted(status for status, _ in answers) == [201] + [403] * 11
    assert len(ca.ledger()) == 1
    # With the same key it is the same request again: whoever lost the answer gets it.
    winner = next(body for body, (status, _) in zip(bodies, answers, strict=True) if status == 201)
    again = await off_loop(call, ca.address.enrolment, unverified_client_context(), "POST", ENROL_PATH, winner)
    assert again[0] == 201
    assert len(ca.ledger()) == 1


async def test_requests_above_the_rate_limit_are_refused_with_a_retry_time(tmp_path: Path) -> None:
    pki = TestPki(tmp_path)
    authority = OnlineAuthority(pki.home.pki, pki.config)
    own = pki.identity(SpiffeId.process(TRUST_DOMAIN, Role.CA, "ca-1"))
    served = server.CaServer(own, authority, clock=lambda: 0.0)
    mutual, _ = await served.start("127.0.0.1", 0, 0)
    directory = pki.directory(WORKER)
    for _ in range(int(server.RENEWALS_PER_IDENTITY[0])):
        await off_loop(renew, directory, mutual)
    kept = read_identity(directory)[0].key_pem
    with pytest.raises(RateLimited) as refused:
        await off_loop(renew, directory, mutual)
    assert refused.value.retry_after == pytest.approx(5.0)
    assert read_identity(directory)[0].key_pem == kept
    other = pki.directory(SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-2"))
    await off_loop(renew, other, mutual)
    await served.close()
    authority.close()


async def test_a_stranger_cannot_keep_an_enrolment_connection_open(tmp_path: Path) -> None:
    own = TestPki(tmp_path).process(Role.CA)
    listener = EnrolmentListener(own, asyncio.Protocol, alpn=("http/1.1",), connection_seconds=0.05)
    address = await listener.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*address, ssl=unverified_client_context())
    async with asyncio.timeout(20):
        with contextlib.suppress(ConnectionError):
            assert await reader.read(1) == b"", "the connection ended without a word"
    writer.transport.abort()
    await listener.close()


async def test_an_issuer_waits_for_an_authority_that_restarts_at_another_address(tmp_path: Path) -> None:
    pki = TestPki(tmp_path)
    master = pki.identity(MASTER)
    now = 0.0
    waits: list[float] = []
    running: list[Any] = []
    loop = asyncio.get_running_loop()

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        waits.append(seconds)
        if len(waits) == 3:
            context = online_ca(pki.home, pki.config, CaConfig())
            asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result(20)
            running.append(context)

    issuer = OnlineIssuer(master, lambda: read_cas(pki.home), clock=lambda: now, sleep=sleep)
    await off_loop(issuer.sign_csr, new_csr(DRIVER)[1], DRIVER)
    assert waits == [0.1, 0.2, 0.4]
    await running[0].__aexit__(None, None, None)
    with pytest.raises(CaUnavailable, match="no online authority"):
        await off_loop(issuer.sign_csr, new_csr(DRIVER)[1], DRIVER)
    assert now <= RETRY_SECONDS


async def test_a_second_authority_of_the_same_name_does_not_start_in_one_home(ca: Ca) -> None:
    with pytest.raises(PkiError, match="another process is the authority ca-1"):
        async with online_ca(ca.pki.home, ca.pki.config, CaConfig()):
            pytest.fail("there are two")
    assert read_ca(ca.pki.home) == ca.address


async def test_a_certificate_of_another_identity_in_the_answer_is_not_installed(ca: Ca) -> None:
    """An authority that answers with another identity than the requested one is not trusted."""
    own = ca.pki.process(Role.CA)
    other = ca.pki.directory(MASTER)
    answer = {"chain_pem": (other / "chain.pem").read_text(), "ca_pem": (other / "ca.pem").read_text()}
    wrong = msgspec.json.encode(answer)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 201 Created\r\ncontent-length: %d\r\n\r\n" % len(wrong) + wrong)
        await writer.drain()
        writer.close()

    context = own.server_context(server_policy(Channel.RPC, TRUST_DOMAIN), alpn=("http/1.1",))
    listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    address = listening.sockets[0].getsockname()[:2]
    directory = ca.pki.directory(WORKER)
    before = (directory / "chain.pem").read_bytes()
    async with listening:
        with pytest.raises(CaUnavailable, match="does not match the request"):
            await off_loop(renew, directory, address)
    assert (directory / "chain.pem").read_bytes() == before


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("ca.example.org:8443", ("ca.example.org", 8443)),
        ("https://ca:1", ("ca", 1)),
        ("[::1]:8443", ("::1", 8443)),
    ],
)
def test_a_ca_address_is_parsed(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "ca", "ca:", ":1", "ca:0", "ca:70000", "ca:x", "::1:3", "a/b:c:1", "ca:²"])
def test_a_malformed_ca_address_is_refused(text: str) -> None:
    with pytest.raises(PkiError, match="not an address"):
        parse_address(text)
