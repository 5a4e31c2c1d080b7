"""Styles and scripts: names by content, and no rule in them that the pages' policy would refuse."""

from __future__ import annotations

import gzip
import re

import pytest

from sluice.core.pages.assets import (
    PREFIX,
    asset_path,
    assets,
    find_asset,
)
from sluice.core.pages.navigation import NAVIGATION
from sluice.core.pages.rendering import CONTENT_SECURITY_POLICY, Pages


@pytest.mark.parametrize("name", sorted(assets()))
def test_an_asset_is_found_at_its_content_hash_path_and_served_compressed(name: str) -> None:
    asset = assets()[name]
    assert re.fullmatch(rf"{PREFIX}[a-z.-]+-[0-9a-f]{{16}}\.(css|js|svg)", asset.path)
    assert find_asset(asset.path) is asset
    assert find_asset(asset_path(name) + "?") is None
    body, headers = asset.answer("br, gzip;q=0.5")
    assert (gzip.decompress(body), headers["content-encoding"]) == (asset.content, "gzip")
    body, headers = asset.answer("identity")
    assert body == asset.content
    assert "content-encoding" not in headers


@pytest.mark.parametrize("path", ["", PREFIX, PREFIX + "sluice.css", PREFIX + "../templates/base.html", "/etc/passwd"])
def test_a_path_other_than_an_assets_is_not_found(path: str) -> None:
    assert find_asset(path) is None


def test_the_style_sheet_loads_nothing() -> None:
    assert b"url(" not in assets()["sluice.css"].content
    assert b"@import" not in assets()["sluice.css"].content


def test_the_licences_of_the_scripts_are_included() -> None:
    from sluice.core.pages import assets as module

    directory = module._DIRECTORY
    for script in ("htmx", "idiomorph"):
        assert "Zero-Clause BSD" in (directory / f"{script}.LICENSE").read_text()


def test_the_content_security_policy_denies_by_default() -> None:
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert re.findall(r"default-src ([^;]+)", CONTENT_SECURITY_POLICY) == ["'none'"]
    assert "*" not in CONTENT_SECURITY_POLICY


def test_page_values_are_escaped_and_missing_ones_are_errors() -> None:
    text = Pages().render("problem.html", title="<b>", detail='"><script>', who="<i>", here="")
    assert "<b>" not in text
    assert '"><script>' not in text
    assert "<i>" not in text
    with pytest.raises(Exception, match="detail"):
        Pages().render("problem.html", title="x", who="x", here="")


def test_navigation_paths_are_unique() -> None:
    places = [place for group in NAVIGATION for place in group.places]
    assert len({place.path for place in places}) == len(places)
