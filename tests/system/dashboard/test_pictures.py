"""Take the documentation's pictures of the pages that the tests use.

``SLUICE_PICTURES`` names the directory for them.
"""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from sluice.gateway.principal import AccessRole

from .conftest import Stage, settled, sign_in
from .test_quality import looks

WIDTH, HEIGHT = 1280, 860
PICTURES = {"overview": "/ui", "trust-map": "/ui/trust", "job": "/ui/jobs/{job}"}


def wanted(otherwise: Path) -> Path:
    """Return the directory for the pictures: ``SLUICE_PICTURES``, or one below ``otherwise``."""
    directory = Path(os.environ.get("SLUICE_PICTURES", otherwise / "pictures"))
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_pictures_of_the_documentation_are_taken_and_have_a_plausible_size(
    small: Stage, tmp_path: Path, scheme: str
) -> None:
    directory = wanted(tmp_path)
    tab, job = small.tab, next(iter(small.dispatcher.details))
    await looks(tab, WIDTH, scheme)
    await sign_in(small, small.gateway.token(AccessRole.ADMIN))
    for name, path in PICTURES.items():
        await tab.go(small.url + path.replace("{job}", job))
        await settled(tab)
        height = {"trust-map": 1060}.get(name, HEIGHT)
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": height, "scale": 1}
        taken = await tab.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        picture = base64.b64decode(taken["data"])
        assert 20_000 < len(picture) < 300_000, "there is something on it, and it fits into a repository"
        (directory / f"{name}-{scheme}.png").write_bytes(picture)
