"""Every link of the documentation resolves, every page is reachable, and code names only pages that exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("tests/**/*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
NAMED_PAGE = re.compile(r"(?<![\w/.-])docs/[\w./*-]*[\w/*]")
NAMED_SOURCE = re.compile(
    r"`((?:core|pki|gateway|runtime|audit|client|cli|tests|benchmarks|pipelines)/[\w./{},-]+\.(?:py|scala))`"
)
GENERATED = {"cli.md", "configuration.md", "rest.md", "metrics.md"}
MAX_LINES = 250


def prose(document: Path) -> str:
    """The text of a document without its code blocks."""
    return BLOCK.sub("", document.read_text(encoding="utf-8"))


def anchors(document: Path) -> set[str]:
    """The anchors that forges derive from the headings of a document."""
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in HEADING.findall(prose(document))}


def linked_from(document: Path) -> set[Path]:
    """The files that a document links to."""
    return {(document.parent / path).resolve() for path, _ in LINK.findall(prose(document)) if path}


@pytest.mark.parametrize("document", [pytest.param(each, id=str(each.relative_to(ROOT))) for each in DOCUMENTS])
def test_every_link_resolves(document: Path) -> None:
    dead = []
    for path, anchor in LINK.findall(prose(document)):
        target = document.parent / path if path else document
        missing = not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target))
        if missing:
            dead.append(f"{path}#{anchor}")
    assert dead == []


def test_every_page_is_reachable_from_the_index_of_the_documentation() -> None:
    reached: set[Path] = set()
    ahead = {ROOT / "docs" / "README.md"}
    while ahead:
        page = ahead.pop()
        reached.add(page)
        ahead |= {each for each in linked_from(page) if each.suffix == ".md" and each.is_file()} - reached
    assert set((ROOT / "docs").rglob("*.md")) - reached == set()


def test_no_handwritten_page_is_longer_than_the_limit() -> None:
    pages = [each for each in (ROOT / "docs").rglob("*.md") if each.name not in GENERATED]
    lengths = {str(each.relative_to(ROOT)): len(each.read_text(encoding="utf-8").splitlines()) for each in pages}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


def alternatives(path: str) -> list[str]:
    """Expand a path with at most one list in braces, as a shell does."""
    before, brace, rest = path.partition("{")
    if not brace:
        return [path]
    inside, _, after = rest.partition("}")
    return [f"{before}{each}{after}" for each in inside.split(",")]


@pytest.mark.parametrize("document", [pytest.param(each, id=str(each.relative_to(ROOT))) for each in DOCUMENTS])
def test_every_source_file_that_a_page_names_exists(document: Path) -> None:
    if document.name == "CHANGELOG.md":
        return
    named = [path for each in NAMED_SOURCE.findall(prose(document)) for path in alternatives(each)]
    assert [path for path in named if not (ROOT / path).is_file()] == []


def test_code_names_only_pages_that_exist() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    dead = []
    for name in filter(None, listed.split("\0")):
        file = ROOT / name
        if name == "CHANGELOG.md" or file.is_symlink() or not file.is_file():
            continue
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        text = text.replace("\\-", "-")  # as manual pages have it
        dead += [f"{name}: {page}" for page in NAMED_PAGE.findall(text) if not any(ROOT.glob(page.rstrip("/")))]
    assert dead == []
