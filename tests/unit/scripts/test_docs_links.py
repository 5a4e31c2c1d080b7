"""The documents lead to each other: every link to a file or a heading of ours is to one that there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def anchors(document: Path) -> set[str]:
    """The headings as forges make anchors of them."""
    text = BLOCK.sub("", document.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in HEADING.findall(text)}


@pytest.mark.parametrize("document", [pytest.param(each, id=str(each.relative_to(ROOT))) for each in DOCUMENTS])
def test_every_link_leads_somewhere(document: Path) -> None:
    dead = []
    for path, anchor in LINK.findall(BLOCK.sub("", document.read_text(encoding="utf-8"))):
        target = document.parent / path if path else document
        missing = not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target))
        if missing:
            dead.append(f"{path}#{anchor}")
    assert dead == []
