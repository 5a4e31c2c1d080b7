"""What subscribers report to the online authority over real connections, hostile subscribers included."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from sluice.core.errors import PeerRefused
from sluice.pki.ca.authority import OnlineAuthority
from sluice.pki.ca.config import CaConfig
from sluice.pki.ca.process import online_ca
from sluice.pki.ca.protocol import MAX_TRUST_REQUEST_BYTES, TRUST_PATH, TrustRequest
from sluice.pki.ca.server import CaServer
from sluice.pki.ca.subscriber_file import read_subscribers
from sluice.pki.ca.trust_subscribers import TrustSubscribers
from sluice.pki.channels import Channel, server_policy
from sluice.pki.enrolment.client import fetch_trust
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from sluice.pki.trust.reports import TrustReport
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.integration.pki.ca.test_ca_server import call, off_loop
from tests.waiting import until

WORKER = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1")
VICTIM = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-2")


def told(spiffe_id: SpiffeId, anchor: str = "aa") -> TrustReport:
    return TrustReport(
        pid=7,
        started=1.0,
        identity=str(spiffe_id),
        program="taskmanager",
        leaf="0" * 64,
        issuer=anchor,
        anchors=(anchor,),
        crls={},
        loaded_at=dt.datetime(2026, 11, 21, tzinfo=dt.UTC),
    )


class Served:
    """A running authority server, and the subscribers it has recorded."""

    def __init__(self, pki: TestPki, subscribers: TrustSubscribers) -> None:
        self.pki = pki
        self.subscribers = subscribers
        self.authority = OnlineAuthority(pki.home.pki, pki.config)
        own = pki.identity(SpiffeId.process(TRUST_DOMAIN, Role.CA, "ca-1"))
        self.server = CaServer(own, self.authority, subscribers=subscribers)
        self.address = ("", 0)

    def told(self) -> dict[str, tuple[str, ...]]:
        """Return the anchors that each recorded subscriber trusts."""
        return {each.identity: each.in_use[0].anchors for each in self.subscribers.record()[0].subscribers}

    async def post(self, identity: TlsIdentity, body: bytes, *, method: str = "POST") -> tuple[int, str]:
        """Send a trust request; return the status and title of the response."""
        context = identity.client_context(server_policy(Channel.CA, TRUST_DOMAIN), alpn=("http/1.1",))
        status, answer = await off_loop(call, self.address, context, method, TRUST_PATH, body)
        return status, answer.get("title", "")


@asynccontextmanager
async def serving(pki: TestPki, subscribers: TrustSubscribers) -> AsyncIterator[Served]:
    served = Served(pki, subscribers)
    served.address, _ = await served.server.start("127.0.0.1", 0, 0)
    try:
        yield served
    finally:
        await served.server.close()
        served.authority.close()


@pytest.fixture
async def served(pki: TestPki) -> AsyncIterator[Served]:
    async with serving(pki, TrustSubscribers()) as made:
        yield made


async def test_a_trust_report_is_recorded_with_the_certificate_that_authenticated_it(pki: TestPki) -> None:
    identity = pki.identity(WORKER)
    async with online_ca(pki.home, pki.config, CaConfig()) as ca:
        await fetch_trust(identity, ca.mutual, TrustRequest(in_use=(told(WORKER),)))
        await until(lambda: bool(read_subscribers(pki.home.pki).subscribers), "it was not written down")
    (found,) = read_subscribers(pki.home.pki).subscribers
    assert (found.identity, found.in_use, found.address) == (str(WORKER), (told(WORKER),), "127.0.0.1")
    leaf = identity.material.leaf
    assert (int(found.serial, 16), found.not_after) == (leaf.serial_number, leaf.not_valid_after_utc)


async def test_a_trust_report_for_another_identity_is_refused_as_a_whole(served: Served) -> None:
    """What the other identity has reported itself stays."""
    hostile = served.pki.identity(WORKER)
    await fetch_trust(served.pki.identity(VICTIM), served.address, TrustRequest(in_use=(told(VICTIM),)))
    for reports in ((told(VICTIM, "bb"),), (told(WORKER), told(VICTIM, "bb"))):
        with pytest.raises(PeerRefused, match="reports for another identity"):
            await fetch_trust(hostile, served.address, TrustRequest(in_use=reports))
    assert served.told() == {str(VICTIM): ("aa",)}
    await fetch_trust(hostile, served.address, TrustRequest(in_use=(told(WORKER, "cc"),)))
    assert served.told() == {str(VICTIM): ("aa",), str(WORKER): ("cc",)}


GOOD = msgspec.json.encode(TrustRequest(in_use=(told(WORKER),)))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param(b"", 400, id="nothing"),
        pytest.param(b"\x00\xff" * 100, 400, id="garbage"),
        pytest.param(b"[" * 20_000, 400, id="deep"),
        pytest.param(GOOD[:-1], 400, id="cut off"),
        pytest.param(GOOD.replace(b'"unreadable":0', b'"unreadable":-1'), 400, id="fewer than none"),
        pytest.param(GOOD.replace(b'"known":""', b'"known":"","more":1'), 400, id="an unknown field"),
        pytest.param(GOOD.replace(b'"program":"taskmanager"', b'"program":"\\u001b[2J"'), 400, id="an escape sequence"),
        pytest.param(GOOD.replace(b'"started":1.0', b'"started":1e999'), 400, id="endless"),
        pytest.param(msgspec.json.encode(TrustRequest(in_use=(told(WORKER),) * 9)), 400, id="many processes"),
        pytest.param(GOOD + b" " * MAX_TRUST_REQUEST_BYTES, 413, id="oversized"),
    ],
)
async def test_a_malformed_trust_request_is_refused_and_changes_nothing(
    body: bytes, status: int, served: Served
) -> None:
    identity = served.pki.identity(WORKER)
    assert await served.post(identity, body) == (status, "MalformedRequest")
    assert await served.post(identity, b"", method="GET") == (405, "MalformedRequest")
    assert served.told() == {}
    assert await served.post(identity, GOOD) == (200, ""), "the server serves on"
    assert served.told() == {str(WORKER): ("aa",)}


async def test_a_subscriber_beyond_the_limit_is_served_and_the_record_marked_incomplete(pki: TestPki) -> None:
    """It gets news of revocations; a rotation does not proceed as if it were not there."""
    async with serving(pki, TrustSubscribers(most=1)) as served:
        for spiffe_id in (VICTIM, WORKER):
            answer = await fetch_trust(pki.identity(spiffe_id), served.address, TrustRequest(in_use=(told(spiffe_id),)))
            assert answer.internal is not None
        assert served.told() == {str(VICTIM): ("aa",)}
        assert served.subscribers.record()[0].incomplete_at is not None
