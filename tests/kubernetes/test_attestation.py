"""Pods enrol with tokens that a real API server has bound to them and reviews."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sluice.pki.attestation.config import PodAttestationConfig, PodIdentity
from sluice.pki.ca.address import CaAddress
from sluice.pki.ca.config import CaConfig
from sluice.pki.ca.process import online_ca
from sluice.pki.enrolment.client import enrol_attested, renew
from sluice.pki.enrolment.enrolling_issuer import EnrollingIssuer
from sluice.pki.enrolment.pod_token_file import PodTokenFile
from sluice.pki.errors import AttestationUnavailable, EnrolmentRefused
from sluice.pki.identities.directory import read_identity
from sluice.pki.ledger.file import ledger_path, read_ledger
from sluice.pki.spiffe_id import Role, SpiffeId
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.kubernetes.api_server import NAMESPACE, ApiServer

AUDIENCE = f"spiffe://{TRUST_DOMAIN}/ca"
AUTHORITY = "sluice-ca"


@dataclass
class World:
    """An authority with its own service account, and pods."""

    server: ApiServer
    pki: TestPki
    address: CaAddress
    tmp: Path
    trust: str

    async def call(self, method: str, path: str, content: object = None) -> tuple[int, dict[str, Any]]:
        """Send a request as the administrator."""
        return await asyncio.to_thread(self.server.call, method, path, content)

    async def pod(self, name: str, account: str = "workers", namespace: str = NAMESPACE) -> str:
        """Create a pod that counts as running; returns its uid."""
        await self.account(account, namespace)
        status, made = await self.call(
            "POST",
            f"/api/v1/namespaces/{namespace}/pods",
            {
                "metadata": {"name": name},
                "spec": {
                    "serviceAccountName": account,
                    "nodeName": "nowhere",
                    "terminationGracePeriodSeconds": 0,
                    "containers": [{"name": "c", "image": "registry.invalid/x:1"}],
                },
            },
        )
        assert status == 201, made
        return str(made["metadata"]["uid"])

    async def account(self, name: str, namespace: str = NAMESPACE) -> None:
        """Create a service account if it does not exist."""
        made, _ = await self.call(
            "POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}}
        )
        assert made in {201, 409}

    async def gone(self, name: str) -> None:
        """Delete a pod at once, and wait until it is gone."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}?gracePeriodSeconds=0"
        assert (await self.call("DELETE", path))[0] == 200
        async with asyncio.timeout(30):
            while (await self.call("GET", path.partition("?")[0]))[0] != 404:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    async def token(
        self,
        pod: str = "",
        uid: str = "",
        *,
        account: str = "workers",
        namespace: str = NAMESPACE,
        audience: str = AUDIENCE,
        seconds: int = 600,
    ) -> str:
        """Request a token as the kubelet does; without ``pod`` the token is bound to nothing."""
        spec: dict[str, Any] = {"audiences": [audience], "expirationSeconds": seconds}
        if pod:
            spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": uid}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        status, made = await self.call("POST", path, {"spec": spec})
        assert status == 201, made
        return str(made["status"]["token"])

    async def enrol(self, token: str, pod: str) -> Path:
        """Enrol as the pod would; returns the directory of the new identity."""
        out = self.tmp / f"out-{secrets.token_hex(4)}"
        anchors = (self.pki.directory(SpiffeId.process(TRUST_DOMAIN, Role.AUTH, "any")) / "ca.pem").read_bytes()
        spiffe_id = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, pod)
        await asyncio.to_thread(enrol_attested, out, self.address.enrolment, anchors, "kubernetes", token, spiffe_id)
        return out


