"""The dashboard's pages over a real unix socket, with a simulated cluster."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec
import pytest

from sluice.core.home import Home
from sluice.pki.assertions.keys import AssertionKeys, assertion_keys_file
from sluice.runtime.config import RuntimeConfig
from sluice.runtime.jobmanager.views import QueueJobView, QueueView
from sluice.runtime.messages import JobState
from sluice.runtime.rest.serving import handler_of
from sluice.runtime.rest_server.routes import ROUTES
from sluice.runtime.rest_server.server import RestServer, make_application
from sluice.runtime.scheduling_config import QueueConfig, SchedulingConfig
from sluice.runtime.ui.pages import PAGES
from tests.assertions import AssertingGateway
from tests.simulated_cluster import SimulatedDispatcher, SimulatedResourceManager, simulated


@dataclass
class Election:
    """A fake election with the names of the standby JobManagers."""

    standing_by: tuple[str, ...] | None = ("jm-1", "jm-2")

    async def standbys(self) -> tuple[str, ...] | None:
        return self.standing_by


@dataclass
class Browser:
    """A client that views the dashboard's pages."""

    election: Election
    dispatcher: SimulatedDispatcher
    session: aiohttp.ClientSession
    gateway: AssertingGateway
    without_isolation: set[int]
    manager: SimulatedResourceManager

    async def see(self, path: str) -> tuple[int, str, aiohttp.ClientResponse]:
        headers = self.gateway.headers("GET", path, "ada", "viewer")
        async with self.session.get(f"http://rest{path}", headers=headers, allow_redirects=False) as answer:
            return answer.status, await answer.text(), answer

    async def page(self, path: str) -> str:
        status, text, answer = await self.see(path)
        assert status == 200, text
        assert answer.content_type == "text/html"
        return text


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Browser]:
    dispatcher = SimulatedDispatcher(3, 120)
    without_isolation: set[int] = set()
    manager = SimulatedResourceManager(5, busy=list(dispatcher.details)[:3], without_isolation=without_isolation)
    election = Election()
    scheduling = SchedulingConfig(queues=(QueueConfig(name="etl", guaranteed=0.5),))
    cluster = dataclasses.replace(
        simulated(dispatcher, manager, tmp_path),
        standbys=election.standbys,
        config=RuntimeConfig(scheduling=scheduling),
    )
    home = Home.at(tmp_path / "home").create()
    keys = AssertionKeys(assertion_keys_file(home)).keys
    server = RestServer(make_application(lambda route: handler_of(route, cluster), keys), tmp_path / "s" / "rest.sock")
    await server.start()
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(server.path))) as session:
        yield Browser(election, dispatcher, session, AssertingGateway(home), without_isolation, manager)
    await server.close()


def test_every_page_requires_an_operation_of_the_rest_api_and_is_read_only() -> None:
    told = {route.operation for route in ROUTES}
    assert {route.operation for route in PAGES} <= told
    assert {route.method for route in PAGES} == {"GET"}, "pages change nothing"


async def test_every_page_has_a_strict_content_security_policy(browser: Browser) -> None:
    job_id = next(iter(browser.dispatcher.details))
    for route in PAGES:
        if route.path == "/":
            continue
        text = await browser.page(route.path.replace("{job_id}", job_id))
        _, _, answer = await browser.see(route.path.replace("{job_id}", job_id))
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert answer.headers["cache-control"] == "no-store"
        for inline in ("<style", " style=", " onclick=", "javascript:", "hx-on", "http://", "https://"):
            assert inline not in text, (route.path, inline)
        assert text.count("<script") == text.count("<script defer src=")


async def test_outside_destinations_on_the_trust_map_of_a_job_are_escaped(browser: Browser) -> None:
    job_id = next(iter(browser.dispatcher.details))
    for path in (f"/ui/jobs/{job_id}/trust", f"/ui/parts/trust/{job_id}"):
        text = await browser.page(path)
        assert "api.example.com:443" in text
        assert "Outside" in text
        assert "&lt;script&gt;evil&lt;/script&gt;:443" in text
        assert "refused" in text
        assert "<script>evil" not in text


async def test_the_root_path_redirects_to_the_overview(browser: Browser) -> None:
    status, _, answer = await browser.see("/")
    assert (status, answer.headers["location"]) == (303, "/ui")


async def test_the_overview_shows_slot_and_job_counts(browser: Browser) -> None:
    text = await browser.page("/ui")
    assert 'href="/ui" aria-current="page"' in text
    assert ">14 <small>of 20</small>" in text
    assert "24 jobs have failed" in text
    # What has another operation is not in it: the gateway decides about each part by itself.
    assert "cert_inventory.py" not in text
    assert "tm-1" not in text


