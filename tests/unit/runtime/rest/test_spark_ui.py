"""Pages of a job's Spark UI, whose content the job chooses."""

from __future__ import annotations

import pytest

from sluice.runtime.messages import UiPage
from sluice.runtime.rest.spark_ui import HTML, base_of, shown_body

BASE = base_of("0" * 32)


def shown(body: bytes) -> bytes:
    return shown_body(UiPage(status=200, media=HTML, body=body), BASE)


def test_only_the_slash_at_the_end_of_a_link_is_removed() -> None:
    page = f'<a href="{BASE}/jobs/">{BASE}/a//"{BASE}x/"{BASE}/"{BASE}/jobs/job/?id=1'
    expected = f'<a href="{BASE}/jobs">{BASE}/a//"{BASE}x/"{BASE}"{BASE}/jobs/job?id=1'
    assert shown(page.encode()) == expected.encode()


@pytest.mark.parametrize("repeated", [BASE, "/a"])
def test_a_hostile_page_is_scanned_once(repeated: str) -> None:
    """If each link were scanned to the end of the page, this would take hours, in the event loop of the leader."""
    body = BASE.encode() + repeated.encode() * (3_000_000 // len(repeated))
    assert shown(body) == body
