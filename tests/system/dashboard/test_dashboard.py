"""People use the dashboard with a real browser, through the real gateway."""

from __future__ import annotations

from gateway.principal import AccessRole

from .conftest import Stage, sign_in


async def test_somebody_signs_in_with_a_token_and_sees_the_cluster_move(small: Stage) -> None:
    tab = small.tab
    await sign_in(small, small.gateway.token(AccessRole.VIEWER))
    await tab.until("document.querySelectorAll('#part-jobs tr[id]').length === 8", "the part with the jobs is there")
    await tab.until("document.querySelectorAll('#part-taskmanagers tr[id]').length === 5", "so are the TaskManagers")
    job_id = next(iter(small.dispatcher.details))
    await tab.go(f"{small.url}/ui/jobs/{job_id}")
    await tab.until("document.querySelector('progress[aria-label=Tasks]').value === 131", "where the job is")
    small.dispatcher.progress(job_id, tasks_finished=200)
    await tab.until("document.querySelector('progress[aria-label=Tasks]').value === 200", "it moves by itself")


async def test_a_log_is_followed(small: Stage) -> None:
    tab, job_id = small.tab, next(iter(small.dispatcher.details))
    await sign_in(small, small.gateway.token(AccessRole.VIEWER), f"/ui/jobs/{job_id}/logs?source=driver.stdout")
    await tab.until("document.querySelector('#log').textContent.includes('task 59 done')", "what was written before")
    small.dispatcher.log += "<b>the next line</b>\n"
    await tab.until("document.querySelector('#log').textContent.endsWith('<b>the next line</b>\\n')", "it follows")


async def test_only_who_may_is_offered_to_cancel(small: Stage) -> None:
    tab = small.tab
    mine, others = (
        next(each for each in small.dispatcher.details.values() if (each.owner == "ada") is own)
        for own in (True, False)
    )
    await sign_in(small, small.gateway.token(AccessRole.SUBMITTER, "ada"), f"/ui/jobs/{others.id}")
    await tab.until("sessionStorage.getItem('rights')", "the page knows what one may do")
    assert "Cancel" not in await tab.text()
    await tab.go(f"{small.url}/ui/jobs/{mine.id}")
    await tab.until("document.querySelector('summary.danger').checkVisibility()", "it is one's own")
    await tab.click("summary.danger")
    await tab.click("#cancel")
    await tab.until("document.querySelector('.head .badge').textContent === 'CANCELED'", "it is cancelled")
    assert small.dispatcher.cancelled == [mine.id]
    assert "Cancel…" not in await tab.text()
