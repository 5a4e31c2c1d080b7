"""The agent process: renews identities and serves its socket."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sluice.core import Clock, StoreError, listen_unix, utc_now
from sluice.core.grpc import Caller, GrpcServer
from sluice.pki.agent.policy import AgentPolicy
from sluice.pki.agent.policy_workloads import PolicyWorkloads
from sluice.pki.agent.published_identities import PublishedIdentities
from sluice.pki.agent.renewer import IdentityRenewer, renew_forever
from sluice.pki.agent.sds import SecretDiscovery
from sluice.pki.agent.workload_api import WorkloadApi
from sluice.pki.issuing import DirectoryIssuer
from sluice.pki.jwt import JwtAuthority
from sluice.pki.trust import Reporter

_LOG = logging.getLogger(__name__)
_SYSTEM_RANDOM = random.SystemRandom()

POLL_SECONDS = 1.0
"""How often directories are read, and due renewals are checked."""
JWT_POLL_SECONDS = 5.0


class Agent:
    """Renews the identities of ``policy`` and serves them on ``socket_path``.

    Use: ``start`` once, then ``run`` until cancelled, then ``close``; ``step`` does one round of keeping.
    """

    def __init__(
        self,
        policy: AgentPolicy,
        issuer: DirectoryIssuer,
        jwt: JwtAuthority,
        trust_domain: str,
        socket_path: Path,
        *,
        clock: Clock = utc_now,
        draw: Callable[[], float] = _SYSTEM_RANDOM.random,
    ) -> None:
        self._policy = policy
        self._jwt = jwt
        self._socket_path = socket_path
        self._published = PublishedIdentities(clock)
        # One thread per identity: an issuer that does not answer for one must not delay the others.
        self._threads = ThreadPoolExecutor(max(1, len(policy.identities)), thread_name_prefix="issue")
        self._reporters = [Reporter(identity.directory, "agent") for identity in policy.identities]
        self.renewers = [
            IdentityRenewer(identity, issuer, self._published, clock, draw, threads=self._threads, reporter=reporter)
            for identity, reporter in zip(policy.identities, self._reporters, strict=True)
        ]
        self.server = GrpcServer(
            {
                **WorkloadApi(PolicyWorkloads(policy, jwt), self._published, trust_domain).methods(),
                **SecretDiscovery(policy, self._published, trust_domain).methods(),
            },
            self._admits,
        )

    async def start(self) -> None:
        """Bring the identities up to date as far as possible, then listen.

        Raises:
            StoreError: the socket cannot be opened, or the JWT keys are damaged.
        """
        shared = any(uid not in {0, os.geteuid()} for uid in self._policy.uids)
        self._jwt.refresh()
        listening = listen_unix(self._socket_path, shared=shared)
        try:
            await self.step()
            await self.server.start(listening)
        except BaseException:
            listening.close()
            self._socket_path.unlink(missing_ok=True)
            raise
        _LOG.info("agent ready on %s with %d identities", self._socket_path, len(self.renewers))

    async def step(self) -> None:
        """One round over all identities and the JWT keys."""
        await asyncio.gather(*(renewer.step() for renewer in self.renewers))
        self._refresh_jwt()

    async def run(self) -> None:
        """Renew everything until cancelled; an identity whose renewal hangs delays no other."""
        async with asyncio.TaskGroup() as tasks:
            for renewer in self.renewers:
                tasks.create_task(renew_forever(renewer, POLL_SECONDS))
            tasks.create_task(self._refresh_forever())

    async def close(self) -> None:
        """Stop serving; the socket is gone afterwards."""
        await self.server.close()
        for reporter in self._reporters:
            reporter.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._socket_path.unlink(missing_ok=True)

    def _admits(self, caller: Caller) -> bool:
        return bool(self._policy.of(caller.uid))

    async def _refresh_forever(self) -> None:
        while True:
            await asyncio.sleep(JWT_POLL_SECONDS)
            self._refresh_jwt()

    def _refresh_jwt(self) -> None:
        try:
            changed = self._jwt.refresh()
        except StoreError as error:
            _LOG.error("the JWT keys are not renewed: %s", error)
            return
        if changed:
            self._published.touch()


async def run_agent(agent: Agent) -> None:
    """Start, run until cancelled, close."""
    await agent.start()
    try:
        await agent.run()
    finally:
        await agent.close()
