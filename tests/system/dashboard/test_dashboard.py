"""People use the dashboard with a real browser, through the real gateway."""

from __future__ import annotations

import msgspec

from sluice.gateway.principal import AccessRole
from sluice.runtime.messages import JobState

from .conftest import Stage, sign_in

COUNT_POLLS = """
window.polls = 0;
document.addEventListener('htmx:beforeRequest', event => setTimeout(() => {
  const { elt, requestConfig } = event.detail;
  if (elt.id === 'live' && !requestConfig.triggeringEvent && !event.defaultPrevented) window.polls += 1;
}));
"""


async def test_a_user_signs_in_with_a_token_and_sees_live_changes_of_the_cluster(small: Stage) -> None:
    tab = small.tab
    await sign_in(small, small.gateway.token(AccessRole.VIEWER))
    await tab.until("document.querySelectorAll('#part-jobs tr[id]').length === 8", "the part with the jobs is there")
    await tab.until("document.querySelectorAll('#part-taskmanagers tr[id]').length === 5", "so are the TaskManagers")
    await tab.until("document.querySelector('#part-leader .badge.ok')?.textContent === 'jm-2'", "and who stands by")
    job_id = next(iter(small.dispatcher.details))
    await tab.go(f"{small.url}/ui/jobs/{job_id}")
    await tab.until("document.querySelector('progress[aria-label=Tasks]').value === 131", "where the job is")
    small.dispatcher.progress(job_id, tasks_finished=200)
    await tab.until("document.querySelector('progress[aria-label=Tasks]').value === 200", "it moves by itself")


async def test_changes_are_pushed_to_the_page_without_polling(small: Stage) -> None:
    tab, job_id = small.tab, next(iter(small.dispatcher.details))
    # Every request of htmx that nobody's event has triggered is a page asking by itself.
    await tab.call("Page.addScriptToEvaluateOnNewDocument", source=COUNT_POLLS)
    await sign_in(small, small.gateway.token(AccessRole.VIEWER), f"/ui/jobs/{job_id}")
    await tab.until("performance.getEntriesByName(location.origin + '/auth/whoami').length > 0", "rights are known")
    for done in range(132, 140):
        small.dispatcher.progress(job_id, tasks_finished=done)
        await tab.until(f"document.querySelector('progress[aria-label=Tasks]').value === {done}", "told at once")
    assert await tab.evaluate("window.polls") <= 1, "a stream instead of questions"
    # The overview and the list likewise; a job that appears is there by itself.
    await tab.go(f"{small.url}/ui/jobs?state=ACTIVE")
    await tab.until("document.querySelectorAll('#live tr[id]').length === 3", "the list")
    other = list(small.dispatcher.details)[1]
    await small.dispatcher.cancel_job(other)
    small.dispatcher.feed.changed(other)
    await tab.until("document.querySelectorAll('#live tr[id]').length === 2", "it has gone from the list")


async def test_a_savepoint_can_be_made_only_by_a_permitted_user(small: Stage) -> None:
    tab = small.tab
    mine, others = (
        next(
            each
            for each in small.dispatcher.details.values()
            if each.name == "clickstream.py" and (each.owner == "ada") is own
        )
        for own in (True, False)
    )
    await _running(small, mine.id, others.id)
    await sign_in(small, small.gateway.token(AccessRole.VIEWER), f"/ui/jobs/{others.id}")
    await tab.until("document.querySelector('#checkpoints')", "its checkpoints are shown")
    assert not await tab.evaluate("document.querySelector('#make-savepoint summary').checkVisibility()")
    await tab.call("Network.clearBrowserCookies")
    await sign_in(small, small.gateway.token(AccessRole.SUBMITTER, "ada"), f"/ui/jobs/{mine.id}")
    await tab.until("document.querySelector('#make-savepoint summary')?.checkVisibility()", "it is one's own")
    for button, stop in (("#savepoint", False), ("#stop-with-savepoint", True)):
        await tab.click("#make-savepoint summary")
        await tab.click(button)
        await tab.until(f"document.querySelectorAll('tr[id^=savepoint-]').length === {1 + stop}", "it is being made")
    assert [each.stop for each in small.dispatcher.asked[mine.id]] == [False, True]
    assert others.id not in small.dispatcher.asked


