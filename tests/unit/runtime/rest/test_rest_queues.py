"""Who sees which queues over REST, and which jobs in them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from aiohttp.test_utils import make_mocked_request

from sluice.pki.assertions.principal import Credential, Principal
from sluice.pki.assertions.tokens import Assertion
from sluice.runtime.config import RuntimeConfig
from sluice.runtime.jobmanager.errors import QueueNotFound
from sluice.runtime.jobmanager.gateways import DispatcherGateway, ResourceManagerInternalGateway
from sluice.runtime.jobmanager.views import QueueJobView, QueueView
from sluice.runtime.rest.cluster import Cluster
from sluice.runtime.rest.protocol.assertion import ASSERTED
from sluice.runtime.rest.protocol.route import Call, NoQuery
from sluice.runtime.rest.resources.queues import MAX_JOBS_SHOWN, get_queue, list_queues
from sluice.runtime.scheduling_config import QueueConfig, SchedulingConfig

QUEUES = SchedulingConfig(
    queues=(
        QueueConfig(name="open", users=("*",), guaranteed=0.5),
        QueueConfig(name="etl", groups=("engineers",)),
        QueueConfig(name="left", users=("nobody",)),
    )
)


def queue(name: str, *owners: str) -> QueueView:
    """Return a queue with one job per owner; the job's id is the owner's name."""
    jobs = tuple(
        QueueJobView(id=owner, owner=owner, priority=0, slots=1, lacking=1, position=i, waits_for="slots")
        for i, owner in enumerate(owners, start=1)
    )
    return QueueView(
        name=name, weight=1, guaranteed=0, maximum=1, max_slots=0, max_slots_per_user=0, max_priority=0,
        share=0.5, below_guarantee=False,
        slots=len(jobs), lacking=len(jobs), jobs_waiting=len(jobs), jobs_served=0, preempted=0, jobs=jobs,
    )  # fmt: skip


class Slots:
    """A fake ResourceManager whose queues hold jobs of Ada and Eve."""

    shown = (queue("open", "ada", "eve"), queue("etl", "ada"), queue("left", "eve"))

    async def queues(self) -> tuple[QueueView, ...]:
        return self.shown


class Jobs:
    """A fake Dispatcher with the same jobs."""

    async def jobs(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(id=name, owner=name) for name in ("ada", "eve")]


def cluster() -> Cluster:
    nothing = cast("Any", None)
    return Cluster(
        cast("DispatcherGateway", Jobs()),
        cast("ResourceManagerInternalGateway", Slots()),
        nothing,
        nothing,
        nothing,
        default_executors=2,
        leader=nothing,
        config=RuntimeConfig(scheduling=QUEUES),
        artifacts=nothing,
        feed=nothing,
        streams=nothing,
        secrets=nothing,
        diagnostics=nothing,
    )


def call(name: str, *groups: str, everything: bool = False, **path: str) -> Call[NoQuery]:
    request = make_mocked_request("GET", "/")
    request[ASSERTED] = Assertion(
        Principal(name, (), "token", Credential("token", "id-1"), groups),
        "request-1",
        operation="queues.read",
        may_any=frozenset({"queues.read"} if everything else ()),
    )
    return Call(request, path, NoQuery())


@pytest.mark.parametrize(
    ("who", "seen"),
    [
        pytest.param(call("bob"), {"open": []}, id="may-use-one"),
        pytest.param(call("bob", "engineers"), {"open": [], "etl": []}, id="by-group"),
        pytest.param(call("ada"), {"open": ["ada"], "etl": ["ada"]}, id="has-a-job-where-she-may-not-submit-any-more"),
        pytest.param(call("eve"), {"open": ["eve"], "left": ["eve"]}, id="own-jobs-alone"),
        pytest.param(
            call("grace", everything=True),
            {"open": ["ada", "eve"], "etl": ["ada"], "left": ["eve"]},
            id="viewer",
        ),
    ],
)
async def test_a_user_sees_only_permitted_queues_and_jobs_but_all_slot_counts(
    who: Call[NoQuery], seen: dict[str, list[str]]
) -> None:
    found = await list_queues(cluster(), who)
    assert {each.name: [job.id for job in each.jobs] for each in found.queues} == seen
    assert found.preemption
    for each in found.queues:
        assert each.slots == next(len(all_of.jobs) for all_of in Slots.shown if all_of.name == each.name)


async def test_a_queue_that_the_user_may_not_see_is_not_found() -> None:
    assert (await get_queue(cluster(), call("bob", queue="open"))).slots == 2
    for name in ("etl", "left", "unknown", "../open", "x" * 1000):
        with pytest.raises(QueueNotFound, match="there is no queue") as refused:
            await get_queue(cluster(), call("bob", queue=name))
        assert len(str(refused.value)) < 200


async def test_the_number_of_jobs_shown_in_a_queue_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    many = queue("open", *(f"user-{i}" for i in range(MAX_JOBS_SHOWN + 1)))
    monkeypatch.setattr(Slots, "shown", (many,))
    (found,) = (await list_queues(cluster(), call("grace", everything=True))).queues
    assert len(found.jobs) == MAX_JOBS_SHOWN
    assert found.slots == MAX_JOBS_SHOWN + 1
    assert msgspec.json.encode(found)
