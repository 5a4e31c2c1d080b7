"""Job pods on Spark's own Kubernetes manager each get an identity by attestation, renewed and revoked."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sluice.pki.agent.policy import ManagedIdentity
from sluice.pki.attestation.config import PodAttestationConfig, PodJobs
from sluice.pki.attestation.job_pods import driver_pod_name, executor_pod_prefix, new_pod_job_id
from sluice.pki.ca import attesting
from sluice.pki.ca.address import CaAddress
from sluice.pki.ca.config import CaConfig
from sluice.pki.ca.process import online_ca
from sluice.pki.channels import Channel, client_policy, server_policy
from sluice.pki.enrolment.client import renew
from sluice.pki.enrolment.enrolling_issuer import AttestingIssuer
from sluice.pki.enrolment.mounted_trust import MountedTrust
from sluice.pki.enrolment.pod_token_file import PodTokenFile
from sluice.pki.enrolment.renewal_service import EnrolledIdentity, RenewalService
from sluice.pki.errors import CaUnavailable, EnrolmentRefused
from sluice.pki.identities.directory import read_identity
from sluice.pki.ledger.file import ledger_path, read_ledger
from sluice.pki.spiffe_id import SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from sluice.pki.tls.listener import MutualTlsListener
from tests.hostile import TRUST_DOMAIN, TestPki, assert_refused
from tests.integration.pki.attestation.reviewing_api_server import ReviewingApiServer
from tests.waiting import until

COMMAND = (sys.executable, "-m", "sluice.cli.main")
JOBS = PodJobs(namespace="sluice", driver="spark", executor="spark-executor", trust_config_map="trust")


@dataclass
class World:
    """An online authority that asks a stand-in for the Kubernetes API server, and the files of pods."""

    pki: TestPki
    api: ReviewingApiServer
    address: CaAddress
    tmp: Path
    job: str

    def pod(self, number: int | None = None, *, named: str = "", uid: int = 1) -> Pod:
        """Create the pod of executor ``number``, or of the driver, as the kubelet starts it."""
        name = driver_pod_name(self.job) if number is None else f"{executor_pod_prefix(self.job)}-exec-{number}"
        token = self.api.vouch(name, uid, account=JOBS.driver if number is None else JOBS.executor)
        root = self.tmp / (named or name)
        root.mkdir()
        (root / "token").write_text(token)
        spiffe_id = (
            SpiffeId.driver(TRUST_DOMAIN, self.job)
            if number is None
            else SpiffeId.executor(TRUST_DOMAIN, self.job, number)
        )
        pod = Pod(self, root, spiffe_id)
        pod.mount()
        return pod

    def requesters(self, spiffe_id: SpiffeId) -> list[str]:
        """Return the requesters to whom the ledger says ``spiffe_id`` was issued."""
        found = read_ledger(ledger_path(self.pki.home.pki))
        return [each.requester for each in found if each.event == "issued" and each.identity == str(spiffe_id)]


@dataclass
class Pod:
    """A pod: its token, its mounted files, and the identity it gets."""

    world: World
    root: Path
    spiffe_id: SpiffeId

    def mount(self) -> None:
        """Write the ConfigMap to the pod's files, as the kubelet does some time after a change."""
        assert self.world.api.config_map is not None
        for key, text in self.world.api.config_map["data"].items():
            (self.root / key).write_text(text)

    @property
    def directory(self) -> Path:
        return self.root / "keys" / "identity"

    def issuer_of(self, spiffe_id: SpiffeId) -> AttestingIssuer:
        """Return an issuer that presents this pod's token for any identity."""
        credential = PodTokenFile(self.root / "token", self.root / "ca.pem")
        return AttestingIssuer(lambda: (self.world.address,), {spiffe_id: credential})

    @property
    def issuer(self) -> AttestingIssuer:
        return self.issuer_of(self.spiffe_id)

    @property
    def trust(self) -> MountedTrust:
        return MountedTrust(self.root / "ca.pem", self.root / "crl.pem", self.directory)

    def service(self) -> RenewalService[MountedTrust]:
        accept = (f"spiffe://{TRUST_DOMAIN}/job/{self.world.job}/*",)
        kept = EnrolledIdentity(ManagedIdentity(self.spiffe_id, self.directory, accept=accept), self.issuer)
        return RenewalService([kept], self.trust, join_seconds=20)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[TlsIdentity]:
        """Keep the pod's identity, as ``sluice run job-pod`` does, and provide it."""
        service = self.service()
        await service.start()
        task = asyncio.create_task(service.run())
        try:
            yield TlsIdentity(self.directory)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await service.close()


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(attesting, "PUBLISH_SECONDS", 0.1)
    pki, api = TestPki(tmp_path / "pki"), ReviewingApiServer(tmp_path)
    await api.start()
    api.config_map = {"kind": "ConfigMap", "metadata": {"name": "trust", "resourceVersion": "7"}, "data": {}}
    config = PodAttestationConfig(api=api.url, account=str(api.account), jobs=(JOBS,))
    async with online_ca(pki.home, pki.config, CaConfig(kubernetes=config)) as address:
        await until(lambda: "crl.pem" in api.config_map["data"], "nothing was published")  # type: ignore[index]
        yield World(pki, api, address, tmp_path, new_pod_job_id("sluice"))
    await api.close()