async def test_shuffle_workers_are_shown_and_can_be_drained_only_by_a_permitted_user(small: Stage) -> None:
    tab = small.tab
    await sign_in(small, small.gateway.token(AccessRole.VIEWER))
    await tab.until("document.querySelector('#part-shuffle')?.innerText.includes('excluded: sw-3')", "on the overview")
    await tab.go(f"{small.url}/ui/shuffle")
    assert "its disks are full" in await tab.text()
    assert await tab.evaluate("document.querySelectorAll('[id^=kept-]').length") == 3, "a row for each job"
    assert not await tab.evaluate("document.querySelector('#worker-sw-1 summary').checkVisibility()")
    await tab.call("Network.clearBrowserCookies")
    await sign_in(small, small.gateway.token(AccessRole.ADMIN), "/ui/shuffle")
    await tab.until("document.querySelector('#worker-sw-1 summary').checkVisibility()", "an administrator may")
    await tab.click("#worker-sw-1 summary")
    await tab.click("#worker-sw-1 button")
    await tab.until("document.querySelector('#worker-sw-1 .badge').textContent === 'DRAINING'", "it is drained")
    # A job's own page says what it keeps there.
    await tab.go(f"{small.url}/ui/jobs/{next(iter(small.dispatcher.details))}")
    await tab.until("document.querySelector('#kept')", "what the job keeps")


async def test_an_open_log_shows_new_lines(small: Stage) -> None:
    tab, job_id = small.tab, next(iter(small.dispatcher.details))
    await sign_in(small, small.gateway.token(AccessRole.VIEWER), f"/ui/jobs/{job_id}/logs?source=driver.stdout")
    await tab.until("document.querySelector('#log').textContent.includes('task 59 done')", "what was written before")
    small.dispatcher.log += "<b>the next line</b>\n"
    await tab.until("document.querySelector('#log').textContent.endsWith('<b>the next line</b>\\n')", "it follows")


async def test_cancelling_is_offered_only_to_a_permitted_user(small: Stage) -> None:
    tab = small.tab
    mine, others = (
        next(each for each in small.dispatcher.details.values() if (each.owner == "ada") is own)
        for own in (True, False)
    )
    await sign_in(small, small.gateway.token(AccessRole.VIEWER), f"/ui/jobs/{others.id}")
    await tab.until("sessionStorage.getItem('rights')", "the page knows what one may do")
    assert "Cancel" not in await tab.text()
    await tab.call("Network.clearBrowserCookies")
    await sign_in(small, small.gateway.token(AccessRole.SUBMITTER, "ada"), f"/ui/jobs/{others.id}")
    assert others.name not in await tab.text(), "by default whoever submits sees their own jobs alone"
    await tab.go(f"{small.url}/ui/jobs/{mine.id}")
    await tab.until("document.querySelector('summary.danger').checkVisibility()", "it is one's own")
    await tab.until(
        "[...document.querySelectorAll('nav a')].some(each => each.checkVisibility() && each.textContent === 'Jobs')",
        "the list of one's own jobs is offered",
    )
    await tab.click("summary.danger")
    await tab.click("#cancel")
    await tab.until("document.querySelector('.head .badge').textContent === 'CANCELED'", "it is cancelled")
    assert small.dispatcher.cancelled == [mine.id]
    assert "Cancel…" not in await tab.text()


async def _running(scene: Stage, *jobs: str) -> None:
    for job_id in jobs:
        found = scene.dispatcher.details[job_id]
        scene.dispatcher.details[job_id] = msgspec.structs.replace(found, state=JobState.RUNNING, end_time=None)
