"""Spark's own channels in a running job: who is admitted, who is refused, and what both ends know.

The driver and the even-numbered executor run OpenSSL's engine (the default here), the odd one the JDK's,
so every case is tried against both.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import Callable
from datetime import timedelta

import psutil
import pytest
from cryptography import x509

from sluice.pki.channels import PeerPolicy
from sluice.pki.spiffe_id import Role, SpiffeId
from tests.hostile import TRUST_DOMAIN, Hostile, TestPki, answer_of, assert_refused
from tests.integration.spark.conftest import Rounds
from tests.integration.spark.small_cluster import HOST, JOB_ID
from tests.processes import command_line, descendants, listening_ports

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

EXECUTOR = SpiffeId.executor(TRUST_DOMAIN, JOB_ID, 7)
JOB = PeerPolicy(TRUST_DOMAIN, {Role.DRIVER, Role.EXECUTOR}, job_id=JOB_ID)
RPC_REQUEST = 3
GARBAGE = b"not a message of Spark's"
HELLO = struct.pack(">QBQI", 8 + 1 + 8 + 4 + len(GARBAGE), RPC_REQUEST, 1, len(GARBAGE)) + GARBAGE
"""A frame of Spark's transport with an RPC request: whoever is let in is answered with a failure."""


def driver_rpc(rounds: Rounds) -> int:
    return int(rounds.job.master.registrations[-1].driver_url.rpartition(":")[2])


def py4j_port(rounds: Rounds) -> int:
    """The port on which the JVM listens for the driver's Python, which is connected to it."""
    connections = rounds.job.processes("python")[0].net_connections("tcp")
    (port,) = listening_ports(rounds.driver_jvm()) & {each.raddr.port for each in connections if each.raddr}
    return port


def driver_blocks(rounds: Rounds) -> int:
    (port,) = listening_ports(rounds.driver_jvm()) - {driver_rpc(rounds), py4j_port(rounds)}
    return port


def blocks_of(rounds: Rounds, executor: int) -> int:
    (port,) = listening_ports(psutil.Process(rounds.job.master.executors[executor].pid))
    return port


def jdk_executor(rounds: Rounds) -> int:
    return blocks_of(rounds, rounds.jdk_executor())


def openssl_executor(rounds: Rounds) -> int:
    return blocks_of(rounds, rounds.openssl_executor())


LISTENERS = [
    pytest.param(driver_rpc, id="driver rpc"),
    pytest.param(driver_blocks, id="driver block manager"),
    pytest.param(jdk_executor, id="executor block manager on jdk"),
    pytest.param(openssl_executor, id="executor block manager on openssl"),
]


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("case", list(Hostile))
async def test_hostile_peer_is_refused(
    rounds: Rounds, pki: TestPki, listener: Callable[[Rounds], int], case: Hostile
) -> None:
    """Each is wrong in one way only, and none gets an answer out of Spark."""
    hostile = pki.hostile(case, pretending=EXECUTOR)
    await assert_refused(HOST, listener(rounds), hostile.client_context(), hello=HELLO)


@pytest.mark.parametrize("listener", LISTENERS)
async def test_right_identity_is_answered(rounds: Rounds, pki: TestPki, listener: Callable[[Rounds], int]) -> None:
    """The counterpart that makes the refusals mean something."""
    context = pki.identity(EXECUTOR).client_context(JOB)
    assert await answer_of(HOST, listener(rounds), context, hello=HELLO) != b""


@pytest.mark.parametrize("listener", LISTENERS)
async def test_right_identity_over_tls12_is_refused(
    rounds: Rounds, pki: TestPki, listener: Callable[[Rounds], int]
) -> None:
    directory = pki.directory(EXECUTOR)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(directory / "chain.pem", directory / "key.pem")
    await assert_refused(HOST, listener(rounds), context, hello=HELLO)


@pytest.mark.parametrize("listener", LISTENERS)
async def test_plaintext_is_refused(rounds: Rounds, listener: Callable[[Rounds], int]) -> None:
    """What comes back, if anything, is a TLS alert (type 21) and nothing of Spark's."""
    answer = await answer_of(HOST, listener(rounds), None, hello=HELLO)
    assert answer[:1] in {b"", b"\x15"}
    assert len(answer) <= 7


@pytest.mark.parametrize("listener", LISTENERS)
async def test_no_session_tickets_are_issued(rounds: Rounds, pki: TestPki, listener: Callable[[Rounds], int]) -> None:
    """A ticket would let a peer come back without its certificate being looked at again."""
    context = pki.identity(EXECUTOR).client_context(JOB)
    reader, writer = await asyncio.open_connection(HOST, listener(rounds), ssl=context)
    writer.write(HELLO)
    assert await reader.read(1)  # tickets would have come before this
    session = writer.get_extra_info("ssl_object").session
    writer.transport.abort()
    assert session is None or not session.has_ticket


