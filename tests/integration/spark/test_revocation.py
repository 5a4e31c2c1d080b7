"""A revoked executor against the JVMs of a running job.

Both TLS engines refuse its new connections, and cut off the existing ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from sluice.core.clock import utc_now
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.identities.directory import read_certificates
from sluice.pki.revocation.crl import Reason, Revocation, sign_crl
from sluice.pki.revocation.crl_files import CRL_FILE, install_crls
from sluice.pki.revocation.store import RevocationTarget
from sluice.pki.spiffe_id import SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from sluice.pki.x509.profiles import AuthorityKind
from sluice.runtime.spark.jvm.command import IDENTITY_EXIT_CODE, SparkRuntime
from tests.hostile import TRUST_DOMAIN, TestPki, answer_of, assert_refused
from tests.integration.spark.conftest import Rounds
from tests.integration.spark.small_cluster import HOST, JOB_ID
from tests.integration.spark.test_data_channel import HELLO, JOB, driver_rpc, jdk_executor, openssl_executor
from tests.integration.spark.test_fail_closed import ACCEPT, EXECUTOR, command_for, run
from tests.live_files import paths_below

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

INTERNAL = AuthorityKind.INTERNAL
DEADLINE_SECONDS = 20.0


def driver_directory(rounds: Rounds) -> Path:
    return rounds.job.identity_dir


def executor_directory(rounds: Rounds) -> Path:
    """The identity directory of the executor with OpenSSL's engine."""
    return rounds.job.master.identity_dir(rounds.openssl_executor())


def jdk_executor_directory(rounds: Rounds) -> Path:
    """The identity directory of the executor with the JDK's engine."""
    return rounds.job.master.identity_dir(rounds.jdk_executor())


PROCESSES = [
    pytest.param(driver_rpc, driver_directory, 8, id="driver on the JDK's engine"),
    pytest.param(openssl_executor, executor_directory, 9, id="executor on openssl"),
]


def current_list(pki: TestPki) -> bytes:
    current = pki.issuer.revocations.current(INTERNAL)
    assert current is not None
    return current.pem


def revoke(pki: TestPki, identity: TlsIdentity) -> None:
    leaf = read_certificates(identity.directory / "chain.pem")[0]
    pki.issuer.revocations.revoke(
        INTERNAL, [RevocationTarget.of(leaf, str(identity.spiffe_id))], Reason.CESSATION_OF_OPERATION
    )


