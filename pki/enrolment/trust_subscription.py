"""Subscribes to the trust anchors and CRLs of a remote authority, and installs them in local directories.

A long poll delivers a revocation within a second. Each request reports what the processes that use this identity have
in memory, and a change of that starts a new request, so that the authority knows their state. Anchors are installed
before CRLs, in the directories of this process and of jobs below the same home. After a failure the current trust
stays.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sluice.core import Clock, Home, PkiError, StoreError, end_tasks, utc_now
from sluice.pki.ca import MAX_TOLD, MAX_TRUST_REQUEST_BYTES, TrustAnswer, TrustRequest, TrustSide
from sluice.pki.enrolment.client import fetch_trust
from sluice.pki.enrolment.failover import Failover, Locate
from sluice.pki.errors import RateLimited
from sluice.pki.identities import retry_at
from sluice.pki.tls import TlsIdentity
from sluice.pki.trust import Alive, TrustBundle, TrustPusher, in_memory, is_running, read_reports
from sluice.pki.x509 import AuthorityKind

_LOG = logging.getLogger(__name__)
_SYSTEM_RANDOM = random.SystemRandom()

PUSH_SECONDS = 1.0
"""How often to check for new directories."""
LONGEST_PAUSE = dt.timedelta(seconds=5)
"""Pause between two requests while the authority is unavailable: a revocation is urgent."""
SHORTEST_PAUSE_SECONDS = 0.2
"""Shortest pause between two answered requests."""
FOLLOWER = "follower"
"""The program name of a process that only subscribes with an identity."""
LOOK_SECONDS = 1.0
"""How often to check the trust in use for a change, while a request waits."""


@dataclass(frozen=True, slots=True)
class InstalledTrust:
    """The authority's answer, checked."""

    version: str = ""
    sides: tuple[tuple[AuthorityKind, TrustBundle], ...] = ()

    @classmethod
    def of(cls, answer: TrustAnswer) -> InstalledTrust:
        """Check an answer; raises :class:`StoreError` or :class:`CrlRejected`."""
        given = ((AuthorityKind.INTERNAL, answer.internal), (AuthorityKind.EDGE, answer.edge))
        return cls(answer.version, tuple((kind, _bundle(side)) for kind, side in given if side is not None))


