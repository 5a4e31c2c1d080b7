"""Egress of jobs through the real Envoy: who may connect where, and what is recorded."""

from __future__ import annotations

import asyncio
import ssl
import zlib
from collections.abc import AsyncIterator, Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sluice.core.egress import EgressSetting
from sluice.gateway.envoy_config.egress_internal import FIRST_BYTES_SECONDS
from sluice.pki.spiffe_id import Role, SpiffeId
from tests.egress_gateway import (
    DEADLINE_SECONDS,
    HELLO,
    JOB,
    OTHER_JOB,
    TRUST_DOMAIN,
    EgressGateway,
    closed,
    egress_gateway,
    serving,
)
from tests.outside import OutsideAuthority
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

LOOPBACK = 'addresses = ["127.0.0.0/8"]'
RULES = f"""
[[egress]]
to = ["allowed.test:*", "broken.test:*"]
users = ["ada"]
{LOOPBACK}
[[egress]]
to = ["tls.test:*"]
users = ["ada"]
protocol = "tls"
{LOOPBACK}
[[egress]]
to = ["first.test:*"]
users = ["ada"]
protocol = "tcp"
{LOOPBACK}
[[egress]]
to = ["*.suffix.test:*", "127.0.0.9:*", "10.0.0.0/8:*"]
users = ["ada"]
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[EgressGateway]:
    async with egress_gateway() as gateway:
        yield gateway


@pytest.fixture
def gateway(running: EgressGateway) -> Iterator[EgressGateway]:
    running.allow(RULES)
    for name in ("allowed.test", "tls.test", "first.test"):
        running.names.names[name] = ("127.0.0.9",)
    running.names.asked.clear()
    yield running
    running.names.names.clear()


@pytest.fixture(scope="module")
def driver(running: EgressGateway) -> Path:
    return running.driver()


async def test_an_allowed_host_is_reached_with_tls_end_to_end(gateway: EgressGateway, driver: Path) -> None:
    executor = gateway.identity(SpiffeId.executor(TRUST_DOMAIN, JOB, 3))
    async with gateway.tls_upstream("allowed.test") as port:
        assert await gateway.hello(driver, f"allowed.test:{port}", "allowed.test") == HELLO
        assert await gateway.hello(executor, f"ALLOWED.test:{port}", "allowed.test") == HELLO
    decisions = [each for each in gateway.decisions() if each["path"].lower() == f"allowed.test:{port}"]
    assert [(each["decision"], each["principal"], each["credential"]) for each in decisions] == [
        ("allow", "ada", JOB)
    ] * 2
    assert [each["detail"]["process"] for each in decisions] == ["driver", "executor/3"]
    assert {each["reason"] for each in decisions} == {"egress[1] allows allowed.test:*"}

    def lines() -> list[dict[str, Any]]:
        return [each for each in gateway.log_lines() if each["path"] == f"allowed.test:{port}"]

    await until(lambda: len(lines()) == 2, "Envoy writes no line")
    line = next(each for each in lines() if each["request_id"] == decisions[0]["request_id"])  # in any order
    assert (line["principal"], line["credential"], line["address"]) == ("ada", JOB, f"127.0.0.9:{port}")
    assert line["received_bytes"] > 0 < line["sent_bytes"]


async def test_a_connect_request_over_http_1_0_is_answered(gateway: EgressGateway, driver: Path) -> None:
    async with gateway.plain_upstream() as port:
        head = f"CONNECT allowed.test:{port} HTTP/1.0\r\n\r\n"
        status, _, _, writer = await gateway.connect(gateway.client_context(driver), "", head=head)
        assert status == 200
        await closed(writer)


async def test_an_address_that_does_not_answer_is_skipped_for_the_next_one(
    gateway: EgressGateway, driver: Path
) -> None:
    gateway.names.names["allowed.test"] = ("127.0.0.88", "127.0.0.9")
    async with gateway.tls_upstream("allowed.test") as port:
        assert await gateway.hello(driver, f"allowed.test:{port}", "allowed.test") == HELLO
    assert gateway.decisions()[-1]["detail"]["to"] == f"127.0.0.9:{port}"


async def test_a_host_that_no_rule_allows_is_refused_without_a_dns_lookup(gateway: EgressGateway, driver: Path) -> None:
    gateway.names.names["secret.evil.test"] = ("127.0.0.9",)
    assert await gateway.refused(driver, "secret.evil.test:443") == (403, "no rule allows it\n")
    assert gateway.names.asked == []
    decision = gateway.decisions()[-1]
    assert (decision["decision"], decision["status"], decision["path"]) == ("deny", 403, "secret.evil.test:443")
    await until(lambda: gateway.log_lines()[-1]["path"] == "secret.evil.test:443", "Envoy writes no line")
    line = gateway.log_lines()[-1]
    assert (line["status"], line["principal"], line["credential"]) == (403, "ada", JOB)


@pytest.mark.parametrize(
    "authority",
    [
        "0x7f000009:443",
        "2130706441:443",
        "127.9:443",
        "0177.0.0.011:443",
        "127.0.0.9.:443",
        "allowed.test.:443",
        "[::1]:443",
    ],
)
async def test_other_spellings_of_an_allowed_address_or_name_are_refused(
    gateway: EgressGateway, driver: Path, authority: str
) -> None:
    status, _ = await gateway.refused(driver, authority)
    assert status in {400, 403}
    assert gateway.names.asked == []


async def test_a_job_whose_owner_has_no_rule_for_the_host_is_refused(gateway: EgressGateway) -> None:
    assert await gateway.refused(gateway.driver(OTHER_JOB), "allowed.test:443") == (403, "no rule allows it\n")


async def test_an_unknown_or_ended_job_cannot_connect(gateway: EgressGateway) -> None:
    unknown, ended = "e" * 32, "d" * 32
    gateway.jobs[ended] = {**gateway.jobs[JOB], "id": ended, "state": "FINISHED"}
    assert (await gateway.refused(gateway.driver(unknown), "allowed.test:443"))[0] == 403
    assert await gateway.refused(gateway.driver(ended), "allowed.test:443") == (403, "the job is FINISHED\n")


@pytest.mark.parametrize("role", [Role.TASKMANAGER, Role.JOBMANAGER, Role.GATEWAY, Role.SHUFFLE_WORKER])
async def test_certificates_of_cluster_processes_are_refused(gateway: EgressGateway, role: Role) -> None:
    context = gateway.client_context(gateway.identity(SpiffeId.process(TRUST_DOMAIN, role, "other")))
    with pytest.raises((OSError, asyncio.IncompleteReadError)):
        await gateway.connect(context, "allowed.test:443")


async def test_a_client_without_a_certificate_of_this_cluster_is_refused(
    gateway: EgressGateway, tmp_path: Path
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with pytest.raises((OSError, asyncio.IncompleteReadError)):
        await gateway.connect(context, "allowed.test:443")
    # One of another authority, with the right name in it.
    forged = OutsideAuthority(tmp_path / "foreign").imitate(str(SpiffeId.driver(TRUST_DOMAIN, JOB)))
    context.load_cert_chain(forged / "chain.pem", forged / "key.pem")
    with pytest.raises((OSError, asyncio.IncompleteReadError)):
        await gateway.connect(context, "allowed.test:443")


async def test_a_revoked_certificate_is_refused(gateway: EgressGateway) -> None:
    directory = gateway.driver()
    context = gateway.client_context(directory)
    async with gateway.plain_upstream() as port:
        status, _, _, writer = await gateway.connect(context, f"allowed.test:{port}")
        assert status == 200
        await closed(writer)
        gateway.revoke(directory)

        # Envoy is given the new list within a second.
        async with asyncio.timeout(DEADLINE_SECONDS):
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await _connect_for_ever(gateway, context, f"allowed.test:{port}")


async def _connect_for_ever(gateway: EgressGateway, context: ssl.SSLContext, authority: str) -> None:
    while True:
        _, _, _, writer = await gateway.connect(context, authority)
        await closed(writer)


@pytest.mark.parametrize("server_name", ["denied.test", None, "sub.allowed.test"])
async def test_a_tls_connection_with_another_server_name_is_closed(
    gateway: EgressGateway, driver: Path, server_name: str | None
) -> None:
    async with gateway.tls_upstream("allowed.test", "denied.test", "sub.allowed.test") as port:
        with pytest.raises(OSError):  # noqa: PT011  whichever way the end is noticed
            await gateway.hello(driver, f"allowed.test:{port}", server_name)
        authority = f"allowed.test:{port}"
        await until(lambda: any(each["path"] == authority for each in gateway.log_lines()), "Envoy writes no line")
        (line,) = (each for each in gateway.log_lines() if each["path"] == authority)
        assert "rbac_access_denied" in str(line["reason"])
        assert line["sent_bytes"] == 0


async def test_a_tls_connection_to_an_allowed_address_must_not_have_a_server_name(
    gateway: EgressGateway, driver: Path
) -> None:
    async with gateway.tls_upstream("allowed.test") as port:
        assert await gateway.hello(driver, f"127.0.0.9:{port}", None) == HELLO
        with pytest.raises(OSError):  # noqa: PT011
            await gateway.hello(driver, f"127.0.0.9:{port}", "allowed.test")


async def test_bytes_that_are_neither_tls_nor_http_pass_unless_tls_is_demanded(
    gateway: EgressGateway, driver: Path
) -> None:
    async with gateway.plain_upstream() as port:
        for name, passes in (("allowed.test", True), ("tls.test", False)):
            status, _, reader, writer = await gateway.connect(gateway.client_context(driver), f"{name}:{port}")
            assert status == 200
            writer.write(b"\x00\x00\x00\x08\x04\xd2\x16\x2f")  # PostgreSQL asks for TLS
            assert (await asyncio.wait_for(reader.read(5), DEADLINE_SECONDS) == HELLO[:5]) is passes
            await closed(writer)


async def test_a_server_may_speak_first_where_the_rule_says_so(gateway: EgressGateway, driver: Path) -> None:
    async with gateway.plain_upstream() as port:
        status, _, reader, writer = await gateway.connect(gateway.client_context(driver), f"first.test:{port}")
        assert status == 200
        assert await asyncio.wait_for(reader.readline(), DEADLINE_SECONDS) == HELLO
        await closed(writer)


async def _web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each request with a redirect to another host, and its own host in the header ``x-host``."""
    while True:
        try:
            request = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, OSError):
            return await closed(writer)
        host = request.lower().partition(b"\r\nhost: ")[2].split(b"\r\n")[0]
        writer.write(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.10/\r\nx-host: " + host + b"\r\n")
        writer.write(b"Content-Length: 0\r\n\r\n")


async def test_plaintext_http_is_allowed_only_for_the_host_of_the_connect_request(
    gateway: EgressGateway, driver: Path
) -> None:
    async with serving(_web, "127.0.0.9", 0, None) as port:
        status, _, reader, writer = await gateway.connect(gateway.client_context(driver), f"allowed.test:{port}")
        assert status == 200
        for host, answer in (
            ("allowed.test", b"302"),
            (f"allowed.test:{port}", b"302"),
            ("denied.test", b"403"),
            ("allowed.test", b"302"),
        ):
            writer.write(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), DEADLINE_SECONDS)
            assert head.split(b" ")[1] == answer
            if answer == b"403":
                await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]))
            else:
                assert b"http://127.0.0.10/" in head
                assert f"x-host: {host}\r\n".encode() in head
        await closed(writer)
        # Whoever follows the redirect asks for another host.
        assert await gateway.refused(driver, "127.0.0.10:80") == (403, "no rule allows it\n")


