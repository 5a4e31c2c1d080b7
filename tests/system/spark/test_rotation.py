"""A running job's authorities are replaced: A, A and B, leaves of B, B alone. No restart, no failure.

The driver and the even-numbered executor use OpenSSL for TLS, the odd-numbered one uses the JDK.
"""

from __future__ import annotations

import datetime as dt
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from sluice.core.clock import utc_now
from sluice.core.files import write_public
from sluice.pki.config import PkiConfig
from sluice.pki.identities.directory import previous_certificates, read_certificates
from sluice.pki.revocation.crl_files import install_crls
from sluice.runtime.spark.jvm.command import SparkRuntime
from tests.hostile import TRUST_DOMAIN, Hostile, HostileIdentity, TestPki, answer_of, assert_refused
from tests.integration.spark.conftest import PIPELINES
from tests.integration.spark.small_cluster import HOST, Work, running_job
from tests.integration.spark.test_data_channel import (
    EXECUTOR,
    HELLO,
    JOB,
    blocks_of,
    driver_blocks,
    driver_rpc,
    py4j_port,
)
from tests.shared_folder import shared_folder
from tests.system.spark.rotating import (
    Rotating,
    Rotation,
    authority_of,
    key_id,
    report,
    report_path,
    until_reported,
)
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def other_pki(tmp_path_factory: pytest.TempPathFactory) -> TestPki:
    """The authorities that take over, with larger keys."""
    config = PkiConfig(trust_domain=TRUST_DOMAIN, key_algorithm="ecdsa-p384")
    return TestPki(tmp_path_factory.mktemp("other-pki"), config)


@pytest.fixture(scope="module")
def rotation(pki: TestPki) -> Rotation:
    """The state of the rotation, which has not begun."""
    return Rotation(pki, (pki,))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rotating(
    pki: TestPki, rotation: Rotation, spark: SparkRuntime, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Rotating]:
    """The running job; the teardown checks that the driver's report is gone when it ends."""
    directory = tmp_path_factory.mktemp("rotating")
    folder = shared_folder(directory)
    work = Work(
        PIPELINES / "dialing.py",
        args=[str(folder)],
        conf={"spark.scheduler.minRegisteredResourcesRatio": "1.0"},
        shared=folder,
    )
    async with running_job(pki, directory / "job", spark, work, issue=rotation.issue) as job:
        rotating = Rotating(job, folder)
        await rotating.run()
        yield rotating
        of_driver = report_path(job.identity_dir)
        assert of_driver.exists()
        (folder / "stop").touch()
        assert (await job.result()).succeeded
    assert not of_driver.exists()


async def test_authorities_are_replaced_without_losing_a_connection(
    rotating: Rotating, rotation: Rotation, pki: TestPki, other_pki: TestPki, tmp_path: Path
) -> None:
    jdk, openssl = rotating.jdk_executor(), rotating.openssl_executor()
    ended_before = len(rotating.job.master.exit_reports)
    await rotating.dial([blocks_of(rotating, jdk), blocks_of(rotating, openssl), driver_blocks(rotating)])
    phases = iter(range(100))

    async def everybody_says(**wanted: object) -> None:
        """Wait for the reports, then check that every listener answers a peer that is accepted now."""
        for directory in rotating.directories():
            await until_reported(directory, **wanted)
        context = rotation.peer(tmp_path / str(next(phases))).client_context(JOB)
        for port in rotating.listeners():
            assert await answer_of(HOST, port, context, hello=HELLO) != b""
        await rotating.dialed_anew()

    # 1. A signs, A is trusted.
    a, b = key_id(authority_of(pki)), key_id(authority_of(other_pki))
    await everybody_says(issuer=a, anchors=[a])
    # 2. A signs, A and B are trusted; half of that is not taken.
    rotation.trusted = (pki, other_pki)
    write_public(rotating.directory_of(jdk) / "ca.pem", rotation.bundle()[:-100])
    await until(lambda: "is incomplete, the previous one stays" in rotating.log_of(jdk))
    await rotating.dialed_anew()
    for directory in rotating.directories():
        rotation.trust(directory)
    await everybody_says(issuer=a, anchors=[a, b])
    # 3. B signs, B and A are trusted: one process after another, so that leaves of both meet.
    rotation.signer, rotation.trusted = other_pki, (other_pki, pki)
    for directory in rotating.directories():
        rotation.reissue(directory)
        await until_reported(directory, issuer=b)
        await rotating.dialed_anew()
    await everybody_says(issuer=b, anchors=[b, a])
    # 4. B alone.
    rotation.trusted = (other_pki,)
    for directory in rotating.directories():
        rotation.trust(directory)
    await everybody_says(issuer=b, anchors=[b])
    await rotating.run()
    assert rotating.tally()["failures"] == []
    assert len(rotating.job.master.exit_reports) == ended_before
    logs = rotating.job.log("driver.jvm.log") + rotating.log_of(jdk) + rotating.log_of(openssl)
    assert "identity in" in logs
    assert "SSLHandshakeException" not in logs
    # 5. Whoever still shows a leaf of A is refused by each process, on either engine.
    late = HostileIdentity(Hostile.FOREIGN_CA, pki.directory(EXECUTOR)).client_context()
    for port in rotating.listeners():
        await assert_refused(HOST, port, late, hello=HELLO)
    # 6. The JDK's engine as client: it dials one that joins now and knows nobody but B. That this one cannot write its
    # report is said once and ends nothing.
    await rotating.dial([])
    rotation.unreportable.add(rotating.job.master.launched + 1)
    joined = await rotating.replace(openssl)
    await rotating.until_dialed(jdk, joined)
    rotation.reissue(rotating.directory_of(joined))
    await until(lambda: "was replaced" in rotating.log_of(joined))
    assert rotating.log_of(joined).count("cannot be written") == 1


