"""The stages of a job: their graph, progress and totals."""

from __future__ import annotations

from collections.abc import Iterable

from sluice.runtime.jobmanager import JobDetail
from sluice.runtime.messages import JobProgress, Message, StageReport, StageState, StageTable
from sluice.runtime.rest.cluster import Cluster
from sluice.runtime.rest.job_access import JOB_ERRORS, require_visible
from sluice.runtime.rest.protocol import Call, NoQuery, PageQuery, Route, paginate


class StageList(Message, frozen=True):
    """A page of stages, by number. ``left_out`` is the number of older stages that are not kept."""

    stages: tuple[StageReport, ...]
    left_out: int
    next: str | None


class PlanNode(Message, frozen=True):
    """A stage in the plan. It starts when its ``parents`` have ended."""

    id: int
    name: str
    operators: tuple[str, ...]
    parents: tuple[int, ...]
    state: StageState
    tasks_total: int
    tasks_finished: int


class PlanJob(Message, frozen=True):
    """A Spark job, which is one action of the program, with the stages that it needs."""

    id: int
    description: str
    stages: tuple[int, ...]


class Plan(Message, frozen=True):
    """The stages of a job as a graph."""

    jobs: tuple[PlanJob, ...]
    nodes: tuple[PlanNode, ...]
    left_out: int


class Metric(Message, frozen=True):
    """The value of one counter."""

    id: str
    value: float


class Metrics(Message, frozen=True):
    """Counters of the job. Spark's counters are sums over the kept stages."""

    metrics: tuple[Metric, ...]


_SUMMED = ("input_bytes", "output_bytes", "memory_spilled_bytes", "disk_spilled_bytes", "run_ms", "gc_ms")


async def list_job_stages(cluster: Cluster, call: Call[PageQuery]) -> StageList:
    """List the Spark stages of a job's last attempt, with bytes, spill, and the distribution of task times."""
    table = (await cluster.dispatcher.job_record(await require_visible(cluster, call))).stages
    page, following = paginate(table.stages, call.query, lambda stage: (stage.id, ""))
    return StageList(stages=page, left_out=table.left_out, next=following)


async def get_job_plan(cluster: Cluster, call: Call[NoQuery]) -> Plan:
    """Get the plan of a job: the graph of the stages that Spark has planned so far."""
    return plan_of((await cluster.dispatcher.job_record(await require_visible(cluster, call))).stages)


async def get_job_metrics(cluster: Cluster, call: Call[NoQuery]) -> Metrics:
    """List the counters of a job."""
    job_id = await require_visible(cluster, call)
    detail = await cluster.dispatcher.job(job_id)
    table = (await cluster.dispatcher.job_record(job_id)).stages
    return Metrics(metrics=tuple(_metrics(detail, table.stages)))


def plan_of(table: StageTable) -> Plan:
    """The graph of the stages in ``table``, without parents that are not kept."""
    kept = {stage.id for stage in table.stages}
    jobs: dict[int, list[StageReport]] = {}
    for stage in table.stages:
        jobs.setdefault(stage.job, []).append(stage)
    return Plan(
        jobs=tuple(
            PlanJob(
                id=job,
                description=next((stage.description for stage in stages if stage.description), ""),
                stages=tuple(stage.id for stage in stages),
            )
            for job, stages in sorted(jobs.items())
        ),
        nodes=tuple(
            PlanNode(
                id=stage.id,
                name=stage.name,
                operators=stage.operators,
                parents=tuple(parent for parent in stage.parents if parent in kept),
                state=stage.state,
                tasks_total=stage.tasks_total,
                tasks_finished=stage.tasks_finished,
            )
            for stage in table.stages
        ),
        left_out=table.left_out,
    )


def _metrics(detail: JobDetail, stages: Iterable[StageReport]) -> Iterable[Metric]:
    yield Metric(id="duration_ms", value=detail.duration_ms)
    yield Metric(id="attempt", value=detail.attempt)
    yield Metric(id="executors_running", value=sum(each.state == "RUNNING" for each in detail.executors))
    for name in JobProgress.__struct_fields__:
        yield Metric(id=name, value=getattr(detail.progress, name))
    listed = list(stages)
    for name in _SUMMED:
        yield Metric(id=name, value=sum(getattr(stage, name) for stage in listed))


ROUTES = (
    Route("GET", "/v1/jobs/{job_id}/stages", "jobs.read", list_job_stages, errors=JOB_ERRORS),
    Route("GET", "/v1/jobs/{job_id}/plan", "jobs.read", get_job_plan, errors=JOB_ERRORS),
    Route("GET", "/v1/jobs/{job_id}/metrics", "jobs.read", get_job_metrics, errors=JOB_ERRORS),
)
