"""Makes and deletes the pods of TaskManagers while this process leads.

A former leader writes nothing: leadership is checked before each write. A write that is late nevertheless does no harm.
A pod made too late has its term in its name and labels, and the new leader takes it over like any other. A deletion
names uid and resource version, so it affects only a pod that has not changed since.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sluice.core import KubernetesApi, KubernetesMisconfigured, SluiceError, cluster_url, pod_namespace
from sluice.runtime.config import RuntimeConfig
from sluice.runtime.ha import LeadershipLost
from sluice.runtime.jobmanager.gateways import ProvisionView
from sluice.runtime.jobmanager.pods.errors import PodChanged, PodsMisconfigured, PodsRefused
from sluice.runtime.jobmanager.pods.names import RANDOM_CHARACTERS, pod_name, selector_of
from sluice.runtime.jobmanager.pods.observed_pod import ObservedPod
from sluice.runtime.jobmanager.pods.plan import PodDecision, PodLimits, PodPlan
from sluice.runtime.jobmanager.pods.pod_template import Object, Owner, owner_of, pod_of, read_template
from sluice.runtime.jobmanager.pods.pods_client import PodsClient

_LOG = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
SETTLED_SECONDS = 15.0
"""Interval between looks at the pods while nothing is in progress and the wanted number does not change."""


class Pods(Protocol):
    """See :class:`PodsClient`."""

    async def get(self, name: str) -> Object:
        """One pod."""
        ...

    async def list(self, selector: str) -> list[ObservedPod]:
        """All pods that match a selector."""
        ...

    async def create(self, pod: Object) -> None:
        """Make a pod."""
        ...

    async def delete(self, pod: ObservedPod) -> None:
        """Delete an unchanged pod."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


@dataclass(frozen=True, slots=True)
class Term:
    """The term in which pods are made; ``check`` raises ``LeadershipLost`` when this process no longer leads."""

    cluster: str
    epoch: int
    check: Callable[[], None]


class PodProvider:
    """The pods of one cluster in one term.

    Args:
        provide: tells the ResourceManager what keeps TaskManagers from starting; returns how many it wants.
        own_pod: name of the pod of this JobManager; empty: the made pods have no owner.
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        pods: Pods,
        template: Object,
        term: Term,
        limits: PodLimits,
        provide: Callable[[str], Awaitable[ProvisionView]],
        *,
        own_pod: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pods = pods
        self._template = template
        self._term = term
        self._plan = PodPlan(limits)
        self._provide = provide
        self._own_pod = own_pod
        self._clock = clock
        self._owner: Owner | None = None
        self._note = ""
        self._settled_at = float("-inf")
        self._settled_view: ProvisionView | None = None

    async def run(self) -> None:
        """Look at the pods repeatedly, until this process is no longer the leader, or is cancelled."""
        try:
            while True:
                try:
                    await self.reconcile()
                except LeadershipLost:
                    _LOG.info("stopped managing pods: another process leads")
                    return
                except SluiceError as error:
                    self._say(str(error))
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            await self._pods.close()

    async def reconcile(self) -> None:
        """Compare the pods with the wanted number once, and make or delete pods.

        Raises:
            LeadershipLost: another process leads; nothing more is done.
            SluiceError: it cannot be done now; the next call retries.
        """
        view = await self._provide(self._note)
        now = self._clock()
        if view == self._settled_view and now - self._settled_at < SETTLED_SECONDS:
            return
        if self._owner is None and self._own_pod:
            self._owner = await self._find_owner()
        pods = await self._pods.list(selector_of(self._term.cluster))
        view = await self._provide(self._note)  # as late as possible: a TaskManager may have registered meanwhile
        decision = self._plan.decide(pods, view, now)
        self._settled_view = view if decision.settled else None
        self._settled_at = now
        self._say(decision.note)
        await self._carry_out(decision)

    async def _carry_out(self, decision: PodDecision) -> None:
        for pod in decision.delete:
            self._term.check()
            _LOG.info("deleting pod %s: %s", pod.name, pod.end or pod.obstacle or pod.phase)
            try:
                await self._pods.delete(pod)
            except PodChanged as error:
                _LOG.info("pod %s has changed, checking again: %s", pod.name, error.what)
        for _ in range(decision.create):
            name = pod_name(
                self._term.cluster, self._term.epoch, secrets.token_hex(RANDOM_CHARACTERS)[:RANDOM_CHARACTERS]
            )
            wanted = pod_of(
                self._template, name=name, cluster=self._term.cluster, epoch=self._term.epoch, owner=self._owner
            )
            self._term.check()
            try:
                await self._pods.create(wanted)
            except (PodsRefused, PodChanged) as error:
                self._plan.refused(error.what, self._clock())
                self._say(error.what)
                return
            _LOG.info("made pod %s", name)

    async def _find_owner(self) -> Owner:
        try:
            return owner_of(await self._pods.get(self._own_pod))
        except PodChanged as error:
            raise PodsMisconfigured(
                f"there is no pod {self._own_pod!r}", "set pods.own_pod to the name of the JobManager's own pod"
            ) from error

    def _say(self, note: str) -> None:
        if note and note != self._note:
            _LOG.info("TaskManagers: %s", note)
        self._note = note


def check_pods(config: RuntimeConfig) -> Object:
    """Read the pod template that ``config`` names; raises :class:`PodsMisconfigured`."""
    if not config.pods.template:
        raise PodsMisconfigured(
            "resources.provider is 'kubernetes' without a pod template",
            "set pods.template to a file with a PodTemplateSpec in JSON",
        )
    return read_template(Path(config.pods.template))


def pod_provider(
    config: RuntimeConfig, epoch: int, check: Callable[[], None], provide: Callable[[str], Awaitable[ProvisionView]]
) -> PodProvider:
    """Make the provider that ``config`` describes, for one term.

    Raises:
        PodsMisconfigured: no valid template, or no API server, is configured.
    """
    settings, account = config.pods, Path(config.ha.kubernetes_account)
    template = check_pods(config)
    try:
        api = KubernetesApi(
            config.ha.kubernetes_api or cluster_url(), token_file=account / "token", ca_file=account / "ca.crt"
        )
        namespace = config.ha.kubernetes_namespace or pod_namespace(account)
    except KubernetesMisconfigured as error:
        raise PodsMisconfigured(
            error.what, "set ha.kubernetes_api, kubernetes_namespace, kubernetes_account"
        ) from error
    return PodProvider(
        PodsClient(api, namespace),
        template,
        Term(config.ha.cluster, epoch, check),
        PodLimits(config.resources.max_taskmanagers, settings.start_timeout),
        provide,
        own_pod=settings.own_pod,
    )