async def test_each_process_reports_the_identity_and_crls_that_it_has_in_memory(
    rotating: Rotating, rotation: Rotation
) -> None:
    issuer = key_id(authority_of(rotation.signer))
    places = [path for path in rotating.directories() if report_path(path).is_file()]
    for directory in places:
        install_crls(directory, rotation.revocation_list(1000), utc_now())
        await until_reported(directory, crls=report(directory)["crls"] | {issuer: 1000})
        content = report(directory)
        leaf = read_certificates(directory / "chain.pem")[0]
        (name,) = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(
            x509.UniformResourceIdentifier
        )
        assert content.pop("crls")[issuer] == 1000
        pid = content.pop("pid")
        assert abs(content.pop("started") - psutil.Process(pid).create_time()) <= 1
        assert dt.datetime.fromisoformat(content.pop("loaded_at")).tzinfo is not None
        assert content == {
            "identity": name,
            "program": "driver" if name.endswith("/driver") else "executor",
            "leaf": leaf.fingerprint(hashes.SHA256()).hex(),
            "issuer": issuer,
            "anchors": rotation.key_ids(),
        }
        assert stat.S_IMODE(report_path(directory).stat().st_mode) == 0o600
        assert [path for path in report_path(directory).parent.iterdir() if path.name.startswith(".")] == []


async def test_idle_connection_between_jvms_ends_when_its_certificate_is_revoked(
    rotating: Rotating, rotation: Rotation
) -> None:
    """The executor with the CRL closes idle connections; the job continues with a new certificate."""
    told, other = sorted(rotating.job.master.executors)
    await rotating.until_dialed(told, other)
    directory = rotating.directory_of(other)
    replaced = rotating.log_of(other).count("was replaced")
    rotation.reissue(directory)
    old = [certificate.serial_number for certificate in previous_certificates(directory)]
    await until(lambda: rotating.log_of(other).count("was replaced") > replaced)
    assert rotating.between(told, other)
    install_crls(rotating.directory_of(told), rotation.revocation_list(2000, *old), utc_now())
    await until(lambda: not rotating.between(told, other))
    assert "an idle connection is ended" in rotating.log_of(told)
    await rotating.run()


async def test_closed_connections_are_removed_from_the_drivers_records(rotating: Rotating) -> None:
    """The driver has dialed many times; it keeps only the connections that the kernel knows."""
    await rotating.dial([driver_blocks(rotating)])
    await rotating.dialed_anew()
    await rotating.dial([])
    local = {driver_rpc(rotating), driver_blocks(rotating)}
    remote = {py4j_port(rotating)}

    def of_spark() -> int:
        established = [
            each for each in rotating.driver_jvm().net_connections("tcp") if each.status == psutil.CONN_ESTABLISHED
        ]
        return sum(each.laddr.port in local or each.laddr.port not in remote for each in established)

    await until(lambda: rotating.tally()["open"] == of_spark())
