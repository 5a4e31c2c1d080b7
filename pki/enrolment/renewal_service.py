"""Renews the identities of one process with an authority on another machine, and keeps its trust up to date.

A missing identity is enrolled with a join token. Others are renewed at half-life (``pki.agent.renewer`` decides), or at
once when another authority signs now (:mod:`sluice.pki.enrolment.trust_subscription` learns this).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

from sluice.core import Clock, Home, utc_now
from sluice.pki.agent import IdentityRenewer, ManagedIdentity, PublishedIdentities, renew_forever
from sluice.pki.enrolment.enrolling_issuer import usable
from sluice.pki.enrolment.failover import Locate
from sluice.pki.enrolment.trust_subscription import LONGEST_PAUSE, TrustSubscription, pause_seconds
from sluice.pki.errors import CaUnavailable, RateLimited
from sluice.pki.issuing import DirectoryIssuer
from sluice.pki.x509 import AuthorityKind

_LOG = logging.getLogger(__name__)
_SYSTEM_RANDOM = random.SystemRandom()

POLL_SECONDS = 1.0
"""How often directories are read, and due renewals are checked."""
JOIN_SECONDS = 120.0
"""How long a process waits at its start for an unreachable authority."""


@dataclass(frozen=True, slots=True)
class EnrolledIdentity:
    """An identity to renew, its issuer, and its side."""

    identity: ManagedIdentity
    issuer: DirectoryIssuer
    side: AuthorityKind = AuthorityKind.INTERNAL


class FollowsTrust(Protocol):
    """Keeps trust anchors and CRLs up to date in identity directories."""

    async def run(self) -> None:
        """Follow until cancelled."""


_Follower = TypeVar("_Follower", bound=FollowsTrust)


class RenewalService(Generic[_Follower]):
    """Renews ``kept``. Use: ``start`` once, then ``run`` until cancelled, then ``close``.

    Args:
        kept: the identities.
        follower: keeps their trust up to date; see :func:`subscribed_trust`.
        clock: the present, in UTC.
        draw: a random number in [0, 1).
        join_seconds: how long ``start`` waits for an unreachable authority.
    """

    def __init__(
        self,
        kept: Sequence[EnrolledIdentity],
        follower: _Follower,
        *,
        clock: Clock = utc_now,
        draw: Callable[[], float] = _SYSTEM_RANDOM.random,
        join_seconds: float = JOIN_SECONDS,
    ) -> None:
        self._kept = tuple(kept)
        self._clock = clock
        self._draw = draw
        self._join_seconds = join_seconds
        self._threads = ThreadPoolExecutor(max(1, len(self._kept)), thread_name_prefix="renewal")
        self.follower = follower
        published = PublishedIdentities(clock)
        self.renewers = [
            IdentityRenewer(
                each.identity,
                each.issuer,
                published,
                clock,
                draw,
                threads=self._threads,
            )
            for each in self._kept
        ]

    async def start(self) -> None:
        """Return once there is a usable identity everywhere, enrolling where there is none.

        Raises:
            EnrolmentRefused: an identity is missing, and its join token is missing or not valid.
            CertificateRejected: the authority does not certify this identity.
            CaUnavailable: the authority could not be reached in time.
        """
        deadline = asyncio.get_running_loop().time() + self._join_seconds
        for each in self._kept:
            failures = 0
            while usable(each.identity.directory, each.identity.spiffe_id, self._clock()) is None:
                try:
                    await self._enrol(each)
                except (CaUnavailable, RateLimited) as error:
                    failures += 1
                    pause = pause_seconds(self._clock(), failures, self._draw(), error, LONGEST_PAUSE)
                    if asyncio.get_running_loop().time() + pause > deadline:
                        raise
                    _LOG.warning("%s waits to enrol: %s", each.identity.spiffe_id, error)
                    await asyncio.sleep(pause)

    async def run(self) -> None:
        """Renew everything until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for renewer in self.renewers:
                tasks.create_task(renew_forever(renewer, POLL_SECONDS))
            tasks.create_task(self.follower.run())

    async def close(self) -> None:
        """Release the threads; running work continues to its end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _enrol(self, kept: EnrolledIdentity) -> None:
        identity = kept.identity
        issue = partial(
            kept.issuer.issue_to,
            identity.directory,
            identity.spiffe_id,
            dns=identity.dns,
            ips=identity.ips,
            accept=identity.accept,
        )
        await asyncio.get_running_loop().run_in_executor(self._threads, issue)
        _LOG.info("%s joined", identity.spiffe_id)


def subscribed_trust(
    home: Home,
    locate: Locate,
    kept: Sequence[EnrolledIdentity],
    *,
    clock: Clock = utc_now,
    draw: Callable[[], float] = _SYSTEM_RANDOM.random,
) -> TrustSubscription:
    """Subscribe to the trust for ``kept`` and for the jobs below ``home``, as the first internal identity."""
    asks = next(each.identity.directory for each in kept if each.side is AuthorityKind.INTERNAL)
    return TrustSubscription(home, locate, asks, [each.identity.directory for each in kept], clock=clock, draw=draw)
