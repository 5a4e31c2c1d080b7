"""Rendering templates: all values are escaped, and headers restrict what a browser may do with a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

from sluice.core.pages import formatting as words
from sluice.core.pages.assets import asset_path
from sluice.core.pages.navigation import NAVIGATION

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy of pages: scripts and styles are our own files, nothing inline, nothing external."""
HTML = "text/html"

_OWN_TEMPLATES = Path(__file__).parent / "templates"


class Pages:
    """The templates of one part of Sluice, in front of the shared ones."""

    def __init__(self, *directories: Path) -> None:
        """``directories`` hold templates; the shared templates are searched after them."""
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader([*directories, _OWN_TEMPLATES]),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters.update(
            duration=words.duration,
            size=words.size,
            moment=words.moment,
            machine_moment=words.machine_moment,
            ago=words.ago,
            left=words.left,
            identity_path=words.identity_path,
            short_identity=words.short_identity,
            state_tone=words.state_tone,
        )
        self._environment.globals.update(asset=asset_path, navigation=NAVIGATION)

    def render(self, template: str, **values: Any) -> str:  # noqa: ANN401  templates take what they are given
        """Render a template with values."""
        return self._environment.get_template(template).render(values)


def page_headers() -> dict[str, str]:
    """The headers of every page."""
    return {
        "content-security-policy": CONTENT_SECURITY_POLICY,
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
    }