async def talk_until_cut_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send requests until the connection is ended; a :class:`TimeoutError` when it never is."""
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                writer.write(HELLO)
                if await reader.read(4096) == b"":
                    return
                await asyncio.sleep(0.05)
    except (ConnectionError, ssl.SSLError):
        return
    finally:
        writer.transport.abort()


@pytest.mark.parametrize(("listener", "directory", "number"), PROCESSES)
async def test_revoked_executor_is_disconnected_and_refused_while_the_job_continues(
    rounds: Rounds,
    pki: TestPki,
    listener: Callable[[Rounds], int],
    directory: Callable[[Rounds], Path],
    number: int,
) -> None:
    port, told = listener(rounds), directory(rounds)
    bad = pki.identity(SpiffeId.executor(TRUST_DOMAIN, JOB_ID, number))
    good = pki.identity(SpiffeId.executor(TRUST_DOMAIN, JOB_ID, number + 10))
    reader, writer = await asyncio.open_connection(HOST, port, ssl=bad.client_context(JOB))
    writer.write(HELLO)
    assert await reader.read(4096) != b""
    revoke(pki, bad)
    assert install_crls(told, current_list(pki), utc_now())
    await talk_until_cut_off(reader, writer)
    await assert_refused(HOST, port, bad.client_context(JOB), hello=HELLO)
    # What is bad changes nothing: neither who is refused nor who is not.
    (told / CRL_FILE).write_bytes(b"garbage")
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not re.search(f"revocation lists in {told}(-of-job)?: not taken", said(rounds)):
                await assert_refused(HOST, port, bad.client_context(JOB), hello=HELLO)
    finally:
        install_crls(told, current_list(pki), utc_now())
    await assert_refused(HOST, port, bad.client_context(JOB), hello=HELLO)
    assert await answer_of(HOST, port, good.client_context(JOB), hello=HELLO) != b""
    await rounds.run()


IDLE = [
    pytest.param(driver_rpc, driver_directory, 28, id="driver"),
    pytest.param(jdk_executor, jdk_executor_directory, 29, id="executor on jdk"),
    pytest.param(openssl_executor, executor_directory, 30, id="executor on openssl"),
]


@pytest.mark.parametrize(("listener", "directory", "number"), IDLE)
async def test_only_the_idle_connection_of_a_revoked_executor_is_closed(
    rounds: Rounds,
    pki: TestPki,
    listener: Callable[[Rounds], int],
    directory: Callable[[Rounds], Path],
    number: int,
) -> None:
    """After the revocation nothing is sent on either connection until one of them has been closed."""
    port = listener(rounds)
    bad = pki.identity(SpiffeId.executor(TRUST_DOMAIN, JOB_ID, number))
    good = pki.identity(SpiffeId.executor(TRUST_DOMAIN, JOB_ID, number + 10))
    reader, writer = await asyncio.open_connection(HOST, port, ssl=bad.client_context(JOB))
    kept_reader, kept = await asyncio.open_connection(HOST, port, ssl=good.client_context(JOB))
    for each, other in ((writer, reader), (kept, kept_reader)):
        each.write(HELLO)
        assert await other.read(65536) != b""
    revoke(pki, bad)
    assert install_crls(directory(rounds), current_list(pki), utc_now())
    async with asyncio.timeout(DEADLINE_SECONDS):
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            assert await reader.read() == b""
    kept.write(HELLO)
    assert await kept_reader.read(65536) != b""
    for each in (writer, kept):
        each.transport.abort()
    await rounds.run()


def said(rounds: Rounds) -> str:
    """Everything that the JVMs of the job have logged."""
    logs = [path for path in paths_below(rounds.job.directory) if path.is_file() and "log" in path.name]
    return "".join(path.read_text(errors="replace") for path in logs)


def signed(pki: TestPki, serial: int = 1, *, kind: AuthorityKind = INTERNAL, age: timedelta = timedelta(0)) -> bytes:
    """A CRL that the PKI itself does not know."""
    authority = AuthorityStore(pki.home.pki).load(kind)
    now = utc_now() - age
    revocation = Revocation(f"{serial:x}", now, Reason.KEY_COMPROMISE)
    return sign_crl(authority, [revocation], number=1, now=now, lifetime=timedelta(days=1))


BAD: dict[str, tuple[Callable[[TestPki], bytes], str]] = {
    "empty": (lambda _pki: b"", "0 revocation lists"),
    "another authority": (lambda pki: signed(pki, kind=AuthorityKind.EDGE), "not signed by a trusted authority"),
    "expired": (lambda pki: signed(pki, age=timedelta(days=2)), "expired at"),
}


@pytest.mark.parametrize("kind", BAD)
async def test_process_without_a_usable_crl_does_not_start(
    kind: str, spark: SparkRuntime, pki: TestPki, tmp_path: Path
) -> None:
    make, said_of_it = BAD[kind]
    identity = pki.directory(EXECUTOR, accept=ACCEPT)
    (identity / CRL_FILE).write_bytes(make(pki))
    code, log = await run(command_for(spark, identity, tmp_path, f"spark://x@{HOST}:9"), tmp_path)
    assert code == IDENTITY_EXIT_CODE
    assert "no usable revocation list" in log
    assert said_of_it in log
    assert "Started daemon" not in log


async def test_executor_sends_nothing_to_a_revoked_driver(spark: SparkRuntime, pki: TestPki, tmp_path: Path) -> None:
    """The other direction: the driver's certificate is genuine, but it is on the CRL."""
    driver = pki.identity(SpiffeId.driver(TRUST_DOMAIN, JOB_ID))
    heard: list[bytes] = []
    failures: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # In TLS 1.3 a server is done before the client's judgement reaches it.
        try:
            await writer.start_tls(driver.server_context(JOB))
            heard.append(await reader.read(1))
        except (ssl.SSLError, ConnectionError) as error:
            failures.append(str(error))
        finally:
            writer.close()

    server = await asyncio.start_server(serve, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    identity = pki.directory(EXECUTOR, accept=ACCEPT)
    leaf = read_certificates(driver.directory / "chain.pem")[0]
    (identity / CRL_FILE).write_bytes(signed(pki, leaf.serial_number))
    url = f"spark://CoarseGrainedScheduler@{HOST}:{port}"
    code, log = await run(command_for(spark, identity, tmp_path, url), tmp_path)
    server.close()
    assert code not in {0, IDENTITY_EXIT_CODE}
    assert [data for data in heard if data] == []
    assert heard or failures
    assert "was revoked at" in log