class TrustSubscription:
    """Keeps trust and lists up to date; ``run`` until cancelled.

    Args:
        home: every identity directory below it is served.
        locate: where the authorities are now.
        asks: the identity directory of the requester, a process that the authority renews.
        directories: others to update, anywhere; failures in them or in ``asks`` are retried at once.
        clock: the present, in UTC.
        draw: a random number in [0, 1).
    """

    def __init__(
        self,
        home: Home,
        locate: Locate,
        asks: Path,
        directories: Sequence[Path] = (),
        *,
        clock: Clock = utc_now,
        draw: Callable[[], float] = _SYSTEM_RANDOM.random,
    ) -> None:
        self._authorities = Failover(locate)
        self._asks = asks
        self._own = frozenset({asks, *directories})
        self._clock = clock
        self._draw = draw
        self._pusher = TrustPusher(home, [asks, *directories])
        self._pushing = asyncio.Lock()
        self._identity: TlsIdentity | None = None
        self._complaints: dict[Path, str] = {}
        self.trust = InstalledTrust()
        """The latest installed trust."""

    async def run(self) -> None:
        """Follow until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen())
            tasks.create_task(self._push_forever())

    async def ask(self) -> bool:
        """Send one request, wait for the answer, install it; returns whether anything was new.

        The request contains the trust in use. When that changes, this stops waiting for the answer.

        Raises:
            PkiError: there was no answer, or installing it in one of our directories failed: the caller asks again.
        """
        if self._identity is None:
            self._identity = TlsIdentity(self._asks, clock=self._clock)
        answer = await self._answer(self._identity)
        if answer is None or answer.internal is None or answer.version == self.trust.version:
            return False
        trust = InstalledTrust.of(answer)
        failed = await self.push([bundle for _, bundle in trust.sides])
        for directory in sorted(self._own & failed.keys()):
            raise StoreError(f"the new trust does not get into {failed[directory]}")
        self.trust = trust
        return True

    async def _answer(self, identity: TlsIdentity) -> TrustAnswer | None:
        told = await self._question(identity)
        asking = asyncio.create_task(
            self._authorities.ask(lambda address: fetch_trust(identity, address.mutual, told)), name="trust"
        )
        try:
            while not (await asyncio.wait({asking}, timeout=LOOK_SECONDS))[0]:
                if await self._question(identity) != told:
                    return None
            return asking.result()
        finally:
            await end_tasks(asking)

    async def _question(self, identity: TlsIdentity) -> TrustRequest:
        ask = asyncio.get_running_loop().run_in_executor
        asked = await ask(None, question, self._asks, str(identity.spiffe_id), self.trust.version)
        if asked.in_use or asked.unreadable:
            return asked
        # No process serves or dials with this identity yet: only this request has it in memory.
        return msgspec.structs.replace(asked, in_use=(in_memory(identity, FOLLOWER),))

    async def push(self, news: Sequence[TrustBundle] = ()) -> dict[Path, str]:
        """Install ``news``, or the known trust, in the directories that need it; returns the failures."""
        async with self._pushing:
            if news:
                self._pusher.take(news)
            push = self._pusher.push
            changed, failed = await asyncio.get_running_loop().run_in_executor(None, push, self._clock())
        if changed:
            _LOG.info("trust anchors and CRLs installed in %d directories", len(changed))
        for directory, complaint in failed.items():
            if self._complaints.get(directory) != complaint:
                _LOG.error("cannot install trust anchors and CRLs: %s", complaint)
        self._complaints = failed
        return failed

    async def _listen(self) -> None:
        failures = 0
        while True:
            try:
                await self.ask()
            except (PkiError, OSError) as error:
                failures += 1
                if failures == 1:
                    _LOG.warning("no updates from the authority, the current trust stays in use: %s", error)
                await asyncio.sleep(self._pause(failures, error))
            else:
                if failures:
                    _LOG.info("updates from the authority arrive again")
                failures = 0
                await asyncio.sleep(SHORTEST_PAUSE_SECONDS)

    async def _push_forever(self) -> None:
        while True:
            await asyncio.sleep(PUSH_SECONDS)
            await self.push()

    def _pause(self, failures: int, error: Exception) -> float:
        return pause_seconds(self._clock(), failures, self._draw(), error, LONGEST_PAUSE)


def question(directory: Path, identity: str, known: str, *, alive: Alive = is_running) -> TrustRequest:
    """The request of ``identity``, with the readable reports of the processes that use it."""
    try:
        found, unreadable = read_reports(directory, alive=alive)
    except StoreError as error:
        _LOG.warning("cannot report the trust in use: %s", error)
        return TrustRequest(known=known, unreadable=1)
    own = tuple(report for report in found if report.identity == identity)[:MAX_TOLD]
    asked = TrustRequest(known=known, in_use=own, unreadable=len(unreadable) + len(found) - len(own))
    if len(msgspec.json.encode(asked)) > MAX_TRUST_REQUEST_BYTES:
        return TrustRequest(known=known, unreadable=len(unreadable) + len(found))
    return asked


def pause_seconds(now: dt.datetime, failures: int, spread: float, error: Exception, longest: dt.timedelta) -> float:
    """How long to wait after the ``failures``-th failure in a row; at least as long as the authority asks for."""
    pause = (retry_at(now, failures, spread, longest=longest) - now).total_seconds()
    return max(pause, error.retry_after) if isinstance(error, RateLimited) else pause


def _bundle(side: TrustSide) -> TrustBundle:
    return TrustBundle.parse(side.ca_pem.encode(), side.crl_pem.encode())
