"""Keeping the identities of one process fresh against an authority on another machine, and its trust up to date.

Certificates: enrolled with a join token when there is none, renewed at half-life, or at once when their issuer is no
longer the one that signs (:mod:`pki.agent.keeper` has the decisions). Trust: asked for in a long poll, so that a
revocation is here a second after it is known there; anchors are installed before lists, in the directories of this
process and in those of jobs below the same home. Whatever fails, what is there and good stays.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pki.agent.board import Board
from pki.agent.keeper import Keeper, keep_forever
from pki.agent.policy import ManagedIdentity
from pki.agent.schedule import retry_at
from pki.ca.errors import CaUnavailable, RateLimited
from pki.ca.member import Locate, usable
from pki.ca.protocol import TrustAnswer, TrustSide
from pki.ca.trust_client import fetch_trust
from pki.ca.trust_push import TrustBundle, TrustPusher
from pki.errors import PkiError
from pki.home import Home
from pki.identity_files import IdentityMaterial
from pki.issuer import Clock, DirectoryIssuer, utc_now
from pki.profiles import AuthorityKind
from pki.tls import TlsIdentity
from pki.verify import was_issued_by

_LOG = logging.getLogger(__name__)
_SYSTEM_RANDOM = random.SystemRandom()

POLL_SECONDS = 1.0
"""How often directories are looked at, and it is judged what is due."""
JOIN_SECONDS = 120.0
"""How long a process waits at its start for an authority that cannot be reached."""
LONGEST_PAUSE = dt.timedelta(seconds=5)
"""Between two questions about trust while the authority is away: a revocation is urgent."""
SHORTEST_PAUSE_SECONDS = 0.2
"""Between two answered questions, whatever the authority says."""


@dataclass(frozen=True, slots=True)
class Kept:
    """An identity to keep, who certifies it, and of which side it is."""

    identity: ManagedIdentity
    issuer: DirectoryIssuer
    side: AuthorityKind = AuthorityKind.INTERNAL


@dataclass(frozen=True, slots=True)
class Trust:
    """What the authority has said, checked."""

    version: str = ""
    sides: tuple[tuple[AuthorityKind, TrustBundle], ...] = ()

    @classmethod
    def of(cls, answer: TrustAnswer) -> Trust:
        """Raises :class:`StoreError` or :class:`CrlRejected` when a side is not what it should be."""
        given = ((AuthorityKind.INTERNAL, answer.internal), (AuthorityKind.EDGE, answer.edge))
        return cls(answer.version, tuple((kind, _bundle(side)) for kind, side in given if side is not None))

    def outdated(self, kind: AuthorityKind, material: IdentityMaterial) -> str:
        """Why ``material`` is to be renewed whatever its age; empty: nothing says so."""
        for side, bundle in self.sides:
            if side is kind and not was_issued_by(material.leaf, bundle.anchors[0]):
                return f"the {kind} authority signs with another key now"
        return ""


class CaKeeper:
    """Keeps ``kept`` fresh. Use: ``start`` once, then ``run`` until cancelled, then ``close``.

    Args:
        home: where job directories are, which get trust and lists too.
        locate: where the authority is now.
        kept: at least one internal identity; the first one asks for trust.
        clock: the present, in UTC.
        draw: a random number in [0, 1).
        join_seconds: how long ``start`` waits for an authority that cannot be reached.
    """

    def __init__(
        self,
        home: Home,
        locate: Locate,
        kept: Sequence[Kept],
        *,
        clock: Clock = utc_now,
        draw: Callable[[], float] = _SYSTEM_RANDOM.random,
        join_seconds: float = JOIN_SECONDS,
    ) -> None:
        self._locate = locate
        self._kept = tuple(kept)
        self._clock = clock
        self._draw = draw
        self._join_seconds = join_seconds
        self._threads = ThreadPoolExecutor(max(1, len(self._kept)), thread_name_prefix="renewal")
        self._board = Board(clock)
        self._pusher = TrustPusher(home, [each.identity.directory for each in self._kept])
        self._complaints: list[str] = []
        self._asks = next(each.identity for each in self._kept if each.side is AuthorityKind.INTERNAL)
        self._asking: TlsIdentity | None = None
        self.trust = Trust()
        """The latest that was installed."""
        self.keepers = [self._keeper(each) for each in self._kept]

    async def start(self) -> None:
        """Return once there is a usable identity everywhere, enrolling where there is none.

        Raises:
            EnrolmentRefused: an identity is missing, and its join token is missing or not good.
            CertificateRejected: the authority does not certify this identity.
            CaUnavailable: the authority could not be reached in time.
        """
        deadline = asyncio.get_running_loop().time() + self._join_seconds
        for each in self._kept:
            failures = 0
            while usable(each.identity.directory, each.identity.spiffe_id, self._clock()) is None:
                try:
                    await self._issue(each)
                except (CaUnavailable, RateLimited) as error:
                    failures += 1
                    pause = self._pause(failures, error)
                    if asyncio.get_running_loop().time() + pause > deadline:
                        raise
                    _LOG.warning("%s waits to enrol: %s", each.identity.spiffe_id, error)
                    await asyncio.sleep(pause)

    async def run(self) -> None:
        """Keep everything fresh until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for keeper in self.keepers:
                tasks.create_task(keep_forever(keeper, POLL_SECONDS))
            tasks.create_task(self._listen())
            tasks.create_task(self._push_forever())

    async def close(self) -> None:
        """Let go of the threads; what they are about goes on to its end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def ask(self) -> bool:
        """Ask once, wait for the answer, install it; returns whether anything was new. Raises :class:`PkiError`."""
        if self._asking is None:
            self._asking = TlsIdentity(self._asks.directory, clock=self._clock)
        answer = await fetch_trust(self._asking, self._locate().mutual, self.trust.version)
        if answer.internal is None or answer.version == self.trust.version:
            return False
        trust = Trust.of(answer)
        self._pusher.take([bundle for _, bundle in trust.sides])
        await self.push()
        self.trust = trust
        return True

    async def push(self) -> None:
        """Bring what is known to directories that are new or were changed."""
        changed, failed = await asyncio.get_running_loop().run_in_executor(None, self._pusher.push, self._clock())
        if changed:
            _LOG.info("trust and revocation lists brought to %d directories", len(changed))
        for complaint in failed:
            if complaint not in self._complaints:
                _LOG.error("trust and revocation lists do not get into %s", complaint)
        self._complaints = failed

    def _keeper(self, kept: Kept) -> Keeper:
        return Keeper(
            kept.identity,
            kept.issuer,
            self._board,
            self._clock,
            self._draw,
            threads=self._threads,
            outdated=lambda material: self.trust.outdated(kept.side, material),
        )

    async def _issue(self, kept: Kept) -> None:
        identity = kept.identity

        def issue() -> None:
            kept.issuer.issue_to(
                identity.directory, identity.spiffe_id, dns=identity.dns, ips=identity.ips, accept=identity.accept
            )

        await asyncio.get_running_loop().run_in_executor(self._threads, issue)
        _LOG.info("%s joined", identity.spiffe_id)

    async def _listen(self) -> None:
        failures = 0
        while True:
            try:
                await self.ask()
            except (PkiError, OSError) as error:
                failures += 1
                if failures == 1:
                    _LOG.warning("the news of the authority do not arrive, what is known stays: %s", error)
                await asyncio.sleep(self._pause(failures, error))
            else:
                if failures:
                    _LOG.info("the news of the authority arrive again")
                failures = 0
                await asyncio.sleep(SHORTEST_PAUSE_SECONDS)

    async def _push_forever(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            await self.push()

    def _pause(self, failures: int, error: Exception) -> float:
        now = self._clock()
        pause = (retry_at(now, failures, self._draw(), longest=LONGEST_PAUSE) - now).total_seconds()
        return max(pause, error.retry_after) if isinstance(error, RateLimited) else pause


def _bundle(side: TrustSide) -> TrustBundle:
    return TrustBundle.parse(side.ca_pem.encode(), side.crl_pem.encode())
