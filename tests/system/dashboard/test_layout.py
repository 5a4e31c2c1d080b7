"""Nothing on any page is cut off, from a phone to a wide screen.

Whatever scrolls sideways shows that it does.
"""

from __future__ import annotations

import asyncio
import base64
import os
from pathlib import Path
from typing import Any

from sluice.gateway.audit_log.log import audit_file
from sluice.gateway.principal import AccessRole
from sluice.pki.config import PkiConfig
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.runtime.messages import JobState
from tests.integration.gateway.conftest import TRUST_DOMAIN
from tests.system.browser.chromium import Tab

from .conftest import Stage, settled, sign_in
from .test_quality import OVERFLOW, PAGES, looks, serious

WIDTHS = (375, 768, 1280, 1920)
WITHOUT_SCROLLING = 1280
"""From this width on tables fit."""
MORE_PAGES = ("/ui/jobs/{failed}", "/ui/jobs/{failed}/trust", "/ui/nopage", "/auth/account")

CUT_OFF = """(() => {
  const scrolls = element => /auto|scroll/.test(getComputedStyle(element).overflowX);
  const clips = element => /hidden|clip/.test(getComputedStyle(element).overflowX);
  const kind = element => element.tagName.toLowerCase() + '.' + (element.className.baseVal ?? element.className);
  const said = element => (element.innerText || element.getAttribute('aria-label') || '').trim().slice(0, 40);
  const name = element => (element.id ? '#' + element.id : kind(element)) + ' ' + said(element);
  const found = [];
  const all = 'a, button, input, select, summary, [tabindex], th, td, h1, h2, h3, .badge, .tile .value, dd, dt';
  for (const element of document.querySelectorAll(all)) {
    if (!element.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true })) continue;
    // What is for screen readers alone, or comes into sight with the focus.
    const head = element.closest('thead');
    if (element.closest('.spoken, .skip') || (head && getComputedStyle(head).position === 'absolute')) continue;
    const box = element.getBoundingClientRect();
    if (!box.width || !box.height) continue;
    const cell = element.matches('th, td, dd, .badge, button, summary, h1, h2');
    if (cell && element.scrollWidth > element.clientWidth + 1 && getComputedStyle(element).display !== 'inline' &&
        !scrolls(element)) found.push('its content is wider than it: ' + name(element));
    let [left, right] = [box.left, box.right];
    for (let above = element.parentElement; above; above = above.parentElement) {
      const edge = above === document.documentElement
        ? { left: 0, right: document.documentElement.clientWidth } : above.getBoundingClientRect();
      if (left >= edge.left - 1 && right <= edge.right + 1) continue;
      if (scrolls(above) && above !== document.documentElement && above !== document.body) {
        const hint = getComputedStyle(above).backgroundImage.includes('gradient');
        const focusable = above.tabIndex >= 0 || above.querySelector('a, button');
        if (!hint || !focusable) found.push('it scrolls and does not show it: ' + name(above));
        else if (innerWidth >= FITS) found.push('it has to scroll in a wide window: ' + name(above));
        break;
      }
      if (clips(above) || above === document.documentElement) { found.push('cut off: ' + name(element)); break; }
    }
  }
  return [...new Set(found)].slice(0, 12);
})()""".replace("FITS", str(WITHOUT_SCROLLING))


def _prepare(scene: Stage) -> None:
    """Issue certificates with serial numbers of full length; check that the audit log has records."""
    home = scene.gateway.home
    issuer = LocalIssuer(home, PkiConfig(trust_domain=TRUST_DOMAIN))
    issuer.ensure_authorities()
    for role, name in ((Role.AUTH, "auth-1"), (Role.TASKMANAGER, "tm-1"), (Role.SHUFFLE_WORKER, "shuffle-worker-17")):
        issuer.issue_to(home.identity(role, name), SpiffeId.process(TRUST_DOMAIN, role, name))
    assert audit_file(home).exists()


async def _picture(tab: Tab, name: str, width: int) -> None:
    """Save a screenshot for people if ``SLUICE_LAYOUT_PICTURES`` names a directory."""
    directory = os.environ.get("SLUICE_LAYOUT_PICTURES")
    if directory is None:
        return
    height = await tab.evaluate("document.documentElement.scrollHeight")
    clip = {"x": 0, "y": 0, "width": width, "height": min(height, 4000), "scale": 1}
    taken = await tab.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
    await asyncio.to_thread(Path(directory, f"{name}.png").write_bytes, base64.b64decode(taken["data"]))


async def test_nothing_is_cut_off_on_any_page_at_any_width(small: Stage) -> None:
    tab, details = small.tab, small.dispatcher.details
    failed = next(key for key, job in details.items() if job.state is JobState.FAILED)
    names = {"{job}": next(iter(details)), "{failed}": failed}
    _prepare(small)
    await sign_in(small, small.gateway.token(AccessRole.ADMIN))
    found: list[Any] = []
    for path in (*PAGES, *MORE_PAGES):
        for key, value in names.items():
            path = path.replace(key, value)  # noqa: PLW2901  the same page
        await tab.go(small.url + path)
        await settled(tab)
        for scheme in ("light", "dark"):
            for width in WIDTHS:
                await looks(tab, width, scheme)
                if await tab.evaluate(OVERFLOW) > 0:
                    found.append((path, width, "the page is wider than the window"))
                if scheme == "light":
                    found += [(path, width, each) for each in await tab.evaluate(CUT_OFF)]
                await _picture(tab, f"{path.strip('/').replace('/', '-')}-{width}-{scheme}", width)
            found += [(path, scheme, each) for each in await serious(tab)]
    assert found == [], "\n".join(map(str, found))


async def test_a_missing_path_is_a_page_for_browsers_and_a_problem_document_for_programs(small: Stage) -> None:
    tab = small.tab
    await sign_in(small, small.gateway.token(AccessRole.VIEWER))
    for path, title in (("/ui/nopage", "Not Found"), ("/v1/nothing", "Not Found"), ("/auth/nopage", "Not Found")):
        await tab.go(small.url + path)
        assert await tab.evaluate("document.title") == f"{title} · Sluice"
        assert await tab.evaluate("getComputedStyle(document.querySelector('.card')).borderRadius") == "12px"
        problem = await tab.evaluate(
            f"fetch('{path}', {{ headers: {{ accept: 'application/json' }} }}).then(async answer =>"
            " JSON.stringify([answer.status, answer.headers.get('content-type'), (await answer.json()).title]))"
        )
        assert problem == '[404,"application/problem+json","Not Found"]'
