"""The reference pages come from the code, and are those of this code."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import msgspec

from cli.config import SECTIONS
from cli.config_reference import configuration_reference

ROOT = Path(__file__).parents[3]


def test_the_reference_pages_are_current(tmp_path: Path) -> None:
    subprocess.run([ROOT / "scripts" / "make-reference", tmp_path], check=True, timeout=60)
    written = {each.name: each.read_text() for each in sorted(tmp_path.iterdir())}
    kept = {each.name: each.read_text() for each in sorted((ROOT / "docs" / "reference").iterdir())}
    assert kept == written, "run scripts/make-reference and commit docs/reference"


def test_what_the_reference_says_are_the_defaults() -> None:
    text = configuration_reference()
    active = re.sub(r"^#(?=\w+ = )", "", text.split("[gateway.oidc]", maxsplit=1)[0], flags=re.MULTILINE)
    document = tomllib.loads(active)
    assert list(document) == list(SECTIONS)
    for name, struct in SECTIONS.items():
        scalars = {key: value for key, value in msgspec.to_builtins(struct()).items() if key in document[name]}
        assert document[name] == msgspec.json.decode(msgspec.json.encode(scalars))


def test_every_setting_is_in_the_reference() -> None:
    text = configuration_reference()
    for struct in SECTIONS.values():
        for field in struct.__struct_fields__:
            assert re.search(rf"(^#{field} = |\.{field}\]+$)", text, flags=re.MULTILINE), field


def test_words_of_the_code_become_words_for_people() -> None:
    text = configuration_reference()
    assert "``" not in text
    assert ":mod:" not in text
    assert "# Port of Envoy's HTTPS listener; 0 means any free port.\n#port = 8443" in text
