"""A PKI, a correctly configured listener, and helpers to examine listeners."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from sluice.audit.catalogue import CHECKS, by_id
from sluice.audit.check import Check
from sluice.audit.identities import HomeIdentities
from sluice.audit.model import (
    Kind,
    Listener,
    Outcome,
    Report,
)
from sluice.audit.runner import examine
from sluice.audit.subject import Identities, Options, Subject
from sluice.pki.channels import Channel, client_policy
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from sluice.pki.tls.listener import MutualTlsListener
from tests.hostile import TRUST_DOMAIN, TestPki

OPTIONS = Options(timeout=20.0, patience=20.0, listen=0.1, handshake_limit=20.0)
"""Patient, for these servers speak or refuse at once however slow the machine; where nothing may come, not for long."""


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> TestPki:
    """One PKI for the tests of this folder."""
    return TestPki(tmp_path_factory.mktemp("audit-pki"))


@pytest.fixture(scope="session")
def identities(pki: TestPki) -> HomeIdentities:
    """Identities for the audit, issued by the PKI of these tests."""
    return HomeIdentities(pki.home, pki.config)


@pytest.fixture(scope="session")
def server_directory(pki: TestPki) -> Path:
    """An identity directory for a JobManager."""
    directory = pki.home.identity(Role.JOBMANAGER, "jobmanager-1")
    identity = SpiffeId.process(TRUST_DOMAIN, Role.JOBMANAGER, "jobmanager-1")
    pki.issuer.issue_to(directory, identity, dns=["localhost"], ips=["127.0.0.1"])
    return directory


class _Speaking(asyncio.Protocol):
    """Greets every admitted client at once, so that the client need not wait to know it is admitted."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the greeting."""
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"hello")


@pytest.fixture(scope="session")
def honest(server_directory: Path) -> Iterator[tuple[str, int]]:
    """The address of our own listener, configured like the JobManager's RPC listener."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    listener = MutualTlsListener(
        TlsIdentity(server_directory),
        Channel.RPC,
        client_policy(Channel.RPC, TRUST_DOMAIN),
        _Speaking,
        alpn=("h2",),
        handshake_timeout=3.0,
    )
    yield asyncio.run_coroutine_threadsafe(listener.start("127.0.0.1", 0), loop).result(20)
    asyncio.run_coroutine_threadsafe(listener.close(), loop).result(20)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def listener_at(address: tuple[str, int], kind: Kind = Kind.MUTUAL, channel: Channel | None = Channel.RPC) -> Listener:
    """Return a listener as a registry would declare it."""
    return Listener(name="examined", kind=kind, channel=channel, host=address[0], port=address[1])


def audited(
    listener: Listener,
    *,
    checks: Sequence[Check] = CHECKS,
    options: Options = OPTIONS,
    identities: Identities | None = None,
) -> Report:
    """Examine one listener; returns the report."""
    return examine("a test", [Subject(listener, options, identities)], checks=checks)


def only(*ids: str) -> list[Check]:
    """Return only the checks with these ids."""
    return [by_id()[each] for each in ids]


QUICK = [check for check in CHECKS if check.id not in {"TLS-11", "TLS-12", "TLS-17"}]
"""All checks but those that wait for a server to lose its patience: stock servers have none."""


def found(report: Report) -> set[str]:
    """Return the ids of the checks that reported a finding."""
    return {result.check for result in report.results if result.outcome is Outcome.FINDING}