class Echo(asyncio.Protocol):
    """Sends back what it receives."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


def dialing(identity: TlsIdentity) -> ssl.SSLContext:
    return identity.client_context(server_policy(Channel.DATA, TRUST_DOMAIN))


async def test_each_pod_has_its_own_identity_and_connects_only_within_its_job(world: World) -> None:
    driver, one, two = world.pod(), world.pod(1), world.pod(2)
    async with driver.running() as listening, one.running() as first, two.running() as second:
        keys = {(each.directory / "key.pem").read_bytes() for each in (driver, one, two)}
        assert len(keys) == 3
        assert (one.directory / "key.pem").stat().st_mode & 0o777 == 0o600
        policy = client_policy(Channel.DATA, TRUST_DOMAIN, job_id=world.job)
        listener = MutualTlsListener(listening, Channel.DATA, policy, Echo)
        host, port = await listener.start("127.0.0.1", 0)
        try:
            for peer in (first, second):
                reader, writer = await asyncio.open_connection(host, port, ssl=dialing(peer))
                writer.write(b"x")
                assert await reader.readexactly(1) == b"x"
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
            stranger = SpiffeId.executor(TRUST_DOMAIN, new_pod_job_id("sluice"), 1)
            await assert_refused(host, port, dialing(world.pki.identity(stranger)))
        finally:
            await listener.close()


async def test_a_revoked_executor_is_refused_once_the_crl_is_mounted(world: World) -> None:
    driver, executor = world.pod(), world.pod(1)
    async with driver.running() as listening, executor.running() as peer:
        policy = client_policy(Channel.DATA, TRUST_DOMAIN, job_id=world.job)
        listener = MutualTlsListener(listening, Channel.DATA, policy, Echo)
        host, port = await listener.start("127.0.0.1", 0)
        try:
            reader, writer = await asyncio.open_connection(host, port, ssl=dialing(peer))
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
            assert world.api.config_map is not None
            before = world.api.config_map["data"]["crl.pem"]
            revoke = [*COMMAND, "pki", "revoke", str(executor.spiffe_id), "--reason", "key-compromise"]
            await asyncio.to_thread(subprocess.run, [*revoke, "--home", str(world.pki.home.root)], check=True)
            await until(lambda: world.api.config_map["data"]["crl.pem"] != before, "no new list")  # type: ignore[index]
            driver.mount()
            await until(reader.at_eof, "the open connection of a revoked peer went on")
            with contextlib.suppress(OSError):
                writer.close()
                await writer.wait_closed()
            await assert_refused(host, port, dialing(peer))
        finally:
            await listener.close()
    with pytest.raises(Exception, match="revoked"):
        await asyncio.to_thread(executor.issuer.issue_to, executor.directory, executor.spiffe_id)


async def test_a_pod_identity_is_renewed_by_attestation_only_while_the_pod_exists(world: World) -> None:
    executor = world.pod(1)
    await asyncio.to_thread(executor.issuer.issue_to, executor.directory, executor.spiffe_id)
    first = read_identity(executor.directory)[0].leaf
    lifetime = first.not_valid_after_utc - first.not_valid_before_utc
    assert lifetime.total_seconds() <= world.pki.config.job_hours * 3600 + world.pki.config.backdate_minutes * 60 + 1
    await asyncio.to_thread(executor.issuer.issue_to, executor.directory, executor.spiffe_id)
    assert read_identity(executor.directory)[0].leaf.public_key() != first.public_key()
    assert len(world.requesters(executor.spiffe_id)) == 2
    assert all(each.startswith("pod:sluice/spark-executor/") for each in world.requesters(executor.spiffe_id))
    world.api.pods.clear()  # it was deleted
    with pytest.raises(EnrolmentRefused, match="does not accept"):
        await asyncio.to_thread(executor.issuer.issue_to, executor.directory, executor.spiffe_id)


async def test_the_certificate_of_a_pod_does_not_authenticate_to_the_ca(world: World) -> None:
    """Neither for a renewal nor for anything else: job code can read the key."""
    executor = world.pod(1)
    await asyncio.to_thread(executor.issuer.issue_to, executor.directory, executor.spiffe_id)
    with pytest.raises(CaUnavailable):
        await asyncio.to_thread(renew, executor.directory, world.address.mutual)


async def test_a_pod_gets_no_identity_but_its_own(world: World) -> None:
    executor, driver = world.pod(1), SpiffeId.driver(TRUST_DOMAIN, world.job)
    for other in (
        driver,
        SpiffeId.executor(TRUST_DOMAIN, world.job, 2),
        SpiffeId.executor(TRUST_DOMAIN, new_pod_job_id("sluice"), 1),
    ):
        with pytest.raises(EnrolmentRefused, match="may not have"):
            await asyncio.to_thread(executor.issuer_of(other).issue_to, executor.directory, other)
    assert not executor.directory.exists()


async def test_a_pod_that_was_superseded_under_its_name_cannot_enrol_again(world: World) -> None:
    """Spark uses each executor number once, but a restarted driver counts from one again."""
    old, new = world.pod(1, uid=1), world.pod(1, named="again", uid=2)
    for pod in (old, new):
        await asyncio.to_thread(pod.issuer.issue_to, pod.directory, pod.spiffe_id)
    with pytest.raises(EnrolmentRefused, match="succeeded"):
        await asyncio.to_thread(old.issuer.issue_to, old.directory, old.spiffe_id)


async def test_damaged_or_foreign_mounted_trust_anchors_are_ignored(world: World, tmp_path: Path) -> None:
    executor = world.pod(1)
    await asyncio.to_thread(executor.issuer.issue_to, executor.directory, executor.spiffe_id)
    trusted = (executor.directory / "ca.pem").read_bytes()
    foreign = TestPki(tmp_path / "foreign").directory(executor.spiffe_id) / "ca.pem"
    for content in (b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", foreign.read_bytes()):
        (executor.root / "ca.pem").write_bytes(content)
        assert executor.trust.look() is False
        assert (executor.directory / "ca.pem").read_bytes() == trusted
    (executor.root / "ca.pem").unlink()
    assert executor.trust.look() is False
    (executor.root / "ca.pem").mkdir()
    assert executor.trust.look() is False
    assert (executor.directory / "ca.pem").read_bytes() == trusted


@pytest.mark.spark
async def test_the_pod_command_enrols_runs_spark_and_returns_its_exit_code(world: World) -> None:
    pod = world.pod()
    (host, port), (_, enrolment) = world.address.mutual, world.address.enrolment
    plugin = pod.root / "keys" / "sluice-spark.jar"

    async def run(arguments: list[str], name: str) -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(
            *COMMAND, "run", "job-pod", "--trust-domain", TRUST_DOMAIN, "--identity-dir", str(pod.directory),
            "--plugin", str(plugin), "--pod-token-file", str(pod.root / "token"), "--ca-anchors",
            str(pod.root / "ca.pem"), "--ca", f"{host}:{port},{enrolment}", "--", *arguments,
            env={
                **os.environ, "SLUICE_POD_NAMESPACE": "sluice", "SLUICE_POD_NAME": name,
                "SPARK_DRIVER_BIND_ADDRESS": "127.0.0.1",
            },
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        output, _ = await process.communicate()
        return process.returncode, output.decode()

    code, output = await run(["driver", "--version"], driver_pod_name(world.job))
    assert (code, "version 4" in output) == (0, True), output
    assert read_identity(pod.directory)[0].spiffe_id == pod.spiffe_id
    assert plugin.is_symlink()
    assert plugin.is_file()
    failed, output = await run(["driver", "--no-such-option"], driver_pod_name(world.job))
    assert failed == 1, output
    refused, output = await run(["driver", "--version"], "another-pod")
    assert (refused, "is not of a job" in output) == (2, True), output