async def test_taskmanagers_without_a_sandbox_are_shown_on_every_page_about_the_cluster(browser: Browser) -> None:
    for path in ("/ui", "/ui/parts/concerns", "/ui/trust"):
        assert "without a sandbox" not in await browser.page(path)
        assert "no sandbox" not in await browser.page(path)
    assert "Every process of a job is in a sandbox." in await browser.page("/ui/trust")
    assert (await browser.page("/ui/taskmanagers")).count('<span class="badge ok">sandbox</span>') == 5

    browser.without_isolation |= {2, 4}

    assert "2 TaskManagers run jobs without a sandbox" in await browser.page("/ui")
    assert '<li class="bad">2 TaskManagers run jobs without a sandbox.</li>' in await browser.page("/ui/parts/concerns")
    assert "2 TaskManagers have no sandbox for it" in await browser.page("/ui/trust")
    text = await browser.page("/ui/taskmanagers")
    badges = re.findall(r'<span class="badge (ok|bad)">(sandbox|none)</span>', text)
    assert badges == [("ok", "sandbox"), ("bad", "none"), ("ok", "sandbox"), ("bad", "none"), ("ok", "sandbox")]


async def test_the_queues_page_shows_waiting_jobs_with_reason_and_expected_time(browser: Browser) -> None:
    assert "You may use none of the queues" in await browser.page("/ui/queues")
    job_id, other = list(browser.dispatcher.details)[:2]
    waiting = QueueJobView(
        id=job_id, owner="ada", priority=3, slots=1, lacking=2, position=1, waits_for="room", expected_by=int(9e15)
    )
    unknown = QueueJobView(id=other, owner="<b>eve", priority=0, slots=0, lacking=1, position=2, waits_for="slots")
    browser.manager.shown_queues = (
        QueueView(
            name="etl", weight=2.5, guaranteed=0.5, maximum=1, max_slots=8, max_slots_per_user=0, max_priority=9,
            share=0.38, below_guarantee=True,
            slots=3, lacking=3, jobs_waiting=2, jobs_served=0, preempted=4, jobs=(waiting, unknown),
        ),
    )  # fmt: skip
    text = await browser.page("/ui/queues")
    for shown in (
        ">2.5<",
        ">50 % ",
        ">38 %<",
        "3 of 8",
        ">room<",
        "in at most",
        ">unknown<",
        "&lt;b&gt;eve",
        ">waits<",
    ):
        assert shown in text, shown
    assert browser.dispatcher.details[job_id].name in text


async def test_the_overview_shows_the_leader_and_standby_jobmanagers(browser: Browser) -> None:
    assert 'hx-get="/ui/parts/leader"' in await browser.page("/ui")
    text = await browser.page("/ui/parts/leader")
    assert "<code>jobmanager/jm-1</code>" in text
    assert "term 3" in text
    # The leader itself is none, however many sessions of it the election still counts.
    assert re.findall(r'<span class="badge (\w+)">([^<]*)</span>', text) == [("ok", "jm-2")]
    browser.election.standing_by = ()
    assert "none: when it dies, it is started again" in await browser.page("/ui/parts/leader")
    browser.election.standing_by = None
    assert "not known at the moment" in await browser.page("/ui/parts/leader")


async def test_the_overview_shows_the_result_of_the_last_audit(browser: Browser) -> None:
    assert 'hx-get="/ui/parts/concerns"' in await browser.page("/ui")
    text = await browser.page("/ui/parts/concerns")
    assert "The last audit found nothing in 412 checks." in text
    assert 'href="/ui/trust"' in text


async def test_the_jobs_page_is_searchable_and_paginated(browser: Browser) -> None:
    first = await browser.page("/ui/jobs")
    assert "123 jobs" in first
    assert "Page 1 of 3" in first
    assert first.count('<tr id="row-') == 50
    last = await browser.page("/ui/jobs?page=99")
    assert "Page 3 of 3" in last
    assert last.count('<tr id="row-') == 23
    failed = await browser.page("/ui/jobs?state=FAILED&text=ADA")
    assert set(failed.split('<span class="badge ')[1:][0].split("</span>")[:1]) == {'bad">FAILED'}
    assert "No job matches." in await browser.page("/ui/jobs?text=%3Cscript%3Ealert(1)%3C/script%3E")
    assert "3 jobs" in await browser.page("/ui/jobs?state=ACTIVE")


@pytest.mark.parametrize("path", ["/ui/jobs?text=%3Cscript%3Ealert(1)%3C/script%3E", "/ui/jobs/%3Cscript%3Ealert(1)"])
async def test_user_input_is_never_rendered_as_markup(browser: Browser, path: str) -> None:
    status, text, answer = await browser.see(path)
    assert status in {200, 404}
    assert answer.content_type == "text/html"
    assert "<script>alert" not in text


