"""Every page is accessible, at narrow and wide widths.

The content security policy refuses nothing on it, and nothing is loaded from elsewhere.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from sluice.gateway.principal import AccessRole
from tests.system.browser.chromium import Tab

from .conftest import WATCH, Stage, settled, sign_in

AXE = Path(__file__).with_name("axe.min.js")
PAGES = (
    "/ui",
    "/ui/jobs",
    "/ui/jobs/{job}",
    "/ui/jobs/{job}/logs",
    "/ui/jobs/{job}/trust",
    "/ui/taskmanagers",
    "/ui/shuffle",
    "/ui/trust",
    "/auth/ui/gateway",
    "/auth/ui/audit-log",
    "/auth/ui/pki",
)
WIDTHS = (360, 1280)
FOREIGN = """
performance.getEntriesByType('resource').map(each => each.name).filter(each => !each.startsWith(location.origin + '/'))
"""
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


async def looks(tab: Tab, width: int, scheme: str) -> None:
    """Set the window's width and the system's colour scheme."""
    await tab.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    await tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])


async def serious(tab: Tab) -> list[dict[str, Any]]:
    """Return the serious and critical violations that axe finds."""
    await tab.evaluate(AXE.read_text() + ";true")
    script = """axe.run(document, {resultTypes: ['violations']}).then(found => JSON.stringify(
      found.violations.filter(each => ['serious', 'critical'].includes(each.impact)).map(each =>
        ({id: each.id, nodes: each.nodes.slice(0, 3).map(node => node.html.slice(0, 200) + node.failureSummary)}))))"""
    found: list[dict[str, Any]] = json.loads(await tab.evaluate(script))
    return found


async def test_every_page_is_accessible_and_obeys_the_csp_in_light_and_dark_narrow_and_wide(small: Stage) -> None:
    tab, job = small.tab, next(iter(small.dispatcher.details))
    await tab.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
    await tab.go(small.url + "/auth/login")
    assert await serious(tab) == []
    await sign_in(small, small.gateway.token(AccessRole.ADMIN))
    found: list[object] = []
    for path in PAGES:
        await tab.go(small.url + path.replace("{job}", job))
        await settled(tab)
        for scheme in ("light", "dark"):
            for width in WIDTHS:
                await looks(tab, width, scheme)
                if await tab.evaluate(OVERFLOW) > 0:
                    found.append((path, f"does not fit into {width}"))
            found += [(path, each) for each in await tab.evaluate("window.violations")]
            found += [(path, each) for each in await tab.evaluate(FOREIGN)]
            # axe is a script of ours that the page's policy lets nobody else put in; it adds none of its own.
            found += [(path, scheme, each) for each in await serious(tab)]
    assert found == []


async def test_a_line_of_the_trust_map_can_be_chosen_by_keyboard(small: Stage) -> None:
    tab = small.tab
    await sign_in(small, small.gateway.token(AccessRole.VIEWER), "/ui/trust")
    await tab.evaluate("document.querySelector('.map a.edge:not(.local)').focus()")
    focus = "getComputedStyle(document.activeElement.querySelector('.line')).strokeWidth"
    await tab.call("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab", windowsVirtualKeyCode=9)
    await tab.call("Input.dispatchKeyEvent", type="keyUp", key="Tab", code="Tab", windowsVirtualKeyCode=9)
    assert await tab.evaluate("document.activeElement.matches('.map a.edge')")
    assert await tab.evaluate(focus) == "4px"
    for kind in ("keyDown", "keyUp"):
        await tab.call(
            "Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r"
        )
    await tab.until("document.querySelector('.detail:target')?.checkVisibility()", "its chain is shown")
    detail = await tab.evaluate("document.querySelector('.detail:target').innerText")
    for words in ("TLSv1.3", "TLS_AES_256_GCM_SHA384", "X25519MLKEM768", "Authority", "Serial", "left"):
        assert words in detail
    # It stays open while the page moves.
    await tab.evaluate("htmx.trigger('#live', 'refresh')")
    await settled(tab)
    assert await tab.evaluate("document.querySelector('.detail:target')?.checkVisibility()")


async def test_a_click_on_a_line_of_the_trust_map_shows_the_chain_of_both_ends(small: Stage) -> None:
    tab = small.tab
    await sign_in(small, small.gateway.token(AccessRole.VIEWER), "/ui/trust")
    await tab.click(".map a.edge.name:not(.local)")
    await tab.until("document.querySelector('.detail:target')?.checkVisibility()", "its chain is shown")
    assert await tab.evaluate("document.querySelectorAll('.detail:target .chains > div').length") == 2
    assert await tab.evaluate("document.querySelector('.map a[aria-current]').getAttribute('href') === location.hash")


async def test_every_page_can_be_read_without_javascript(small: Stage) -> None:
    tab, job = small.tab, next(iter(small.dispatcher.details))
    await sign_in(small, small.gateway.token(AccessRole.ADMIN))
    await tab.call("Emulation.setScriptExecutionDisabled", value=True)
    for path, words in (
        ("/ui", "All jobs"),
        ("/ui/jobs", "cert_inventory.py"),
        (f"/ui/jobs/{job}", "Executors"),
        (f"/ui/jobs/{job}/logs?source=driver.stdout", "task 59 done"),
        ("/ui/trust", "taskmanager/tm-3"),
        ("/auth/ui/gateway", "API tokens"),
    ):
        await tab.call("Page.navigate", url=small.url + path)
        await shown(tab, words)


async def shown(tab: Tab, words: str) -> None:
    """Wait until the page contains ``words``.

    Asks for the browser's document tree, since no script runs in the page.
    """
    async with asyncio.timeout(20):
        while True:
            found = await tab.call("DOM.getDocument", depth=-1)
            if words in json.dumps(found):
                return
            await asyncio.sleep(0.1)
