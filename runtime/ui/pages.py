"""The pages: ask an endpoint, render. What is shown is decided in the modules beside this one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

from aiohttp import web

from runtime.jobmanager.gateways import DispatcherGateway, ResourceManagerInternalGateway
from runtime.log_files import MAX_CHUNK_BYTES
from runtime.messages import ConnectionEvidence, JobState, LogChunk
from runtime.rest.assertion import asserted
from runtime.rest.handlers import ClusterFacts, RestHandler, job_id_of, number_of
from runtime.rest.problems import problem_of
from runtime.ui.job_pages import (
    MAX_SEARCH_CHARACTERS,
    JobFilter,
    bars,
    failures_worth_a_look,
    history,
    page_of,
    recent,
)
from runtime.ui.trust_facts import TrustFacts, anchor_tone
from runtime.ui.trust_map import TrustMap, trust_map
from runtime.ui.trust_picture import draw
from webui.rendering import HTML, Pages, page_headers

_LOG = logging.getLogger(__name__)

MAX_TASKMANAGERS_ON_THE_OVERVIEW = 24
MAX_PAGE_NUMBER = 1_000_000
MAX_JOBS_ON_THE_MAP = 6

REST_CHANNEL = "rest"

Page = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Dashboard:
    """The handlers of :data:`runtime.rest.routes.PAGE_ROUTES`."""

    def __init__(
        self,
        dispatcher: DispatcherGateway,
        resource_manager: ResourceManagerInternalGateway,
        facts: ClusterFacts,
        *,
        trust: Callable[[], TrustFacts],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._dispatcher = dispatcher
        self._resource_manager = resource_manager
        self._facts = facts
        self._trust = trust
        self._clock = clock
        self._templates = Pages(Path(__file__).parent / "templates")

    def by_path(self) -> Mapping[str, RestHandler]:
        """The handler of each page."""
        pages: Mapping[str, Page] = {
            "/": self.root,
            "/ui": self.overview,
            "/ui/jobs": self.jobs,
            "/ui/parts/jobs": self.recent_jobs,
            "/ui/jobs/{job_id}": self.job,
            "/ui/jobs/{job_id}/logs": self.logs,
            "/ui/jobs/{job_id}/trust": self.job_trust,
            "/ui/parts/trust/{job_id}": self.job_trust_part,
            "/ui/parts/trust": self.trust_of_jobs,
            "/ui/trust": self.trust,
            "/ui/taskmanagers": self.taskmanagers,
            "/ui/parts/taskmanagers": self.slots,
        }
        return {path: self._shaped(page) for path, page in pages.items()}

    async def root(self, _: web.Request) -> web.Response:
        """The address of the cluster alone leads to the dashboard."""
        return web.Response(status=HTTPStatus.SEE_OTHER, headers={"location": "/ui"})

    async def overview(self, request: web.Request) -> web.Response:
        """The cluster at a glance: numbers here, lists in parts that have operations of their own."""
        jobs = await self._dispatcher.jobs()
        taskmanagers = await self._resource_manager.taskmanagers()
        states = [job.state for job in jobs]
        return self._page(
            request,
            "overview.html",
            facts=self._facts,
            taskmanagers=len(taskmanagers),
            slots_total=sum(each.slots_total for each in taskmanagers),
            slots_free=sum(each.slots_free for each in taskmanagers),
            running=sum(not state.terminal for state in states),
            finished=states.count(JobState.FINISHED),
            failed=states.count(JobState.FAILED),
            cancelled=states.count(JobState.CANCELED),
        )

    async def jobs(self, request: web.Request) -> web.Response:
        """All jobs, a page at a time."""
        wanted = JobFilter(request.query.get("state", "")[:20], request.query.get("text", "")[:MAX_SEARCH_CHARACTERS])
        number = number_of(request, "page", default=1, most=MAX_PAGE_NUMBER)
        page = page_of(await self._dispatcher.jobs(), wanted, number)
        return self._page(request, "jobs.html", page=page, wanted=wanted, states=[state.value for state in JobState])

    async def recent_jobs(self, request: web.Request) -> web.Response:
        """A part of the overview: jobs that run or ended last, and those that failed."""
        jobs = await self._dispatcher.jobs()
        worrying = failures_worth_a_look(jobs, self._clock())
        return self._page(request, "part_jobs.html", jobs=recent(jobs), worrying=worrying)

    async def job(self, request: web.Request) -> web.Response:
        """One job."""
        detail = await self._dispatcher.job(job_id_of(request))
        return self._page(request, "job.html", job=detail, steps=history(detail), bars=bars(detail))

    async def logs(self, request: web.Request) -> web.Response:
        """The logs of a job: the end of one, which a script follows."""
        job_id = job_id_of(request)
        sources = await self._dispatcher.job_logs(job_id)
        source = request.query.get("source", "") or next(iter(sources), "")
        chunk = LogChunk(data="", offset=0, next_offset=0, end=True)
        if source:
            offset = number_of(request, "offset", default=0, most=1 << 60)
            chunk = await self._dispatcher.read_job_log(job_id, source, offset, MAX_CHUNK_BYTES)
        return self._page(request, "logs.html", job_id=job_id, sources=sources, source=source, chunk=chunk)

    async def taskmanagers(self, request: web.Request) -> web.Response:
        """All TaskManagers and their slots."""
        return self._page(request, "taskmanagers.html", taskmanagers=await self._resource_manager.taskmanagers())

    async def slots(self, request: web.Request) -> web.Response:
        """A part of the overview: the first TaskManagers and their slots."""
        found = await self._resource_manager.taskmanagers()
        return self._page(
            request,
            "part_taskmanagers.html",
            taskmanagers=found[:MAX_TASKMANAGERS_ON_THE_OVERVIEW],
            more=max(0, len(found) - MAX_TASKMANAGERS_ON_THE_OVERVIEW),
        )

    async def trust(self, request: web.Request) -> web.Response:
        """The trust map: the cluster's own processes and channels."""
        evidence = await self._resource_manager.connections()
        facts = await asyncio.to_thread(self._trust)
        found = self._map(evidence, facts, local=[(REST_CHANNEL, gateway_of(facts.identity), facts.identity)])
        return self._page(
            request,
            "trust.html",
            map=found,
            picture=draw(found),
            facts=facts,
            anchors=[(each, anchor_tone(each, self._clock())) for each in facts.anchors],
        )

    async def trust_of_jobs(self, request: web.Request) -> web.Response:
        """A part of the trust map: a place for each job that runs, whose connections have an operation of their own."""
        running = [job for job in await self._dispatcher.jobs() if not job.state.terminal]
        return self._page(
            request,
            "part_trust.html",
            jobs=running[:MAX_JOBS_ON_THE_MAP],
            more=max(0, len(running) - MAX_JOBS_ON_THE_MAP),
        )

    async def job_trust(self, request: web.Request) -> web.Response:
        """The trust map of one job."""
        return await self._of_job(request, "job_trust.html")

    async def job_trust_part(self, request: web.Request) -> web.Response:
        """The same as a part of the whole map."""
        return await self._of_job(request, "part_job_trust.html")

    async def _of_job(self, request: web.Request, template: str) -> web.Response:
        job_id = job_id_of(request)
        evidence = await self._dispatcher.job_connections(job_id)
        facts = await asyncio.to_thread(self._trust)
        found = self._map(evidence, facts)
        picture = draw(found, of_a_job=True)
        return self._page(request, template, job_id=job_id, map=found, picture=picture, facts=facts)

    def _map(
        self, evidence: tuple[ConnectionEvidence, ...], facts: TrustFacts, local: Sequence[tuple[str, str, str]] = ()
    ) -> TrustMap:
        return trust_map(evidence, now=self._clock(), local=local, audit=facts.audit)

    def _page(self, request: web.Request, template: str, status: int = 200, **values: Any) -> web.Response:  # noqa: ANN401
        text = self._templates.render(
            template, who=asserted(request).principal, here=_place(request.path), now=self._clock(), **values
        )
        return web.Response(text=text, status=status, content_type=HTML, headers=page_headers())

    def _shaped(self, page: Page) -> RestHandler:
        """Errors of a page are told as a page."""

        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                return await page(request)
            except Exception as error:  # noqa: BLE001  # the outermost place of a page: nothing unshaped leaves it
                problem = problem_of(error)
                if problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                    _LOG.error("the page %s failed", request.path, exc_info=error)
                return self._page(request, "problem.html", problem.status, title=problem.title, detail=problem.detail)

        return handle


def gateway_of(identity: str) -> str:
    """The gateway's identity in the trust domain of ``identity``; over a unix socket it shows none."""
    trust_domain = identity.removeprefix("spiffe://").partition("/")[0]
    return f"spiffe://{trust_domain}/gateway/envoy"


def _place(path: str) -> str:
    """The entry of the navigation that a page belongs to."""
    return "/ui/jobs" if path.startswith("/ui/jobs/") else path