async def test_jobs_share_no_upstream_connection_to_a_plaintext_http_server(
    gateway: EgressGateway, driver: Path
) -> None:
    peers: set[object] = set()
    of_tunnels = []

    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.add(writer.get_extra_info("peername"))
        await _web(reader, writer)

    async with serving(web, "127.0.0.9", 0, None) as port:
        for _ in range(2):
            peers.clear()
            _, _, reader, writer = await gateway.connect(gateway.client_context(driver), f"allowed.test:{port}")
            for _ in range(2):
                writer.write(b"GET / HTTP/1.1\r\nHost: allowed.test\r\n\r\n")
                await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), DEADLINE_SECONDS)
            await closed(writer)
            of_tunnels.append(frozenset(peers))
    first, second = of_tunnels
    assert first
    assert second
    assert not first & second


@pytest.mark.parametrize(
    "addresses",
    [
        ("127.0.0.9",),
        ("10.0.0.1",),
        ("169.254.169.254",),
        ("100.100.100.200",),
        ("::1",),
        ("::ffff:127.0.0.9",),
        ("64:ff9b::7f00:9",),
        ("fe80::1",),
        ("fd00:ec2::254",),
        ("127.0.0.9", "::1"),
    ],
)
async def test_a_name_allowed_by_suffix_is_refused_if_it_resolves_to_an_internal_address(
    gateway: EgressGateway, driver: Path, addresses: tuple[str, ...]
) -> None:
    name = f"x{zlib.crc32(repr(addresses).encode())}.suffix.test"  # answers are cached
    gateway.names.names[name] = addresses
    status, reason = await gateway.refused(driver, f"{name}:443")
    assert (status, addresses[0] in reason) == (403, True)
    assert gateway.decisions()[-1]["reason"] in reason