async def allow_reviews(server: ApiServer, *, allowed: bool) -> None:
    """Allow or forbid the authority's service account to create TokenReviews."""
    group = "/apis/rbac.authorization.k8s.io/v1"
    rules = [{"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]}]
    binding = {
        "metadata": {"name": AUTHORITY},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": AUTHORITY},
        "subjects": [{"kind": "ServiceAccount", "name": AUTHORITY, "namespace": NAMESPACE}],
    }
    role = {"metadata": {"name": AUTHORITY}, "rules": rules}
    if allowed:
        await asyncio.to_thread(server.call, "POST", f"{group}/clusterroles", role)
        await asyncio.to_thread(server.call, "POST", f"{group}/clusterrolebindings", binding)
    else:
        await asyncio.to_thread(server.call, "DELETE", f"{group}/clusterrolebindings/{AUTHORITY}")


@pytest.fixture
async def world(server: ApiServer, tmp_path: Path) -> AsyncIterator[World]:
    """An online authority that enrols pods of service account ``workers`` as TaskManagers."""
    await allow_reviews(server, allowed=True)
    pki = TestPki(tmp_path)
    rules = (PodIdentity(namespace=NAMESPACE, service_account="workers", role="taskmanager"),)
    name = "trust-" + secrets.token_hex(4)
    account = server.account(tmp_path / "account", "")
    config = PodAttestationConfig(api=server.url, account=str(account), identities=rules, trust_config_map=name)
    world = World(server, pki, CaAddress(name="ca-1", mutual=("", 1), enrolment=("", 1), pid=1), tmp_path, name)
    await world.account(AUTHORITY)
    (account / "token").write_text(
        await world.token(account=AUTHORITY, audience="https://kubernetes.default.svc", seconds=3600)
    )
    configmaps = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
    assert (await world.call("POST", configmaps, {"metadata": {"name": name}}))[0] == 201
    user = f"system:serviceaccount:{NAMESPACE}:{AUTHORITY}"
    rights = [{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [name], "verbs": ["get", "update"]}]
    await asyncio.to_thread(server.allow, name, user, rights)
    async with online_ca(pki.home, pki.config, CaConfig(kubernetes=config)) as address:
        world.address = address
        yield world


def enrolments(world: World) -> list[str]:
    """The requesters of all enrolments in the ledger."""
    return [each.requester for each in read_ledger(ledger_path(world.pki.home.pki)) if each.kind == "enrolment"]


async def test_a_pod_enrols_and_is_superseded_by_the_next_pod_of_its_name(world: World) -> None:
    name = f"tm-{secrets.token_hex(4)}"
    uid = await world.pod(name)
    token = await world.token(name, uid)
    out = await world.enrol(token, name)
    assert read_identity(out)[0].spiffe_id.name == name
    await asyncio.to_thread(renew, out, world.address.mutual)
    await world.gone(name)
    second = await world.pod(name)
    assert second != uid
    await world.enrol(await world.token(name, second), name)
    assert enrolments(world) == [f"pod:{NAMESPACE}/workers/{name}/{each}" for each in (uid, second)]
    with pytest.raises(EnrolmentRefused):
        await world.enrol(token, name)  # whether the API server remembers it or not


async def test_the_token_of_a_deleted_pod_is_refused_by_the_api_server(world: World) -> None:
    name = f"tm-{secrets.token_hex(4)}"
    token = await world.token(name, await world.pod(name))
    await world.gone(name)
    with pytest.raises(EnrolmentRefused, match="does not accept"):
        await world.enrol(token, name)
    assert enrolments(world) == []


@pytest.mark.parametrize("case", ["wrong audience", "no pod", "another account", "another namespace", "altered"])
async def test_a_token_of_another_audience_account_or_namespace_or_an_altered_one_is_refused(
    case: str, world: World
) -> None:
    name = f"tm-{secrets.token_hex(4)}"
    namespace = account = ""
    if case == "another namespace":
        namespace = f"n-{secrets.token_hex(4)}"
        assert (await world.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}}))[0] == 201
    if case == "another account":
        account = "strangers"
    where: dict[str, Any] = {"account": account or "workers", "namespace": namespace or NAMESPACE}
    uid = await world.pod(name, **where)
    audience = "https://kubernetes.default.svc" if case == "wrong audience" else AUDIENCE
    token = await world.token("" if case == "no pod" else name, uid, audience=audience, **where)
    if case == "altered":
        head, body, signature = token.split(".")
        token = f"{head}.{body}.{signature[:-8]}AAAAAAAA"
    with pytest.raises(EnrolmentRefused):
        await world.enrol(token, name)
    assert enrolments(world) == []


async def test_an_authority_without_the_right_to_review_tokens_admits_nobody(world: World) -> None:
    name = f"tm-{secrets.token_hex(4)}"
    token = await world.token(name, await world.pod(name))
    await allow_reviews(world.server, allowed=False)
    with pytest.raises(AttestationUnavailable, match="status 403"):
        await world.enrol(token, name)
    await allow_reviews(world.server, allowed=True)
    async with asyncio.timeout(60):
        while True:
            try:
                await world.enrol(token, name)
            except AttestationUnavailable:
                await asyncio.sleep(0.2)
            else:
                break


async def test_a_pod_enrols_with_the_trust_anchors_of_the_config_map(world: World) -> None:
    """As the kubelet would mount it: with the ConfigMap and its token a process needs nothing else."""
    name = f"tm-{secrets.token_hex(4)}"
    uid = await world.pod(name)
    token, anchors = world.tmp / "token", world.tmp / "ca.pem"
    token.write_text(await world.token(name, uid))
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{world.trust}"
    async with asyncio.timeout(60):
        while "ca.pem" not in ((await world.call("GET", path))[1].get("data") or {}):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    anchors.write_text((await world.call("GET", path))[1]["data"]["ca.pem"])
    spiffe_id = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, name)
    issuer = EnrollingIssuer(lambda: (world.address,), {spiffe_id: PodTokenFile(token, anchors)})
    out = world.tmp / "out"
    await asyncio.to_thread(issuer.issue_to, out, spiffe_id)
    assert read_identity(out)[0].spiffe_id == spiffe_id
