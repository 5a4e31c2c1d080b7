"""Leadership through a Lease of Kubernetes, after client-go's leader election.

The holder renews its Lease; a candidate takes it over when it has seen no change of it for the duration that is
written in it, by its own clock (the machines' clocks need not agree). Taking and renewing name the resource version, so
that one of several wins. A holder counts for itself and gives up before anybody could take over (see
:mod:`runtime.ha.belief`).
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import datetime as dt
import logging
import secrets
import time
from collections.abc import Callable

from pki.tasks import end_tasks
from runtime.ha.belief import SAFE_SHARE, Belief
from runtime.ha.errors import ElectionUnavailable, EntryDamaged, HaError, LeadershipLost
from runtime.ha.kubernetes_client import (
    LEASES,
    KubernetesClient,
    Object,
    ObjectConflict,
    ObjectMissing,
    RequestUnsettled,
)
from runtime.ha.kubernetes_pointers import KubernetesPointers, written_epoch
from runtime.ha.leadership import LeaderInformation, Leadership

_LOG = logging.getLogger(__name__)

LEADER = "sluice.leader"
"""The annotation of the Lease that says where its holder is."""
LOOKS_PER_DURATION = 6
_SILENCE = f"the Lease could not be renewed within {SAFE_SHARE:.0%} of its duration"


class KubernetesElection:
    """See the module's documentation.

    Args:
        client: to the API server.
        cluster: names the objects: ``sluice-<cluster>`` and ``sluice-<cluster>-pointers``.
        name: of this JobManager.
        duration: whole seconds of the Lease.
        clock: monotonic.
    """

    across_machines = True

    def __init__(
        self,
        client: KubernetesClient,
        *,
        cluster: str,
        name: str,
        duration: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._lease = f"sluice-{cluster}"
        self._name = name
        self._duration = duration
        self._clock = clock

    async def elect(self, standing_by: Callable[[], None]) -> Leadership:
        """See :class:`~runtime.ha.leadership.LeaderElection`."""
        holder = f"{self._name}_{secrets.token_hex(8)}"
        seen, seen_at = "", 0.0
        while True:
            try:
                present = await self._present()
                version = str(present["metadata"]["resourceVersion"])
                if version != seen:
                    seen, seen_at = version, self._clock()
                spec = present["spec"]
                free = not spec.get("holderIdentity")
                if free or self._clock() - seen_at > int(spec.get("leaseDurationSeconds") or self._duration):
                    return await self._take(present, holder)
                standing_by()
            except (ObjectConflict, RequestUnsettled, ObjectMissing) as error:
                _LOG.info("the election goes on: %s", error)
            except ElectionUnavailable as error:
                _LOG.error("cannot take part in the election: %s", error)
                standing_by()
            await asyncio.sleep(self._duration / LOOKS_PER_DURATION)

    async def leader(self) -> LeaderInformation | None:
        """See :class:`~runtime.ha.leadership.LeaderElection`."""
        try:
            present = await self._client.get(LEASES, "leases", self._lease)
            if not present["spec"].get("holderIdentity"):
                return None
            text = (present["metadata"].get("annotations") or {}).get(LEADER, "")
            return LeaderInformation.decode(str(text).encode())
        except (HaError, EntryDamaged, KeyError):
            return None

    async def standbys(self) -> tuple[str, ...] | None:
        """See :class:`~runtime.ha.leadership.LeaderElection`: a Lease names its holder alone."""
        return None

    async def close(self) -> None:
        """See :class:`~runtime.ha.leadership.LeaderElection`."""
        await self._client.close()

    async def _present(self) -> Object:
        with contextlib.suppress(ObjectMissing):
            return await self._client.get(LEASES, "leases", self._lease)
        content: Object = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._lease},
            "spec": {"holderIdentity": "", "leaseDurationSeconds": self._duration, "leaseTransitions": 0},
        }
        return await self._client.create(LEASES, "leases", content)

    async def _take(self, present: Object, holder: str) -> Leadership:
        wanted = copy.deepcopy(present)
        now, asked_at = micro_time(dt.datetime.now(dt.UTC)), self._clock()
        # A Lease that somebody has removed counts anew; what was written under earlier ones does not.
        known = await written_epoch(self._client, pointers_of(self._lease))
        transitions = max(int(present["spec"].get("leaseTransitions") or 0), known) + 1
        wanted["spec"] |= {
            "holderIdentity": holder,
            "leaseDurationSeconds": self._duration,
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": transitions,
        }
        (wanted["metadata"].get("annotations") or {}).pop(LEADER, None)
        taken = await self._client.replace(LEASES, "leases", wanted)
        leadership = KubernetesLeadership(
            self._client, taken, duration=self._duration, confirmed_at=asked_at, clock=self._clock
        )
        try:
            await leadership.pointers.claim()
        except BaseException:
            await leadership.resign()
            raise
        return leadership


def pointers_of(lease: str) -> str:
    """The name of the ConfigMap beside a Lease."""
    return f"{lease}-pointers"


def micro_time(now: dt.datetime) -> str:
    """A time as Kubernetes' MicroTime: RFC 3339 in UTC with six digits of a second."""
    return now.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class KubernetesLeadership:
    """One term; see :class:`~runtime.ha.leadership.Leadership`.

    Args:
        client: to the API server.
        lease: the Lease as it was taken.
        duration: of it, in seconds.
        confirmed_at: when the request was sent by which it was taken.
        clock: monotonic.
    """

    def __init__(
        self,
        client: KubernetesClient,
        lease: Object,
        *,
        duration: int,
        confirmed_at: float,
        clock: Callable[[], float],
    ) -> None:
        self.granted_at = clock()
        self.epoch = int(lease["spec"]["leaseTransitions"])
        self.pointers = KubernetesPointers(client, pointers_of(lease["metadata"]["name"]), self.epoch, self.check)
        self._client = client
        self._lease = lease
        self._holder = lease["spec"]["holderIdentity"]
        self._duration = duration
        self._clock = clock
        self._belief = Belief(lambda: float(duration), confirmed_at, clock)
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._changing = asyncio.Lock()
        self._renewing = asyncio.create_task(self._renew(), name="lease")

    def check(self) -> None:
        """See :class:`~runtime.ha.leadership.Leadership`."""
        if not self._lost.done() and self._belief.left <= 0:
            self._lose(_SILENCE)
        if self._lost.done():
            raise LeadershipLost(f"this process does not lead any more: {self._lost.result()}")

    async def lost(self) -> str:
        """See :class:`~runtime.ha.leadership.Leadership`."""
        return await asyncio.shield(self._lost)

    async def publish(self, information: LeaderInformation) -> None:
        """See :class:`~runtime.ha.leadership.Leadership`."""
        text = information.encode().decode()
        while True:
            self.check()
            with contextlib.suppress(ObjectConflict, RequestUnsettled):
                await self._change(lambda lease: lease["metadata"].setdefault("annotations", {}).update({LEADER: text}))
                return
            await asyncio.sleep(self._duration / LOOKS_PER_DURATION)

    async def resign(self) -> None:
        """Give the Lease back, so that nobody has to wait for its end."""
        held = not self._lost.done()
        await end_tasks(self._renewing)
        self._lose("it has given up its leadership")
        if held:
            with contextlib.suppress(HaError):
                await self._change(lambda lease: lease["spec"].update({"holderIdentity": ""}))

    def _lose(self, why: str) -> None:
        if not self._lost.done():
            self._lost.set_result(why)

    async def _renew(self) -> None:
        while not self._lost.done():
            asked_at = self._clock()
            try:
                async with asyncio.timeout(max(0.01, self._belief.left)):
                    await self._change(lambda _: None)
                self._belief.confirm(asked_at)
            except LeadershipLost as error:
                self._lose(error.what)
                return
            except (HaError, TimeoutError) as error:
                _LOG.warning("the Lease is not renewed now: %s", error)
            left = self._belief.left
            if left <= 0:
                self._lose(_SILENCE)
                return
            await asyncio.sleep(min(left, self._duration / LOOKS_PER_DURATION))

    async def _change(self, change: Callable[[Object], object]) -> None:
        """Renew the Lease with ``change``; raises ``LeadershipLost`` when somebody else holds it."""
        async with self._changing:
            wanted = copy.deepcopy(self._lease)
            wanted["spec"]["renewTime"] = micro_time(dt.datetime.now(dt.UTC))
            change(wanted)
            try:
                self._lease = await self._client.replace(LEASES, "leases", wanted)
            except ObjectMissing:
                raise LeadershipLost("somebody has removed the Lease") from None
            except (ObjectConflict, RequestUnsettled):
                present = await self._client.get(LEASES, "leases", wanted["metadata"]["name"])
                if present["spec"].get("holderIdentity") != self._holder:
                    raise LeadershipLost("another JobManager holds the Lease") from None
                self._lease = present
                raise
