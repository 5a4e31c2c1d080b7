"""The cluster event stream and the savepoint list reveal nothing of jobs hidden from the caller."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from sluice.pki.assertions.principal import Credential, Principal
from sluice.pki.assertions.tokens import Assertion
from sluice.runtime.jobmanager.dispatcher.job_feed import JobFeed
from sluice.runtime.jobmanager.errors import JobNotFound
from sluice.runtime.rest.cluster import Cluster
from sluice.runtime.rest.protocol.assertion import ASSERTED
from sluice.runtime.rest.protocol.route import Call, NoQuery
from sluice.runtime.rest.protocol.streams import EventStream, Produce
from sluice.runtime.rest.resources import events
from sluice.runtime.rest.resources.events import EventsQuery, stream_cluster
from sluice.runtime.rest.resources.savepoints import list_savepoints

ADAS, EVES, LATE = "a" * 32, "e" * 32, "c" * 32


class Jobs:
    """A fake Dispatcher."""

    def __init__(self) -> None:
        self.owners = {ADAS: "ada", EVES: "eve"}

    async def job(self, job_id: str) -> Any:
        if job_id not in self.owners:
            raise JobNotFound(f"there is no job {job_id}")
        summary = SimpleNamespace(id=job_id, owner=self.owners[job_id])
        return SimpleNamespace(**vars(summary), summary=lambda: summary)

    async def jobs(self) -> tuple[Any, ...]:
        return tuple([(await self.job(job_id)).summary() for job_id in self.owners])

    async def savepoints(self) -> tuple[Any, ...]:
        return ()


class Told:
    """An event stream that changes the set of jobs while it is being read."""

    def __init__(self, jobs: Jobs, feed: JobFeed) -> None:
        self._jobs, self._feed = jobs, feed
        self._steps = iter((self._late_one, self._all_gone, self._nothing))
        self.told: list[tuple[str, str]] = []

    @property
    def over(self) -> bool:
        step = next(self._steps, None)
        if step is not None:
            step()
        return step is None

    async def send(self, event: str, document: Any, _: str = "") -> None:
        self.told.append((event, getattr(document, "id", "")))

    async def breathe(self) -> None:
        """Do nothing."""

    async def serve(self, _: Call[Any], produce: Produce) -> web.StreamResponse:
        await produce(cast("EventStream", self))
        return web.StreamResponse()

    def _late_one(self) -> None:
        self._jobs.owners[LATE] = "ada"
        self._feed.changed(LATE)

    def _all_gone(self) -> None:
        gone, self._jobs.owners = self._jobs.owners, {}
        for job_id in gone:
            self._feed.changed(job_id)

    def _nothing(self) -> None:
        """Change nothing, so that the loop ends."""


@pytest.mark.parametrize(
    ("name", "any_owner", "present", "jobs", "removed"),
    [
        pytest.param("eve", False, True, [EVES], [EVES], id="own ones"),
        pytest.param("eve", False, False, [], [EVES], id="own ones, which it knows already"),
        pytest.param("ada", False, True, [ADAS, LATE], [ADAS, LATE], id="with one that came meanwhile"),
        pytest.param("bob", False, True, [], [], id="of none"),
        pytest.param("grace", True, False, [LATE], [ADAS, EVES, LATE], id="of all"),
    ],
)
async def test_the_event_stream_reports_jobs_and_removed_jobs_only_to_those_who_could_see_them(  # noqa: PLR0917  # a row of the table
    monkeypatch: pytest.MonkeyPatch, name: str, any_owner: bool, present: bool, jobs: list[str], removed: list[str]
) -> None:
    monkeypatch.setattr(events, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(events, "overview_of", _numbers)
    behind, feed = Jobs(), JobFeed()
    stream = Told(behind, feed)
    granted = frozenset({"events.read"})
    request = make_mocked_request("GET", "/v1/events")
    request[ASSERTED] = Assertion(
        Principal(name, (), "token", Credential("token", "id-1")),
        "",
        may_any=granted if any_owner else frozenset(),
        may_own=granted,
        operation="events.read",
    )
    cluster = cast("Cluster", SimpleNamespace(dispatcher=behind, feed=feed, streams=stream))
    await stream_cluster(cluster, Call(request, {}, EventsQuery(present=present)))
    assert sorted({job_id for event, job_id in stream.told if event == "job"}) == sorted(jobs)
    assert sorted(job_id for event, job_id in stream.told if event == "removed") == sorted(removed)


async def _numbers(_: Cluster) -> str:
    return "3 jobs"


@pytest.mark.parametrize(("name", "any_owner", "seen"), [("eve", False, 1), ("bob", False, 0), ("bob", True, 2)])
async def test_savepoints_are_listed_only_to_those_who_may_see_their_jobs(
    name: str, any_owner: bool, seen: int
) -> None:
    """Whether or not the cluster still keeps the job."""

    class Savepoints(Jobs):
        async def savepoints(self) -> tuple[Any, ...]:
            return tuple(SimpleNamespace(id=f"sp-{owner}", owner=owner) for owner in ("ada", "eve"))

    request = make_mocked_request("GET", "/v1/savepoints")
    granted = frozenset({"savepoints.read"}) if any_owner else frozenset[str]()
    request[ASSERTED] = Assertion(
        Principal(name, (), "token", Credential("token", "x")), "", may_any=granted, operation="savepoints.read"
    )
    cluster = cast("Cluster", SimpleNamespace(dispatcher=Savepoints()))
    assert len((await list_savepoints(cluster, Call(request, {}, NoQuery()))).savepoints) == seen