async def test_a_name_connects_only_to_addresses_in_the_networks_of_its_rule(
    gateway: EgressGateway, driver: Path
) -> None:
    gateway.names.names["allowed.test"] = ("169.254.169.254", "10.0.0.1")
    assert (await gateway.refused(driver, "allowed.test:443"))[0] == 403
    gateway.names.names["allowed.test"] = ("169.254.169.254", "127.0.0.9")
    async with gateway.tls_upstream("allowed.test") as port:
        assert await gateway.hello(driver, f"allowed.test:{port}", "allowed.test") == HELLO


async def test_a_connection_goes_to_the_address_that_was_checked_despite_dns_rebinding(
    gateway: EgressGateway, driver: Path
) -> None:
    answers = chain([("127.0.0.9",)], repeat(("127.0.0.10",)))
    gateway.names.names["allowed.test"] = lambda: next(answers)
    async with gateway.plain_upstream() as port, serving(_web, "127.0.0.10", port, None):
        status, _, reader, writer = await gateway.connect(gateway.client_context(driver), f"allowed.test:{port}")
        assert status == 200
        writer.write(b"bytes\n")
        # Both A and AAAA are asked for: the second answer has no place in the connection.
        assert await asyncio.wait_for(reader.readline(), DEADLINE_SECONDS) == HELLO
        await closed(writer)
    assert len(gateway.names.asked) <= 2
    assert gateway.decisions()[-1]["detail"]["to"] == f"127.0.0.9:{port}"


