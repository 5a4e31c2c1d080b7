"""Leadership through a Lease of Kubernetes, after client-go's leader election.

The holder renews its Lease; a candidate takes it over when it has seen no change of it for the duration that is
written in it, by its own clock (the machines' clocks need not agree). Taking and renewing name the resource version, so
that one of several wins. A holder counts for itself and gives up before anybody could take over (see
:mod:`sluice.runtime.ha.leadership_validity`).
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
from sluice.runtime.ha.kubernetes_client import (
    LEASES,
    KubernetesClient,
    Object,
    ObjectConflict,
    ObjectMissing,
    RequestUnsettled,
)
from sluice.runtime.ha.kubernetes_pointers import KubernetesPointers, Term, written_epoch
from sluice.runtime.ha.leadership import LeaderInformation, Leadership
from sluice.runtime.ha.leadership_validity import SAFE_SHARE, LeadershipValidity

_LOG = logging.getLogger(__name__)

LEADER = "sluice.leader"
"""The annotation of the Lease that says where its holder is."""
LOOKS_PER_DURATION = 6
GIVE_BACK_TRIES = 3
GUARDS_PER_DURATION = 2
"""How often a leader looks whether its ConfigMap is still there."""
_SILENCE = f"the Lease could not be renewed within {SAFE_SHARE:.0%} of its duration"


class KubernetesElection:
    """A :class:`~sluice.runtime.ha.leadership.LeaderElection` in Kubernetes, for JobManagers of one cluster.

    Args:
        cluster: names the objects: ``sluice-<cluster>`` and ``sluice-<cluster>-pointers``.
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
        """Wait until this process leads; ``standing_by`` is called as soon as another one is known to."""
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
                _LOG.info("the election goes on: %s", error)
                standing_by()
            except HaError as error:
                if str(error) != said:
                    said = str(error)
                    _LOG.error("cannot take part in the election: %s", said)
                standing_by()
                pause = self._duration  # whoever can lead goes first
            await asyncio.sleep(pause)

    async def leader(self) -> LeaderInformation | None:
        """The leader; None when none is known."""
        try:
            present = await self._client.get(LEASES, "leases", self._lease)
            if not (present.get("spec") or {}).get("holderIdentity"):
                return None
            text = (present["metadata"].get("annotations") or {}).get(LEADER, "")
            return LeaderInformation.decode(str(text).encode())
        except (HaError, EntryDamaged, KeyError):
            return None

    async def standbys(self) -> tuple[str, ...] | None:
        """None, not known: a Lease names its holder alone."""
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
        # A Lease that somebody has removed counts anew; what was written under earlier ones does not.
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
                f"the ConfigMap {pointers_of(self._lease)} cannot be written for {self._duration} s",
                "check the API server; this JobManager gives the Lease back meanwhile",
            ) from None
        except BaseException:
            await leadership.resign()
            raise
        leadership.guard()
        return leadership


def pointers_of(lease: str) -> str:
    """The name of the ConfigMap beside a Lease."""
    return f"{lease}-pointers"


def micro_time(now: dt.datetime) -> str:
    """A time as Kubernetes' MicroTime: RFC 3339 in UTC with six digits of a second."""
    return now.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class KubernetesLeadership:
    """One term; see :class:`~sluice.runtime.ha.leadership.Leadership`.

    Args:
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
        """Look after the ConfigMap from now on; see :meth:`KubernetesPointers.verify`."""
        self._guarding = asyncio.create_task(self._guard(), name="pointers")

    def check(self) -> None:
        """Return while this process surely leads; raise ``LeadershipLost`` when it does not, or cannot know."""
        if not self._lost.done() and self._validity.remaining <= 0:
            self.lose(_SILENCE)
        if self._lost.done():
            raise LeadershipLost(f"this process does not lead any more: {self._lost.result()}")

    async def confirm(self) -> None:
        """Ask the API server whether the Lease is ours; raises ``LeadershipLost`` when it is not."""
        try:
            present = await self._client.get(LEASES, "leases", self._lease["metadata"]["name"])
        except ObjectMissing:
            self.lose("somebody has removed the Lease")
        else:
            if (present.get("spec") or {}).get("holderIdentity") != self._holder:
                self.lose("another JobManager holds the Lease")
        self.check()

    def lose(self, why: str) -> None:
        """Note that leadership is lost."""
        if not self._lost.done():
            self._lost.set_result(why)

    def abandon(self, why: str) -> None:
        """Give up leadership although the Lease may be held; :meth:`resign` gives the Lease back."""
        if not self._lost.done():
            self._abandoned = True
            self.lose(why)

    async def lost(self) -> str:
        """Wait until it is lost; returns why."""
        return await asyncio.shield(self._lost)

    async def publish(self, information: LeaderInformation) -> None:
        """Let others know where the leader is."""
        text = information.encode().decode()
        while True:
            self.check()
            with contextlib.suppress(ObjectConflict, RequestUnsettled, ElectionUnavailable):
                await self._change(lambda lease: lease["metadata"].setdefault("annotations", {}).update({LEADER: text}))
                return
            await asyncio.sleep(self._duration / LOOKS_PER_DURATION)

    async def resign(self) -> None:
        """Give the Lease back, so that nobody has to wait for its end."""
        held = self._abandoned or not self._lost.done()
        await end_tasks(*(task for task in (self._renewing, self._guarding) if task is not None))
        self.lose("it has given up its leadership")
        if held:
            await self._give_back()

    async def _give_back(self) -> None:
        for _ in range(GIVE_BACK_TRIES):
            try:
                await self._change(lambda lease: lease["spec"].update({"holderIdentity": ""}))
            except ObjectConflict:
                continue  # a renewal that was under way has arrived; the Lease was read again since
            except HaError as error:
                _LOG.info("the Lease cannot be given back, it ends by itself: %s", error)
            return

    async def _guard(self) -> None:
        while not self._lost.done():
            await asyncio.sleep(self._duration / GUARDS_PER_DURATION)
            try:
                await self.pointers.verify()
            except LeadershipLost:
                return
            except HaError as error:
                _LOG.info("the ConfigMap cannot be looked at now: %s", error)

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
                _LOG.warning("the Lease is not renewed now: %s", error)
            except Exception:  # noqa: BLE001  # whatever it is, this process leads no longer than it renews
                _LOG.exception("the Lease is not renewed now")
            left = self._validity.remaining
            if left <= 0:
                self.lose(_SILENCE)
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
                if (present.get("spec") or {}).get("holderIdentity") != self._holder:
                    raise LeadershipLost("another JobManager holds the Lease") from None
                self._lease = present
                raise
