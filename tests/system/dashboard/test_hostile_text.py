"""Text from jobs, their programs and clients is shown as text on every page.

It never becomes an element, a request or a script.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sluice.gateway.principal import AccessRole
from sluice.runtime.jobmanager.views import ExecutorView, Failure
from sluice.runtime.messages import JobState

from .conftest import WATCH, Stage, settled, sign_in
from .test_quality import PAGES

ATTACKS = (
    "<img src=x onerror=\"window.taken='img'\">",
    "\"><script>window.taken='script'</script>",
    "' autofocus onfocus='window.taken=1' x='",
    '"><div hx-get="/v1/jobs" hx-trigger="load" hx-swap="outerHTML"></div>',
    "</pre></td></table><iframe srcdoc=\"<script>parent.window.taken='frame'</script>\"></iframe>",
    "javascript:window.taken=1//",
    "{{ 7 * 7 }}{% raw %}${7*7}",
    "\u202egnp.exe\u2066\x00\x1b[31m\ufeff",
)
ADDED = """[...document.querySelectorAll('img, iframe, object, embed, base, script:not([src]), [onerror], [onfocus],' +
  ' [srcdoc], a[href^="javascript"], main style, main link, main meta, td div[hx-get]')].map(each => each.outerHTML)"""


def _spoil(scene: Stage) -> str:
    """Put hostile text into everything that comes from outside; return the id of a failed job."""
    details, everything = scene.dispatcher.details, "\n".join(ATTACKS)
    failed = next(key for key, job in details.items() if job.state is JobState.FAILED)
    for number, (key, job) in enumerate(details.items()):
        attack = ATTACKS[number % len(ATTACKS)]
        spoilt: dict[str, Any] = {"name": attack, "owner": attack, "pending_reason": attack}
        spoilt["executors"] = tuple(
            ExecutorView(
                id=each.id, taskmanager=attack, slot=0, state=attack, exit_reason=attack, started_at=each.started_at
            )
            for each in job.executors
        )
        if key == failed:
            spoilt["failure"] = Failure(error=everything, traceback=everything)
        details[key] = msgspec.structs.replace(job, **spoilt)
    scene.dispatcher.log = everything * 3
    return failed


async def test_hostile_text_is_shown_as_text_on_every_page(small: Stage) -> None:
    tab = small.tab
    running = next(iter(small.dispatcher.details))
    failed = _spoil(small)
    await tab.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
    await sign_in(small, small.gateway.token(AccessRole.ADMIN))
    # 1. Records of the audit log say it as well: paths, queries and principals of requests that were refused.
    for attack in ATTACKS[:6]:
        await tab.evaluate(f"fetch('/v1/jobs/' + encodeURIComponent({msgspec.json.encode(attack).decode()}))")
    # 2. Every page, and addresses that say it themselves.
    queries = ("/ui/jobs?text=%22%3E%3Cimg%20src%3Dx%20onerror%3D%22window.taken%3D1%22%3E", "/ui/%3Cscript%3E")
    searches = ("/auth/ui/audit-log?principal=%22%3E%3Cscript%3Ewindow.taken%3D1%3C%2Fscript%3E", "/auth/%22%3E%3Cb%3E")
    found: list[object] = []
    for path in (*PAGES, "/ui/jobs/{failed}", *queries, *searches, '/ui#"><img src=x onerror=window.taken=1>'):
        await tab.go(small.url + path.replace("{job}", running).replace("{failed}", failed))
        await settled(tab)
        found += [(path, each) for each in await tab.evaluate("window.violations")]
        found += [(path, each) for each in await tab.evaluate(ADDED)]
        if await tab.evaluate("window.taken !== undefined"):
            found.append((path, "a script of somebody else's has run"))
        if "49" in await tab.evaluate("[...document.querySelectorAll('td.name')].map(each => each.innerText).join()"):
            found.append((path, "a template in a name was rendered"))
    assert found == []
    # 3. And it is all there, as text.
    await tab.go(f"{small.url}/ui/jobs/{failed}")
    await settled(tab)
    for attack in ATTACKS[:6]:
        assert attack in await tab.text()


async def test_every_answer_has_a_content_security_policy_without_unsafe_inline(small: Stage) -> None:
    tab, job = small.tab, next(iter(small.dispatcher.details))
    await sign_in(small, small.gateway.token(AccessRole.ADMIN))
    parts = ("jobs", "leader", "concerns", "shuffle", "taskmanagers", "trust", f"exceptions/{job}", f"trust/{job}")
    paths = [path.replace("{job}", job) for path in (*PAGES, "/ui/nopage", "/auth/login", "/auth/account", "/v1/jobs")]
    for path in (*paths, *(f"/ui/parts/{part}" for part in parts)):
        policy = await tab.evaluate(
            f"fetch('{path}', {{ headers: {{ accept: 'text/html' }} }})"
            ".then(answer => answer.headers.get('content-security-policy'))"
        )
        assert policy is not None, path
        assert policy.startswith("default-src 'none'"), (path, policy)
        for unsafe in ("unsafe-inline", "unsafe-eval", "*", "data:", "http:"):
            assert unsafe not in policy, (path, policy)