async def test_a_name_that_does_not_resolve_is_answered_with_502(gateway: EgressGateway, driver: Path) -> None:
    status, reason = await gateway.refused(driver, "broken.test:443")
    assert (status, "broken.test" in reason) == (502, True)


async def test_a_changed_policy_applies_to_the_next_connection(gateway: EgressGateway, driver: Path) -> None:
    async with gateway.tls_upstream("allowed.test") as port:
        assert await gateway.hello(driver, f"allowed.test:{port}", "allowed.test") == HELLO
        gateway.allow("")
        assert await gateway.refused(driver, f"allowed.test:{port}") == (403, "no rule allows it\n")


@pytest.mark.parametrize("request_line", ["GET / HTTP/1.1", "GET http://allowed.test/ HTTP/1.1", "OPTIONS * HTTP/1.1"])
async def test_methods_other_than_connect_are_refused(gateway: EgressGateway, driver: Path, request_line: str) -> None:
    head = f"{request_line}\r\nHost: allowed.test\r\nx-sluice-egress: tcp\r\n\r\n"
    status, _, _, _ = await gateway.connect(gateway.client_context(driver), "", head=head)
    assert status in {404, 405}


async def test_a_job_cannot_disable_protocol_inspection_by_a_header(gateway: EgressGateway, driver: Path) -> None:
    async with gateway.tls_upstream("allowed.test", "denied.test") as port:
        head = f"CONNECT allowed.test:{port} HTTP/1.1\r\nHost: allowed.test:{port}\r\nx-sluice-egress: tcp\r\n\r\n"
        status, _, reader, writer = await gateway.connect(gateway.client_context(driver), "", head=head)
        assert status == 200
        writer.write(b"no TLS and no HTTP\n")
        # It is the listener that looks: a server that speaks first is not heard before the first bytes.
        assert await asyncio.wait_for(reader.read(1), DEADLINE_SECONDS) != HELLO[:1]
        await closed(writer)


async def test_the_connect_authority_is_decided_about_and_not_the_host_header(
    gateway: EgressGateway, driver: Path
) -> None:
    head = "CONNECT secret.evil.test:443 HTTP/1.1\r\nHost: allowed.test:443\r\n\r\n"
    status, _, _, _ = await gateway.connect(gateway.client_context(driver), "", head=head)
    assert status == 403
    assert gateway.decisions()[-1]["path"] == "secret.evil.test:443"


async def test_in_audit_mode_a_server_may_speak_first_without_a_rule() -> None:
    async with egress_gateway(EgressSetting.AUDIT) as gateway, gateway.plain_upstream() as port:
        gateway.names.names["mail.test"] = ("127.0.0.9",)
        context = gateway.client_context(gateway.driver())
        status, _, reader, writer = await gateway.connect(context, f"mail.test:{port}")
        assert status == 200
        async with asyncio.timeout(FIRST_BYTES_SECONDS / 2):  # sooner than where rules are enforced
            assert await reader.readexactly(len(HELLO)) == HELLO
        writer.write(b"EHLO")
        assert await asyncio.wait_for(reader.readexactly(4), DEADLINE_SECONDS) == b"EHLO"
        await closed(writer)


async def test_audit_mode_allows_connections_and_records_what_would_be_refused() -> None:
    async with egress_gateway(EgressSetting.AUDIT) as gateway:
        gateway.names.names["any.test"] = ("127.0.0.9",)
        async with gateway.tls_upstream("any.test", "other.test") as port:
            driver = gateway.driver()
            assert await gateway.hello(driver, f"any.test:{port}", "any.test") == HELLO
            assert await gateway.hello(driver, f"any.test:{port}", "other.test") == HELLO
        first, _ = gateway.decisions()
        assert (first["decision"], first["reason"]) == ("allow", "audit: would be refused: no rule allows it")
        await until(lambda: len(gateway.log_lines()) == 2, "Envoy writes no line")
        assert sorted(each["would"] for each in gateway.log_lines()) == ["allowed", "denied"]
