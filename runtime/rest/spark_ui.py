"""Makes pages of the Spark UI safe to show. Pure functions.

A job's code runs in the JVM that renders the pages, so the job's owner controls their content. The gateway shows them
under its own origin to users with other rights. Therefore:

- Scripts come only from the jars of this JobManager, never from a driver. The content security policy allows only
  their directory and, by digest, the inline scripts that Spark puts into each page.
- A page may send requests only to this job's UI. It may not be framed or submit forms.
- Only status, media type and body of a response are passed on. Redirects may lead only into the same UI.
"""

from __future__ import annotations

import base64
import hashlib
import re
from urllib.parse import urlsplit

from sluice.runtime.messages import UiPage

HTML, JSON_MEDIA, TEXT = "text/html", "application/json", "text/plain"
SHOWN = frozenset({HTML, JSON_MEDIA, TEXT})
"""Media types that a driver may return."""
PAGES = frozenset({"jobs", "stages", "storage", "environment", "executors", "SQL", "connect", "streaming"})
"""The first path segment of pages; Spark requires a trailing slash for paths below them."""
API = "api"
STATIC = "static"
WAITING_PAGE = (
    b'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="2">'
    b"<title>Spark UI</title></head><body><p>The job has ended. Its event log is being read; this page opens when that "
    b"is done.</p></body></html>"
)
"""Shown while the Spark UI of an ended job is loading."""
_KILL = re.compile("kill|threadDump|heapHistogram", re.IGNORECASE)
"""Pages that change something or inspect processes. They are disabled in the driver and refused here."""


def base_of(job_id: str) -> str:
    """The path of a job's Spark UI."""
    return f"/v1/jobs/{job_id}/ui"


def driver_path(segments: tuple[str, ...]) -> str | None:
    """The path in the driver's UI; None if it must not be shown."""
    if not segments:
        return "/jobs/"
    if any(_KILL.search(segment) for segment in segments):
        return None
    if segments[0] in PAGES:
        return f"/{'/'.join(segments)}/"
    return f"/{'/'.join(segments)}" if segments[:2] == (API, "v1") else None


def redirected(page: UiPage, base: str) -> str | None:
    """The target of a redirect within the same UI; None if it leads elsewhere."""
    path, query = urlsplit(page.location).path, urlsplit(page.location).query
    inside = path.removeprefix(base).rstrip("/")
    if not re.fullmatch(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*", inside) or not re.fullmatch(r"[A-Za-z0-9=&._-]*", query):
        return None
    return base + inside + (f"?{query}" if query else "")


def shown_body(page: UiPage, base: str) -> bytes:
    """The body with links that the gateway accepts: without trailing slashes in paths."""
    if page.media != HTML:
        return page.body
    # Matches every path, also without a slash at its end, and never goes back: a job chooses the content of its pages.
    link = rb"(" + re.escape(base).encode() + rb"(?:/[A-Za-z0-9._~-]+)*+)(?:/(?=[\"'?#&]))?"
    return re.sub(link, rb"\1", page.body)


def content_security_policy(base: str, origin: str) -> str:
    """The content security policy of this UI's pages. ``origin`` is the gateway's, without its port."""
    place = f"{origin.rstrip('/')}:*{base}"
    lines = (f"setUIRoot('{base}')", "setAppBasePath('')", f"setAppBasePath('{base}')")
    digests = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(line.encode()).digest()).decode()}'" for line in lines
    )
    # A path besides 'self': other resources of this origin must not run as scripts (CSP level 3, section 6.7.2.8).
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
