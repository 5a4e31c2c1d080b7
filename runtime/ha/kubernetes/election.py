"""Leader election by a Kubernetes Lease, modelled on client-go's leader election.

The holder renews its Lease. A candidate takes it over when the candidate's own clock shows that the Lease has not
changed for the duration written in it, so the machines' clocks need not agree. Taking over and renewing name the
resource version, so only one of several concurrent candidates wins. A holder also measures the time itself and gives up
before anybody could take over (see :mod:`sluice.runtime.ha.leadership_validity`).
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

from sluice.core import end_tasks
from sluice.runtime.ha.errors import ElectionUnavailable, EntryDamaged, HaError, LeadershipLost
from sluice.runtime.ha.kubernetes.client import (
    LEASES,
    KubernetesClient,
    Object,
    ObjectConflict,
    ObjectMissing,
    RequestUnsettled,
)
from sluice.runtime.ha.kubernetes.pointers import KubernetesPointers, Term, written_epoch
from sluice.runtime.ha.leadership import LeaderInformation, Leadership
from sluice.runtime.ha.leadership_validity import SAFE_SHARE, LeadershipValidity

_LOG = logging.getLogger(__name__)

LEADER = "sluice.leader"
"""The annotation of the Lease with the addresses of its holder (JSON, :class:`LeaderInformation`)."""
LOOKS_PER_DURATION = 6
GIVE_BACK_TRIES = 3
GUARDS_PER_DURATION = 2
"""How often per Lease duration a leader checks that its ConfigMap still exists."""
_SILENCE = f"the Lease could not be renewed within {SAFE_SHARE:.0%} of its duration"


class KubernetesElection:
    """A :class:`~sluice.runtime.ha.leadership.LeaderElection` in Kubernetes, for the JobManagers of one cluster.

    Args:
        cluster: cluster name; the objects are ``sluice-<cluster>`` and ``sluice-<cluster>-pointers``.
        name: name of this process.
        duration: duration of the Lease in whole seconds.
        clock: returns monotonic seconds.
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
        """Wait until this process leads. ``standing_by`` is called as soon as another process is known to lead."""
        holder = f"{self._name}_{secrets.token_hex(8)}"
        seen, seen_at, said = "", 0.0, ""
        while True:
            pause = self._duration / LOOKS_PER_DURATION
            try:
                present = await self._present()
                version = str(present["metadata"]["resourceVersion"])
                if version != seen:
                    seen, seen_at = version, self._clock()
                spec = present.get("spec") or {}
                free = spec.get("holderIdentity") in {None, "", holder}
                if free or self._clock() - seen_at > int(spec.get("leaseDurationSeconds") or self._duration):
                    return await self._take(present, holder)
                said = ""
                standing_by()
            except (ObjectConflict, RequestUnsettled, ObjectMissing, LeadershipLost) as error:
                _LOG.info("retrying the election: %s", error)
                standing_by()
            except HaError as error:
                if str(error) != said:
                    said = str(error)
                    _LOG.error("cannot take part in the election: %s", said)
                standing_by()
                pause = self._duration  # let a candidate that can lead go first
            await asyncio.sleep(pause)

    async def leader(self) -> LeaderInformation | None:
        """The current leader, or None when it is unknown."""
        try:
            present = await self._client.get(LEASES, "leases", self._lease)
            if not (present.get("spec") or {}).get("holderIdentity"):
                return None
            text = (present["metadata"].get("annotations") or {}).get(LEADER, "")
            return LeaderInformation.decode(str(text).encode())
        except (HaError, EntryDamaged, KeyError):
            return None

    async def standbys(self) -> tuple[str, ...] | None:
        """Return None: a Lease names only its holder, so the standbys are unknown."""
        return None

    async def close(self) -> None:
        """Leave the election."""
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
        # A recreated Lease restarts its count of transitions, so the epoch in the ConfigMap counts as well.
        known = await written_epoch(self._client, pointers_of(self._lease))
        spec = wanted.setdefault("spec", {})
        transitions = max(int(spec.get("leaseTransitions") or 0), known) + 1
        spec |= {
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
            async with asyncio.timeout(self._duration):
                await leadership.pointers.claim()
        except TimeoutError:
            await leadership.resign()
            raise ElectionUnavailable(
                f"the ConfigMap {pointers_of(self._lease)} could not be written for {self._duration} s",
                "check the API server; this JobManager releases the Lease and tries again",
            ) from None
        except BaseException:
            await leadership.resign()
            raise
        leadership.guard()
        return leadership


def pointers_of(lease: str) -> str:
    """The name of the ConfigMap that belongs to a Lease."""
    return f"{lease}-pointers"


def micro_time(now: dt.datetime) -> str:
    """Format a time as Kubernetes MicroTime: RFC 3339 in UTC with six fractional digits."""
    return now.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class KubernetesLeadership:
    """One term of leadership; see :class:`~sluice.runtime.ha.leadership.Leadership`.

    Args:
        lease: the Lease as this process has taken it.
        duration: duration of the Lease, in seconds.
        confirmed_at: when the request that took the Lease was sent.
        clock: returns monotonic seconds.
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
        self._holder = lease["spec"]["holderIdentity"]
        self.pointers = KubernetesPointers(
            client, pointers_of(lease["metadata"]["name"]), Term(self.epoch, self._holder), self
        )
        self._client = client
        self._lease = lease
        self._duration = duration
        self._clock = clock
        self._validity = LeadershipValidity(lambda: float(duration), confirmed_at, clock)
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._changing = asyncio.Lock()
        self._renewing = asyncio.create_task(self._renew(), name="lease")
        self._guarding: asyncio.Task[None] | None = None
        self._abandoned = False

    def guard(self) -> None:
        """Start checking the ConfigMap regularly; see :meth:`KubernetesPointers.verify`."""
        self._guarding = asyncio.create_task(self._guard(), name="pointers")

    def check(self) -> None:
        """Return if this process certainly leads; raise ``LeadershipLost`` if it does not or cannot know."""
        if not self._lost.done() and self._validity.remaining <= 0:
            self.lose(_SILENCE)
        if self._lost.done():
            raise LeadershipLost(f"this process does not lead any more: {self._lost.result()}")

    async def confirm(self) -> None:
        """Ask the API server whether this process holds the Lease; raises ``LeadershipLost`` when it does not."""
        try:
            present = await self._client.get(LEASES, "leases", self._lease["metadata"]["name"])
        except ObjectMissing:
            self.lose("somebody has removed the Lease")
        else:
            if (present.get("spec") or {}).get("holderIdentity") != self._holder:
                self.lose("another JobManager holds the Lease")
        self.check()

    def lose(self, why: str) -> None:
        """Mark the leadership as lost, for the reason ``why``."""
        if not self._lost.done():
            self._lost.set_result(why)

    def abandon(self, why: str) -> None:
        """Give up leadership while the Lease may still be held; :meth:`resign` releases the Lease."""
        if not self._lost.done():
            self._abandoned = True
            self.lose(why)

    async def lost(self) -> str:
        """Wait until the leadership is lost; return the reason."""
        return await asyncio.shield(self._lost)

    async def publish(self, information: LeaderInformation) -> None:
        """Publish the leader's address."""
        text = information.encode().decode()
        while True:
            self.check()
            with contextlib.suppress(ObjectConflict, RequestUnsettled, ElectionUnavailable):
                await self._change(lambda lease: lease["metadata"].setdefault("annotations", {}).update({LEADER: text}))
                return
            await asyncio.sleep(self._duration / LOOKS_PER_DURATION)

    async def resign(self) -> None:
        """Release the Lease, so that a candidate need not wait until it expires."""
        held = self._abandoned or not self._lost.done()
        await end_tasks(*(task for task in (self._renewing, self._guarding) if task is not None))
        self.lose("it has resigned")
        if held:
            await self._give_back()

    async def _give_back(self) -> None:
        for _ in range(GIVE_BACK_TRIES):
            try:
                await self._change(lambda lease: lease["spec"].update({"holderIdentity": ""}))
            except ObjectConflict:
                continue  # a renewal in flight has arrived, and _change() has read the Lease again
            except HaError as error:
                _LOG.info("the Lease cannot be released; it expires by itself: %s", error)
            return

    async def _guard(self) -> None:
        while not self._lost.done():
            await asyncio.sleep(self._duration / GUARDS_PER_DURATION)
            try:
                await self.pointers.verify()
            except LeadershipLost:
                return
            except HaError as error:
                _LOG.info("the ConfigMap cannot be checked now: %s", error)

    async def _renew(self) -> None:
        while not self._lost.done():
            asked_at = self._clock()
            try:
                async with asyncio.timeout(max(0.01, self._validity.remaining)):
                    await self._change(lambda _: None)
                self._validity.confirm(asked_at)
            except LeadershipLost as error:
                self.lose(error.what)
                return
            except (HaError, TimeoutError) as error:
                _LOG.warning("the Lease cannot be renewed now: %s", error)
            except Exception:  # noqa: BLE001  # whatever the error, this process leads only as long as it can renew
                _LOG.exception("the Lease cannot be renewed now")
            left = self._validity.remaining
            if left <= 0:
                self.lose(_SILENCE)
                return
            await asyncio.sleep(min(left, self._duration / LOOKS_PER_DURATION))

    async def _change(self, change: Callable[[Object], object]) -> None:
        """Renew the Lease and apply ``change``; raises ``LeadershipLost`` when another process holds it."""
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
                if (present.get("spec") or {}).get("holderIdentity") != self._holder:
                    raise LeadershipLost("another JobManager holds the Lease") from None
                self._lease = present
                raise