async def test_the_job_page_shows_progress_cancellation_and_failure(browser: Browser) -> None:
    details = browser.dispatcher.details.values()
    running = next(each for each in details if not each.state.terminal)
    text = await browser.page(f"/ui/jobs/{running.id}")
    assert '<progress max="240" value="131"' in text
    assert f'hx-patch="/v1/jobs/{running.id}?mode=cancel"' in text
    assert f'data-needs="jobs.cancel" data-owner="{running.owner}" hidden' in text
    failed = next(each for each in details if each.failure is not None)
    text = await browser.page(f"/ui/jobs/{failed.id}")
    assert "the amount of order 4711 is negative" in text
    assert "Traceback (most recent call last)" in text
    assert "hx-patch" not in text, "what has ended cannot be cancelled"
    assert '<progress max="7" value="6" aria-label="Stages" class="bad">' in text
    exceptions = await browser.page(f"/ui/parts/exceptions/{failed.id}")
    assert "ended attempt 1" in exceptions
    assert "not recovered" in exceptions
    assert "made good" not in exceptions


async def test_the_log_page_shows_the_start_of_the_log_and_where_to_continue(browser: Browser) -> None:
    job_id = next(iter(browser.dispatcher.details))
    text = await browser.page(f"/ui/jobs/{job_id}/logs?source=driver.stderr")
    assert "stage 3: task 59 done" in text
    assert (
        f'data-follow="/v1/jobs/{job_id}/logs?source=driver.stderr" data-next="{len(browser.dispatcher.log)}"' in text
    )


async def test_a_missing_page_is_answered_with_a_404_page(browser: Browser) -> None:
    for path in (
        f"/ui/jobs/{'f' * 32}",
        "/ui/jobs/nonsense",
        f"/ui/jobs/{next(iter(browser.dispatcher.details))}/logs?source=x",
    ):
        status, text, answer = await browser.see(path)
        assert (status, answer.content_type) == (404, "text/html")
        assert "<h1>Not Found</h1>" in text


async def test_an_internal_error_is_answered_with_500_without_details(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken() -> None:
        raise ZeroDivisionError("the secret of the inside")

    monkeypatch.setattr(browser.dispatcher, "jobs", broken)
    status, text, _ = await browser.see("/ui/jobs")
    assert status == 500
    assert "secret" not in text


async def test_a_request_without_an_assertion_is_answered_with_401(browser: Browser) -> None:
    for route in PAGES:
        async with browser.session.get(f"http://rest{route.path.replace('{job_id}', '0' * 32)}") as answer:
            assert answer.status == 401


async def test_the_job_page_shows_stages_as_a_graph_and_a_table(browser: Browser) -> None:
    running = next(each for each in browser.dispatcher.details.values() if not each.state.terminal)
    text = await browser.page(f"/ui/jobs/{running.id}")
    assert text.count('<tr id="stage-') == 7
    assert text.count('<path class="flow"') == 6
    assert "skewed: 78 times the median" in text
    assert "88.0 MB" in text


async def test_the_shuffle_page_lists_problematic_workers_first(browser: Browser) -> None:
    text = await browser.page("/ui/shuffle")
    rows = re.findall(r'id="worker-(sw-\d)".*?class="badge (\w+)">(\w+)<', text)
    assert rows == [
        ("sw-3", "bad", "EXCLUDED"),
        ("sw-4", "warn", "DRAINING"),
        ("sw-1", "ok", "ACTIVE"),
        ("sw-2", "ok", "ACTIVE"),
    ]
    assert "its disks are full" in text
    assert "/srv/more: it is full" in text
    # The largest job first; whoever may not drain is not offered to.
    kept = re.findall(r'id="kept-(\w+)"', text)
    assert kept == list(browser.dispatcher.details)[2::-1]
    assert text.count('data-needs="shuffle.drain" hidden') == 4


async def test_a_savepoint_is_offered_while_a_streaming_job_runs(browser: Browser) -> None:
    running = next(each for each in browser.dispatcher.details.values() if each.name == "clickstream.py")
    detail = msgspec.structs.replace(running, state=JobState.RUNNING)
    browser.dispatcher.details[running.id] = detail
    path = f"/ui/parts/checkpoints/{running.id}"
    text = await browser.page(path)
    assert f'hx-post="/v1/jobs/{running.id}/savepoints"' in text
    assert f'data-needs="jobs.savepoint" data-owner="{running.owner}" hidden' in text
    await browser.dispatcher.trigger_savepoint(running.id, True)
    assert "IN_PROGRESS" in await browser.page(path)
    browser.dispatcher.details[running.id] = msgspec.structs.replace(detail, state=JobState.FINISHED)
    assert "hx-post" not in await browser.page(path)


async def test_pages_name_the_event_stream_that_updates_them(browser: Browser) -> None:
    jobs = browser.dispatcher.details.values()
    running, ended = (next(each for each in jobs if each.state.terminal is over) for over in (False, True))
    assert f'data-events="/v1/jobs/{running.id}/events"' in await browser.page(f"/ui/jobs/{running.id}")
    assert "data-events" not in await browser.page(f"/ui/jobs/{ended.id}"), "it does not change any more"
    assert 'data-events="/v1/events?present=false" data-events-needs="events.read"' in await browser.page("/ui")
