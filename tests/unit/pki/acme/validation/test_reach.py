"""Where the authority connects: what a hostile client, or its DNS, cannot make it do."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import ipaddress
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from sluice.pki.acme.identifiers import Identifier
from sluice.pki.acme.problems import AcmeProblem, ProblemType
from sluice.pki.acme.validation.dns01 import check_dns
from sluice.pki.acme.validation.http01 import MAX_BODY_BYTES, check_http
from sluice.pki.acme.validation.reach import Reach

NAME = Identifier("dns", "www.internal.example")
TOKEN, AUTHORIZATION = "token", "token.thumbprint"


@dataclass
class Resolver:
    """A fake resolver that answers with the names and records of the test."""

    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    records: dict[str, tuple[bytes, ...]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    async def addresses(self, name: str) -> tuple[str, ...]:
        self.asked.append(name)
        return self.names[name]

    async def texts(self, name: str) -> tuple[bytes, ...]:
        return self.records.get(name, ())


def reach(*networks: str, port: int = 80) -> Reach:
    return Reach(tuple(ipaddress.ip_network(each) for each in networks), port, 443)


@pytest.mark.parametrize(
    ("networks", "address", "allowed"),
    [
        ((), "192.0.2.1", False),
        ((), "8.8.8.8", False),
        (("0.0.0.0/0",), "8.8.8.8", True),
        (("0.0.0.0/0",), "10.0.0.1", False),
        (("0.0.0.0/0",), "127.0.0.1", False),
        (("0.0.0.0/0", "::/0"), "::1", False),
        (("0.0.0.0/0", "::/0"), "169.254.169.254", False),
        (("0.0.0.0/0", "::/0"), "fd00:ec2::254", False),
        (("0.0.0.0/0", "::/0"), "::ffff:127.0.0.1", False),
        (("0.0.0.0/0", "::/0"), "::ffff:10.0.0.1", False),
        (("0.0.0.0/0", "::/0"), "64:ff9b::7f00:1", False),
        (("0.0.0.0/0", "::/0"), "fe80::1", False),
        (("10.0.0.0/8",), "10.1.2.3", True),
        (("10.0.0.0/8",), "192.168.1.1", False),
        (("169.254.0.0/16",), "169.254.169.254", False),
        (("127.0.0.0/8",), "127.0.0.1", True),
        (("fc00::/7",), "fd00:ec2::254", False),
    ],
)
async def test_only_addresses_in_the_allowed_networks_are_connected_to(
    networks: tuple[str, ...], address: str, *, allowed: bool
) -> None:
    assert reach(*networks).allows(ipaddress.ip_address(address)) is allowed
    resolver = Resolver({NAME.value: (address,)})
    if not allowed:
        with pytest.raises(AcmeProblem) as caught:
            await reach(*networks).addresses_of(NAME, resolver)
        assert caught.value.kind is ProblemType.CONNECTION


@dataclass
class Host:
    """Answers each connection with its next answer and records the requests."""

    port: int = 0
    answers: list[bytes] = field(default_factory=list)
    asked: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(self.answers.pop(0))
        await writer.drain()
        writer.close()


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    found = Host()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    async with server:
        yield found


def ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body)


def to(location: str) -> bytes:
    return f"HTTP/1.1 302 Found\r\nlocation: {location}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode()


async def ask(
    host: Host, resolver: Resolver | None = None, refusal: Callable[[Identifier], str] = lambda _: ""
) -> None:
    known = resolver or Resolver({NAME.value: ("127.0.0.1",)})
    await check_http(NAME, TOKEN, AUTHORIZATION, reach("127.0.0.0/8", port=host.port), known, refusal)


async def test_the_http_01_request_has_the_path_of_the_token_and_the_host_name(host: Host) -> None:
    host.answers = [ok(AUTHORIZATION.encode() + b"\r\n")]
    await ask(host)
    assert host.asked[0].startswith(b"GET /.well-known/acme-challenge/token HTTP/1.1\r\n")
    assert f"Host: {NAME.value}:{host.port}".encode() in host.asked[0]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(ok(b"another.thumbprint"), id="another content"),
        pytest.param(ok(b""), id="nothing"),
        pytest.param(ok(b"x" * (MAX_BODY_BYTES + 1)), id="too much"),
        pytest.param(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n", id="404"),
        pytest.param(b"HTTP/1.1 302 Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n", id="no location"),
        pytest.param(b"SSH-2.0-OpenSSH\r\n", id="another protocol"),
        pytest.param(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\n\r\n", id="a huge header"),
    ],
)
async def test_a_wrong_http_01_answer_is_refused_without_revealing_its_content(host: Host, answer: bytes) -> None:
    host.answers = [answer]
    with pytest.raises(AcmeProblem) as caught:
        await ask(host)
    assert "another.thumbprint" not in caught.value.what
    assert "OpenSSH" not in caught.value.what


async def test_a_redirect_is_followed_to_a_name_that_may_be_certified(host: Host) -> None:
    host.answers = [to(f"http://other.internal.example:{host.port}/x"), ok(AUTHORIZATION.encode())]
    resolver = Resolver({NAME.value: ("127.0.0.1",), "other.internal.example": ("127.0.0.1",)})
    await ask(host, resolver)
    assert resolver.asked == [NAME.value, "other.internal.example"]


@pytest.mark.parametrize(
    "location",
    [
        "http://evil.example/",
        "http://127.0.0.1/",
        "http://169.254.169.254/latest/meta-data",
        "http://www.internal.example:22/",
        "http://www.internal.example:6379/",
        "ftp://www.internal.example/",
        "file:///etc/passwd",
        "gopher://www.internal.example/",
        "http://user:pw@www.internal.example/",
        "http://[::1]/",
        "http://www.internal.example:99999/",
        "http://" + "a" * 3000,
    ],
)
async def test_a_redirect_to_another_name_port_or_scheme_is_not_followed(host: Host, location: str) -> None:
    host.answers = [to(location)]

    def refusal(asked: Identifier) -> str:
        return "" if asked == NAME else "not certified here"

    with pytest.raises(AcmeProblem, match="redirect"):
        await ask(host, refusal=refusal)
    assert len(host.asked) == 1


async def test_a_redirect_to_a_name_at_a_forbidden_address_is_not_followed(host: Host) -> None:
    host.answers = [to("http://meta.internal.example/")]
    resolver = Resolver({NAME.value: ("127.0.0.1",), "meta.internal.example": ("169.254.169.254",)})
    with pytest.raises(AcmeProblem, match="no address in the networks"):
        await ask(host, resolver)


async def test_the_number_of_redirects_is_limited(host: Host) -> None:
    host.answers = [to("/again") for _ in range(20)]
    with pytest.raises(AcmeProblem, match="more than 5 redirects"):
        await ask(host)
    assert len(host.asked) == 6


async def test_dns_is_resolved_once_and_only_the_checked_address_is_connected_to(host: Host) -> None:
    """DNS may give another address at each query: it is asked once, and that answer is used."""
    resolver = Resolver({NAME.value: ("127.0.0.1", "169.254.169.254", "10.0.0.1")})
    found = await reach("127.0.0.0/8").addresses_of(NAME, resolver)
    assert found == ("127.0.0.1",)
    host.answers = [ok(AUTHORIZATION.encode())]
    await ask(host, resolver)
    assert resolver.asked == [NAME.value, NAME.value]


async def test_dns_01_finds_the_digest_among_other_txt_records() -> None:
    wanted = base64.urlsafe_b64encode(hashlib.sha256(AUTHORIZATION.encode()).digest()).rstrip(b"=")
    resolver = Resolver(records={"_acme-challenge.www.internal.example": (b"v=spf1", wanted)})
    await check_dns(NAME, AUTHORIZATION, resolver)
    for wrong in ((), (b"",), (AUTHORIZATION.encode(),), (wanted + b"x",)):
        resolver.records = {"_acme-challenge.www.internal.example": wrong}
        with pytest.raises(AcmeProblem):
            await check_dns(NAME, AUTHORIZATION, resolver)
