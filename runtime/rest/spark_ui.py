"""Makes pages of the Spark UI safe to show. Pure functions.

A job's code runs in the JVM that makes the pages, so they are whatever the job's owner likes, and they are shown under
the gateway's own name to people with other rights. Therefore:

- scripts come from the jars of this JobManager, never from a driver, and a page may run no others: its content security
  policy names their directory and the two lines of script that Spark puts into each page, by their digests;
- a page may ask nothing but this job's UI, be framed by nobody, and send no form;
- of an answer only status, media type and body go on; a redirection leads nowhere but into the same UI.
"""

from __future__ import annotations

import base64
import hashlib
import re
from urllib.parse import urlsplit

from sluice.runtime.messages import UiPage

HTML, JSON_MEDIA, TEXT = "text/html", "application/json", "text/plain"
SHOWN = frozenset({HTML, JSON_MEDIA, TEXT})
"""Media types that a driver may answer with."""
PAGES = frozenset({"jobs", "stages", "storage", "environment", "executors", "SQL", "connect", "streaming"})
"""The first segment of paths that are pages; below them, Spark wants a slash at the end."""
API = "api"
STATIC = "static"
WAITING_PAGE = (
    b'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="2">'
    b"<title>Spark UI</title></head><body><p>The job has ended. Its event log is being read; this page opens when that "
    b"is done.</p></body></html>"
)
"""Shown until Spark's UI of a job that has ended is there."""
_KILL = re.compile("kill|threadDump|heapHistogram", re.IGNORECASE)
"""Pages that change something, or look into processes; switched off in the driver, and refused here."""


def base_of(job_id: str) -> str:
    """The path of a job's UI."""
    return f"/v1/jobs/{job_id}/ui"


def driver_path(segments: tuple[str, ...]) -> str | None:
    """The path in the driver's own terms; None when nothing of that name is shown."""
    if not segments:
        return "/jobs/"
    if any(_KILL.search(segment) for segment in segments):
        return None
    if segments[0] in PAGES:
        return f"/{'/'.join(segments)}/"
    return f"/{'/'.join(segments)}" if segments[:2] == (API, "v1") else None


def redirected(page: UiPage, base: str) -> str | None:
    """The target of a redirection inside of the same UI; None when it leads elsewhere."""
    path, query = urlsplit(page.location).path, urlsplit(page.location).query
    inside = path.removeprefix(base).rstrip("/")
    if not re.fullmatch(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*", inside) or not re.fullmatch(r"[A-Za-z0-9=&._-]*", query):
        return None
    return base + inside + (f"?{query}" if query else "")


def shown_body(page: UiPage, base: str) -> bytes:
    """The body with links that the gateway takes: no empty segment at the end of a path."""
    if page.media != HTML:
        return page.body
    link = rb"(" + re.escape(base).encode() + rb"(?:/[A-Za-z0-9._~-]+)*)/(?=[\"'?#&])"
    return re.sub(link, rb"\1", page.body)


def content_security_policy(base: str, origin: str) -> str:
    """What a page of this UI may do; ``origin`` is the gateway's, on whatever port."""
    place = f"{origin.rstrip('/')}:*{base}"
    lines = (f"setUIRoot('{base}')", "setAppBasePath('')", f"setAppBasePath('{base}')")
    digests = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(line.encode()).digest()).decode()}'" for line in lines
    )
    # 'self' and a path: what else this origin serves is no script of ours (CSP level 3, section 6.7.2.8).
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {digests} {place}/{STATIC}/",
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data:",
            "font-src 'self'",
            f"connect-src {place}/",
            "form-action 'none'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
        )
    )
