"""Pods enrol with their service account token: who gets what, and what if Kubernetes does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from sluice.core.errors import CertificateRejected, PkiError
from sluice.core.kubernetes_api import KubernetesApi
from sluice.pki.attestation.config import PodAttestationConfig, PodIdentity
from sluice.pki.attestation.kubernetes import REVIEWS_AT_A_TIME, PodAttestor
from sluice.pki.ca import attesting
from sluice.pki.ca.address import CaAddress
from sluice.pki.ca.config import CaConfig
from sluice.pki.ca.process import online_ca
from sluice.pki.enrolment.client import enrol_attested, renew
from sluice.pki.enrolment.enrolling_issuer import EdgeEnrollingIssuer, EnrollingIssuer
from sluice.pki.enrolment.pod_token_file import PodTokenFile
from sluice.pki.errors import AttestationUnavailable, CaUnavailable, EnrolmentRefused
from sluice.pki.identities.directory import read_identity
from sluice.pki.ledger.file import ledger_path, read_ledger
from sluice.pki.spiffe_id import Role, SpiffeId
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.integration.pki.attestation.reviewing_api_server import (
    ACCOUNT_TOKEN,
    AUDIENCE,
    ReviewingApiServer,
    pod_token,
)
from tests.waiting import until

T = TypeVar("T")
WORKER = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-0")
EDGE = SpiffeId.process(TRUST_DOMAIN, Role.GATEWAY, "edge")
INSIDE = SpiffeId.process(TRUST_DOMAIN, Role.GATEWAY, "envoy")
RULES = (
    PodIdentity(namespace="sluice", service_account="workers", role="taskmanager", dns=("{pod}.workers",)),
    PodIdentity(namespace="sluice", service_account="envoy", role="gateway", name="envoy"),
    PodIdentity(
        namespace="sluice",
        service_account="envoy",
        role="gateway",
        name="edge",
        dns=("cluster.example.org",),
        edge_server=True,
    ),
)


async def off_loop(function: Callable[..., T], *arguments: Any, **options: Any) -> T:
    return await asyncio.to_thread(function, *arguments, **options)


@dataclass
class World:
    """An online authority that asks a stand-in for the Kubernetes API server."""

    pki: TestPki
    api: ReviewingApiServer
    address: CaAddress
    tmp: Path

    @property
    def anchors(self) -> bytes:
        """The trust anchors that are mounted in pods."""
        return (self.pki.directory(SpiffeId.process(TRUST_DOMAIN, Role.AUTH, "any")) / "ca.pem").read_bytes()

    async def enrol(self, token: str, name: str = "out", spiffe_id: SpiffeId = WORKER, **options: Any) -> Path:
        """Enrol as a pod does; return the directory of the identity."""
        options = {"dns": ("tm-0.workers",)} | options
        out = self.tmp / name
        await off_loop(
            enrol_attested, out, self.address.enrolment, self.anchors, "kubernetes", token, spiffe_id, **options
        )
        return out

    def requesters(self) -> list[str]:
        """Return the requesters of all enrolments in the ledger."""
        return [
            each.requester for each in read_ledger(ledger_path(self.pki.home.pki)) if each.kind.endswith("enrolment")
        ]


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[ReviewingApiServer]:
    found = ReviewingApiServer(tmp_path)
    await found.start()
    yield found
    await found.close()


@pytest.fixture
async def world(pki: TestPki, api: ReviewingApiServer, tmp_path: Path) -> AsyncIterator[World]:
    config = PodAttestationConfig(api=api.url, account=str(api.account), identities=RULES)
    async with online_ca(pki.home, pki.config, CaConfig(kubernetes=config)) as address:
        yield World(pki, api, address, tmp_path)


async def test_a_pod_gets_its_identity_and_the_ledger_says_which_pod(world: World) -> None:
    directory = await world.enrol(world.api.vouch("tm-0", 1))
    assert read_identity(directory)[0].spiffe_id == WORKER
    assert (directory / "key.pem").stat().st_mode & 0o777 == 0o600
    assert world.requesters() == ["pod:sluice/workers/tm-0/00000000-0000-4000-8000-000000000001"]
    assert world.api.asked[0]["spec"]["audiences"] == [AUDIENCE]
    await off_loop(renew, directory, world.address.mutual)


@pytest.mark.parametrize(
    ("spiffe_id", "options"),
    [
        pytest.param(SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1"), {}, id="another pod"),
        pytest.param(SpiffeId.process(TRUST_DOMAIN, Role.JOBMANAGER, "tm-0"), {}, id="another role"),
        pytest.param(INSIDE, {"dns": ()}, id="another account's"),
        pytest.param(WORKER, {"dns": ()}, id="fewer names"),
        pytest.param(WORKER, {"dns": ("tm-0.workers", "x.example")}, id="more names"),
        pytest.param(WORKER, {"ips": ("10.0.0.1",)}, id="an address"),
        pytest.param(EDGE, {"dns": ("cluster.example.org",), "edge_server": True}, id="the public certificate"),
    ],
)
async def test_a_pod_gets_no_other_identity_or_names_than_its_rule_gives(
    spiffe_id: SpiffeId, options: dict[str, Any], world: World
) -> None:
    token = world.api.vouch("tm-0", 1)
    with pytest.raises((EnrolmentRefused, CertificateRejected)):
        await world.enrol(token, spiffe_id=spiffe_id, **options)
    assert world.requesters() == []
    assert not (world.tmp / "out").exists()


@pytest.mark.parametrize("case", ["unknown", "wrong audience", "account without identity", "another attestor"])
async def test_an_unsuitable_service_account_token_is_refused(case: str, world: World) -> None:
    token = world.api.vouch(
        "tm-0",
        1,
        account="default" if case == "account without identity" else "workers",
        audiences=("https://kubernetes.default.svc",) if case == "wrong audience" else (AUDIENCE,),
    )
    attestor = "other" if case == "another attestor" else "kubernetes"
    shown = pod_token("gone") if case == "unknown" else token
    with pytest.raises(EnrolmentRefused):
        await off_loop(
            enrol_attested, world.tmp / "out", world.address.enrolment, world.anchors, attestor, shown, WORKER
        )
    assert world.requesters() == []


@pytest.mark.parametrize("fate", ["huge", "redirect", "garbage", "401", "403", "404", "429", "500", "200"])
async def test_no_pod_is_admitted_when_the_kubernetes_api_does_not_answer_properly(
    fate: str, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    token = world.api.vouch("tm-0", 1)
    world.api.fate = fate
    with pytest.raises(AttestationUnavailable):
        await world.enrol(token)
    assert world.requesters() == []
    assert token not in caplog.text
    assert ACCOUNT_TOKEN not in caplog.text
    world.api.fate = "ok"
    await world.enrol(token)


async def test_a_silent_kubernetes_api_delays_only_a_limited_number_of_reviews_for_a_limited_time(
    api: ReviewingApiServer,
) -> None:
    api.fate = "silent"
    client = KubernetesApi(api.url, token_file=api.account / "token", ca_file=api.account / "ca.crt", seconds=0.8)
    attestor = PodAttestor(client, RULES, TRUST_DOMAIN, patience=0.9)
    results = await asyncio.gather(
        *(attestor.attest(api.vouch("tm-0", number)) for number in range(4 * REVIEWS_AT_A_TIME)),
        return_exceptions=True,
    )
    assert {type(each) for each in results} == {AttestationUnavailable}
    # Those of the first round, and those that took their places; the others have given up before it was their turn.
    assert len(api.asked) <= 2 * REVIEWS_AT_A_TIME
    await attestor.close()


@pytest.mark.parametrize("case", ["another authority's", "another name's"])
async def test_an_untrusted_kubernetes_api_is_sent_no_token(case: str, tmp_path: Path) -> None:
    impostor = ReviewingApiServer(tmp_path)
    await impostor.start(*(("kube.example.org",) if case == "another name's" else ()))
    if case == "another authority's":
        other = ReviewingApiServer(tmp_path / "other")
        other.root.mkdir()
        await other.start()
        await other.close()
        (impostor.account / "ca.crt").write_bytes((other.account / "ca.crt").read_bytes())
    client = KubernetesApi(impostor.url, token_file=impostor.account / "token", ca_file=impostor.account / "ca.crt")
    attestor = PodAttestor(client, RULES, TRUST_DOMAIN)
    with pytest.raises(AttestationUnavailable, match="not show a certificate that is trusted"):
        await attestor.attest(impostor.vouch("tm-0", 1))
    assert impostor.asked == []
    await attestor.close()
    await impostor.close()


async def test_a_new_pod_supersedes_the_old_one_which_cannot_enrol_again(world: World) -> None:
    """The Kubernetes API still accepts the token of the old pod."""
    old_token = world.api.vouch("tm-0", 1)
    old = await world.enrol(old_token, "old")
    new = await world.enrol(world.api.vouch("tm-0", 2), "new")
    with pytest.raises(EnrolmentRefused, match="was succeeded"):
        await world.enrol(old_token, "old again")
    await off_loop(renew, new, world.address.mutual)
    assert read_identity(old)[0].leaf != read_identity(new)[0].leaf


async def test_envoys_pod_gets_both_of_its_identities_with_one_token(world: World) -> None:
    token, anchors = world.tmp / "token", world.tmp / "anchors"
    token.write_text(world.api.vouch("envoy-0", 7, account="envoy"))
    credential = PodTokenFile(token, anchors)
    inside, public = world.tmp / "inside", world.tmp / "public"
    issuer = EnrollingIssuer(lambda: (world.address,), {INSIDE: credential})
    with pytest.raises(CaUnavailable, match="no trust anchors"):
        await off_loop(issuer.issue_to, inside, INSIDE)
    anchors.write_bytes(world.anchors)
    await off_loop(issuer.issue_to, inside, INSIDE)
    edge = EdgeEnrollingIssuer(inside, lambda: (world.address,), {EDGE: credential})
    await off_loop(edge.issue_to, public, EDGE, dns=("cluster.example.org",))
    assert read_identity(public)[0].spiffe_id == EDGE
    assert token.exists()
    await off_loop(edge.issue_to, public, EDGE, dns=("cluster.example.org",))
    assert len(world.requesters()) == 2, "the second time it was renewed"


async def test_a_pod_token_is_not_sent_to_an_authority_that_the_anchors_do_not_certify(
    world: World, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    foreign = TestPki(tmp_path / "other")
    anchors = (foreign.directory(WORKER) / "ca.pem").read_bytes()
    token = world.api.vouch("tm-0", 1)
    for pem in (anchors, b"", b"x"):
        with pytest.raises(CaUnavailable):
            await off_loop(enrol_attested, tmp_path / "out", world.address.enrolment, pem, "kubernetes", token, WORKER)
    assert world.api.asked == []


async def test_an_authority_without_attestors_refuses_attestation_with_that_reason(
    pki: TestPki, tmp_path: Path
) -> None:
    async with online_ca(pki.home, pki.config, CaConfig()) as address:
        anchors = (pki.directory(WORKER) / "ca.pem").read_bytes()
        with pytest.raises(EnrolmentRefused, match="no such attestor"):
            await off_loop(
                enrol_attested, tmp_path / "out", address.enrolment, anchors, "kubernetes", pod_token("x"), WORKER
            )


async def test_the_trust_anchors_are_published_to_their_config_map_and_restored_there(
    pki: TestPki, api: ReviewingApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attesting, "PUBLISH_SECONDS", 0.05)
    config = PodAttestationConfig(api=api.url, account=str(api.account), trust_config_map="trust")
    api.config_map = {"kind": "ConfigMap", "metadata": {"name": "trust", "resourceVersion": "7"}, "data": {"x": "y"}}

    def anchors() -> str:
        assert api.config_map is not None
        return str(api.config_map["data"].get("ca.pem", ""))

    async with online_ca(pki.home, pki.config, CaConfig(kubernetes=config)):
        await until(anchors, "nothing was published")
        assert anchors().startswith("-----BEGIN CERTIFICATE-----")
        assert api.config_map["data"]["x"] == "y"
        assert api.config_map["data"]["crl.pem"].startswith("-----BEGIN X509 CRL-----")
        api.config_map["data"]["ca.pem"] = "somebody else's"
        await until(lambda: anchors().startswith("-----BEGIN"), "it was not put right")


async def test_the_authority_does_not_start_without_a_service_account(pki: TestPki, tmp_path: Path) -> None:
    config = PodAttestationConfig(api="https://127.0.0.1:1", account=str(tmp_path / "none"))
    with pytest.raises(PkiError, match="anchors of the Kubernetes API"):
        async with online_ca(pki.home, pki.config, CaConfig(kubernetes=config)):
            pytest.fail("it runs")
