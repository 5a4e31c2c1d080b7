"""A running agent on a real socket, with its own PKI and a clock that tests can move."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from cryptography import x509

from sluice.core.clock import utc_now
from sluice.pki.agent.policy import IdentityEntry, PolicyFile, resolve
from sluice.pki.agent.process import Agent
from sluice.pki.config import PkiConfig
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.jwt.authority import LocalJwtAuthority
from sluice.pki.revocation.crl import Reason
from sluice.pki.revocation.crl_files import install_crls
from sluice.pki.revocation.store import RevocationStore, RevocationTarget
from sluice.pki.x509.profiles import AuthorityKind

TRUST_DOMAIN = "sluice.local"
BUNDLE = f"spiffe://{TRUST_DOMAIN}"
PAST_HALF_LIFE = dt.timedelta(hours=14)
OWN_UID = os.geteuid()
CALLER_UID = 65534 if OWN_UID == 0 else OWN_UID
"""Who calls from another process: nobody when privileges can be dropped."""
DEADLINE_SECONDS = 20.0


class MovedClock:
    """A clock that returns the current time moved by ``offset``."""

    def __init__(self) -> None:
        self.offset = dt.timedelta(0)

    def __call__(self) -> dt.datetime:
        """Return the moved time."""
        return utc_now() + self.offset


class RunningAgent:
    """An agent that does nothing by itself: the test runs its rounds."""

    def __init__(self, root: Path, *entries: IdentityEntry) -> None:
        self.config = PkiConfig(trust_domain=TRUST_DOMAIN)
        self.pki = root / "pki"
        self.identities = self.pki / "identities"
        self.issuer = LocalIssuer(self.pki, self.config)
        self.issuer.ensure_authorities()
        self.socket = root / "run" / "agent.sock"
        self.clock = MovedClock()
        self.jwt_clock = MovedClock()
        self.policy = resolve(PolicyFile(identity=entries), self.config, self.identities)
        self.jwt = LocalJwtAuthority(self.pki, TRUST_DOMAIN, self.jwt_clock)
        self.agent = Agent(
            self.policy, self.issuer, self.jwt, TRUST_DOMAIN, self.socket, clock=self.clock, draw=lambda: 0.5
        )

    @property
    def address(self) -> str:
        """The socket's address in the form that SPIFFE clients expect."""
        return f"unix:{self.socket}"

    async def rotate(self) -> None:
        """Run one round at a time at which every identity is due for renewal."""
        self.clock.offset = PAST_HALF_LIFE
        try:
            await self.agent.step()
        finally:
            self.clock.offset = dt.timedelta(0)

    def revoke(self, *certificates: x509.Certificate) -> None:
        """Revoke certificates of the internal authority, and install the new CRL in the agent's directories."""
        store = RevocationStore(self.pki, self.config, clock=self.clock)
        store.revoke(AuthorityKind.INTERNAL, [RevocationTarget.of(one) for one in certificates], Reason.SUPERSEDED)
        store.refresh(AuthorityKind.INTERNAL)
        found = store.current(AuthorityKind.INTERNAL)
        assert found is not None
        for identity in self.policy.identities:
            install_crls(identity.directory, found.pem, self.clock())


StartAgent = Callable[..., Awaitable[RunningAgent]]


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory with a short path that every user of the machine can traverse."""
    path = Path(tempfile.mkdtemp(prefix="agent-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def start_agent(open_directory: Path) -> AsyncIterator[StartAgent]:
    """Starts agents and closes them at the end of the test."""
    running: list[RunningAgent] = []

    async def start(*entries: IdentityEntry) -> RunningAgent:
        started = RunningAgent(open_directory, *entries)
        await started.agent.start()
        running.append(started)
        return started

    yield start
    for one in running:
        await one.agent.close()
