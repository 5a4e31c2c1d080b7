"""The Workload API as seen by an unmodified SPIFFE client from PyPI (package ``spiffe``)."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Iterator
from typing import Any

import grpc  # type: ignore[import-untyped]  # it has no type information
import pytest
from cryptography import x509
from spiffe import JwtBundleSet, JwtSvid, SpiffeId, TrustDomain, WorkloadApiClient
from spiffe._proto import workload_pb2, workload_pb2_grpc
from spiffe.workloadapi.errors import FetchJwtSvidError, FetchX509SvidError, ValidateJwtSvidError
from spiffe.workloadapi.x509_context import X509Context

from sluice.pki.agent.policy import IdentityEntry
from sluice.pki.identities.directory import read_identity
from sluice.pki.jwt.svid import KEY_LIFETIME, MAX_LIFETIME, PUBLISH_AHEAD
from tests.integration.agent.conftest import BUNDLE, OWN_UID, TRUST_DOMAIN, RunningAgent, StartAgent
from tests.waiting import until

TIMEOUT_SECONDS = 10.0
WORKER = IdentityEntry(id="taskmanager/tm-1", uids=(OWN_UID,), dns=("tm.example.org",), audiences=("reports",))
SECOND = IdentityEntry(id="jobmanager/jm-1", uids=(OWN_UID,), audiences=("reports", "billing"))
DOMAIN = TrustDomain(TRUST_DOMAIN)


@pytest.fixture
async def running(start_agent: StartAgent) -> RunningAgent:
    """An agent with two identities for this user."""
    return await start_agent(WORKER, SECOND)


@pytest.fixture
def client(running: RunningAgent) -> Iterator[WorkloadApiClient]:
    """The Workload API client of the ``spiffe`` package, connected to the agent."""
    with WorkloadApiClient(running.address, default_timeout=TIMEOUT_SECONDS) as made:
        yield made


async def test_the_client_gets_its_identities_in_the_order_of_the_policy(client: WorkloadApiClient) -> None:
    svids = await asyncio.to_thread(client.fetch_x509_svids)
    assert [str(svid.spiffe_id) for svid in svids] == [f"{BUNDLE}/taskmanager/tm-1", f"{BUNDLE}/jobmanager/jm-1"]
    assert len(svids[0].cert_chain) == 2


async def test_the_bundle_verifies_the_svid(client: WorkloadApiClient) -> None:
    svid = await asyncio.to_thread(client.fetch_x509_svid)
    bundles = await asyncio.to_thread(client.fetch_x509_bundles)
    bundle = bundles.get_bundle_for_trust_domain(DOMAIN)
    assert bundle is not None
    (anchor,) = bundle.x509_authorities
    svid.leaf.verify_directly_issued_by(anchor)


async def test_a_watcher_sees_every_rotation(running: RunningAgent, client: WorkloadApiClient) -> None:
    seen: list[X509Context] = []
    errors: list[Exception] = []
    handle = client.stream_x509_contexts(seen.append, errors.append, retry_connect=False)
    generations = []
    try:
        for _ in range(4):
            generations.append(_on_disk(running))
            await until(lambda: bool(seen) and _serials(seen[-1]) == generations[-1], "a rotation was not told")
            await running.rotate()
    finally:
        handle.cancel()
    assert not errors
    assert len(set().union(*generations)) == 4 * 2


async def test_a_watcher_receives_crls_and_keeps_streaming(running: RunningAgent, client: WorkloadApiClient) -> None:
    """The library does not expose CRLs to its user, so the messages are read with its own classes."""
    seen: list[X509Context] = []
    errors: list[Exception] = []
    assert not (await _fetched(running))[0].crl, "nothing is revoked yet"
    handle = client.stream_x509_contexts(seen.append, errors.append, retry_connect=False)
    try:
        await until(lambda: len(seen) == 1, "no first answer")
        victims = [read_identity(one.directory)[0].leaf for one in running.policy.identities]
        for number, victim in enumerate(victims, 1):
            running.revoke(victim)
            await running.agent.step()
            await until(lambda: len(seen) == number + 1, "the change was not told")  # noqa: B023  awaited at once
            for answer in await _fetched(running):
                (crl,) = [x509.load_der_x509_crl(each) for each in answer.crl]
                assert {entry.serial_number for entry in crl} == {each.serial_number for each in victims[:number]}
                (anchor,) = seen[-1].x509_bundle_set.get_bundle_for_trust_domain(DOMAIN).x509_authorities  # type: ignore[union-attr]  # it is there, or this fails
                assert crl.is_signature_valid(anchor.public_key())  # type: ignore[arg-type]  # P-256
    finally:
        handle.cancel()
    assert not errors


async def _fetched(running: RunningAgent) -> tuple[Any, Any]:
    """Return the first responses to FetchX509SVID and FetchX509Bundles."""
    header = [("workload.spiffe.io", "true")]

    def fetch() -> tuple[Any, Any]:
        with grpc.insecure_channel(running.address) as channel:
            stub = workload_pb2_grpc.SpiffeWorkloadAPIStub(channel)  # type: ignore[no-untyped-call]  # generated
            svids = stub.FetchX509SVID(workload_pb2.X509SVIDRequest(), metadata=header, timeout=TIMEOUT_SECONDS)
            bundles = stub.FetchX509Bundles(workload_pb2.X509BundlesRequest(), metadata=header, timeout=TIMEOUT_SECONDS)
            return next(svids), next(bundles)

    return await asyncio.to_thread(fetch)


def _on_disk(running: RunningAgent) -> set[int]:
    return {read_identity(identity.directory)[0].leaf.serial_number for identity in running.policy.identities}


def _serials(context: X509Context) -> set[int]:
    return {svid.leaf.serial_number for svid in context.x509_svids}


async def test_a_jwt_svid_verifies_with_the_bundle_and_with_the_agent(client: WorkloadApiClient) -> None:
    token = await asyncio.to_thread(client.fetch_jwt_svid, {"reports"})
    bundles = await asyncio.to_thread(client.fetch_jwt_bundles)
    bundle = bundles.get_bundle_for_trust_domain(DOMAIN)
    assert bundle is not None
    verified = JwtSvid.parse_and_validate(token.token, bundle, {"reports"})
    assert str(verified.spiffe_id) == f"{BUNDLE}/taskmanager/tm-1"
    checked = await asyncio.to_thread(client.validate_jwt_svid, token.token, "reports")
    assert checked.spiffe_id == verified.spiffe_id


async def test_the_client_can_choose_the_subject_of_a_jwt_svid_among_its_own_identities(
    client: WorkloadApiClient,
) -> None:
    subject = SpiffeId(f"{BUNDLE}/jobmanager/jm-1")
    token = await asyncio.to_thread(client.fetch_jwt_svid, {"billing"}, subject)
    assert token.spiffe_id == subject


@pytest.mark.parametrize(
    ("audience", "subject"),
    [
        pytest.param({"unheard-of"}, None, id="unknown audience"),
        pytest.param({"reports", "unheard-of"}, None, id="one of two unknown"),
        pytest.param({"billing"}, f"{BUNDLE}/taskmanager/tm-1", id="audience of another identity"),
        pytest.param({"reports"}, f"{BUNDLE}/taskmanager/tm-2", id="subject of somebody else"),
    ],
)
async def test_a_jwt_svid_that_the_policy_does_not_allow_is_denied(
    client: WorkloadApiClient, audience: set[str], subject: str | None
) -> None:
    wanted = None if subject is None else SpiffeId(subject)
    with pytest.raises(FetchJwtSvidError, match="PERMISSION_DENIED"):
        await asyncio.to_thread(client.fetch_jwt_svid, audience, wanted)


async def test_a_jwt_svid_for_another_audience_is_refused(client: WorkloadApiClient) -> None:
    token = await asyncio.to_thread(client.fetch_jwt_svid, {"reports"})
    with pytest.raises(ValidateJwtSvidError, match="not for 'billing'"):
        await asyncio.to_thread(client.validate_jwt_svid, token.token, "billing")


async def test_an_expired_jwt_svid_is_refused(running: RunningAgent, client: WorkloadApiClient) -> None:
    token = await asyncio.to_thread(client.fetch_jwt_svid, {"reports"})
    running.jwt_clock.offset = dt.timedelta(minutes=6)
    with pytest.raises(ValidateJwtSvidError, match="expired"):
        await asyncio.to_thread(client.validate_jwt_svid, token.token, "reports")


async def test_a_watcher_receives_a_new_jwt_key_before_the_key_signs(
    running: RunningAgent, client: WorkloadApiClient
) -> None:
    seen: list[set[str]] = []
    errors: list[Exception] = []

    def took(bundles: JwtBundleSet) -> None:
        bundle = bundles.get_bundle_for_trust_domain(DOMAIN)
        assert bundle is not None
        seen.append(set(bundle.jwt_authorities))

    handle = client.stream_jwt_bundles(took, errors.append, retry_connect=False)
    try:
        await until(lambda: len(seen) == 1, "no first bundle")
        running.jwt_clock.offset = KEY_LIFETIME
        await running.agent.step()
        await until(lambda: len(seen) == 2, "the new key was not told")
        running.jwt_clock.offset = KEY_LIFETIME + PUBLISH_AHEAD + MAX_LIFETIME
        await running.agent.step()
        await until(lambda: len(seen) == 3, "the old key was not withdrawn")
    finally:
        handle.cancel()
    assert not errors
    assert seen[0] < seen[1]
    assert seen[2] == seen[1] - seen[0]


async def test_an_expired_certificate_is_not_handed_out(running: RunningAgent, client: WorkloadApiClient) -> None:
    running.clock.offset = dt.timedelta(hours=25)
    with pytest.raises(FetchX509SvidError, match="UNAVAILABLE"):
        await asyncio.to_thread(client.fetch_x509_svid)