async def test_every_connection_is_mutual_tls_within_the_job(rounds: Rounds) -> None:
    await rounds.run()
    evidence = rounds.evidence()
    ours = f"spiffe://{TRUST_DOMAIN}/job/{JOB_ID}/"
    assert all(each.local.startswith(ours) and each.peer.startswith(ours) for each in evidence)
    assert {each.protocol for each in evidence} == {"TLSv1.3"}
    assert {each.cipher for each in evidence} <= {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384"}
    pairs = {(each.local.removeprefix(ours), each.peer.removeprefix(ours), each.direction) for each in evidence}
    assert any(local == "driver" and peer.startswith("executor/") for local, peer, _ in pairs)
    assert any(local.startswith("executor/") and peer == "driver" and way == "dialed" for local, peer, way in pairs)
    assert any(local.startswith("executor/") and peer.startswith("executor/") for local, peer, _ in pairs)


async def test_a_job_listens_on_no_unexpected_port(rounds: Rounds) -> None:
    """Two TLS listeners and py4j's in the driver, one in an executor, none in any Python; all on loopback."""
    assert listening_ports(rounds.driver_jvm()) == {driver_rpc(rounds), driver_blocks(rounds), py4j_port(rounds)}
    for process in rounds.job.processes("python"):
        assert listening_ports(process) == set()
    for executor in rounds.job.master.executors.values():
        jvm = psutil.Process(executor.pid)
        assert len(listening_ports(jvm)) == 1
        for child in descendants(jvm.pid):
            assert listening_ports(child) == set()
    for process in [rounds.driver_jvm(), *(psutil.Process(each.pid) for each in rounds.job.master.executors.values())]:
        assert {each.laddr.ip.removeprefix("::ffff:") for each in process.net_connections("tcp")} <= {HOST, "::1"}


async def test_the_jobs_secret_is_in_no_command_line(rounds: Rounds) -> None:
    secret = rounds.job.master.auth_secret
    agent = psutil.Process(rounds.job.agent.pid)
    executors = [psutil.Process(each.pid) for each in rounds.job.master.executors.values()]
    for process in [agent, *descendants(agent.pid), *executors]:
        assert secret not in " ".join(command_line(process))


async def served_leaf(port: int, context: ssl.SSLContext) -> x509.Certificate:
    """The certificate that a listener presents."""
    _, writer = await asyncio.open_connection(HOST, port, ssl=context)
    encoded = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return x509.load_der_x509_certificate(encoded)


@pytest.mark.parametrize("engine", ["jdk", "openssl"])
async def test_renewed_identity_is_used_without_restart(rounds: Rounds, pki: TestPki, engine: str) -> None:
    """The files are replaced; the listener presents the new certificate, and the job continues."""
    context = pki.identity(EXECUTOR).client_context(JOB)
    number = rounds.jdk_executor() if engine == "jdk" else rounds.openssl_executor()
    port = blocks_of(rounds, number)
    before = await served_leaf(port, context)
    expected = SpiffeId.executor(TRUST_DOMAIN, JOB_ID, number)
    pki.issuer.issue_to(
        rounds.job.master.identity_dir(number),
        expected,
        accept=[f"spiffe://{TRUST_DOMAIN}/job/{JOB_ID}/*"],
        lifetime=timedelta(minutes=30),
    )
    leaf = before
    async with asyncio.timeout(20):
        while leaf.serial_number == before.serial_number:
            leaf = await served_leaf(port, context)
    (uri,) = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(
        x509.UniformResourceIdentifier
    )
    assert uri == str(expected)
    await rounds.run()


async def test_half_replaced_identity_keeps_the_previous_one(rounds: Rounds, pki: TestPki) -> None:
    """A key that does not match the certificate is never used; the job continues with the previous one."""
    context = pki.identity(EXECUTOR).client_context(JOB)
    number = rounds.openssl_executor()
    port = blocks_of(rounds, number)
    key = rounds.job.master.identity_dir(number) / "key.pem"
    right = key.read_bytes()
    before = await served_leaf(port, context)
    key.write_bytes((pki.directory(EXECUTOR) / "key.pem").read_bytes())
    log = rounds.job.directory / f"executor-{number}" / "log"
    try:
        async with asyncio.timeout(20):
            while "the previous one stays" not in log.read_text():
                assert (await served_leaf(port, context)).serial_number == before.serial_number
    finally:
        key.write_bytes(right)
    assert (await served_leaf(port, context)).serial_number == before.serial_number


async def test_a_killed_executor_is_replaced_and_the_job_continues(rounds: Rounds) -> None:
    master = rounds.job.master
    victim = rounds.jdk_executor()
    launched = master.launched
    psutil.Process(master.executors[victim].pid).kill()
    await rounds.job.until(lambda: master.launched > launched)
    result = await rounds.run()
    assert sum(result.values()) == 10_000
    assert [report.executor_id for report in master.exit_reports] == [victim]
    assert not master.exit_reports[0].by_application
    await rounds.job.until(lambda: master.progress.executors_added >= launched + 1)
    assert master.progress.executors_removed == 1
    assert master.progress.shuffle_bytes_read > 0
