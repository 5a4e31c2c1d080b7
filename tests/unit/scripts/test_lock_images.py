"""Image digests: written into every file that names images, taken from the engine, never made up."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FILES = ("compose/Dockerfile", "compose/.env", "compose/compose.yaml", "cli/compose/choices.py")
FIRST, SECOND = "sha256:" + "1" * 64, "sha256:" + "2" * 64


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the files that name images, with tags but without digests."""
    for name in FILES:
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "tree" / name)
    return tmp_path / "tree"


def lock(tree: Path, engine: str) -> subprocess.CompletedProcess[str]:
    """Run the script with ``engine`` as the shell script behind `docker`."""
    programs = tree.parent / "bin"
    programs.mkdir(exist_ok=True)
    (programs / "docker").write_text(f"#!/bin/sh\n{engine}\n")
    (programs / "docker").chmod(0o755)
    return subprocess.run(
        [ROOT / "scripts" / "lock-images", tree],
        env={"PATH": f"{programs}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def knowing(digest: str) -> str:
    return f'[ "$1" = pull ] || for name; do :; done; [ "$1" = pull ] || echo "${{name%:*}}@{digest}"'


def test_image_digests_are_written_and_renewed_in_every_file(tree: Path) -> None:
    for digest in (FIRST, SECOND):
        done = lock(tree, knowing(digest))
        assert done.returncode == 0, done.stderr
        assert f"\nARG BASE_IMAGE=python:3.11-slim-bookworm@{digest}\n" in (tree / "compose/Dockerfile").read_text()
        for name in FILES[1:]:
            text = (tree / name).read_text()
            assert f"envoyproxy/envoy:v1.40.0@{digest}" in text, name
            assert text.count("@sha256:") == text.count(f"@{digest}"), name


@pytest.mark.parametrize(
    ("engine", "complaint"),
    [
        pytest.param("exit 1", "cannot be pulled", id="no registry"),
        pytest.param("exit 0", "knows no digest", id="an image that was made here"),
    ],
)
def test_files_are_unchanged_when_a_digest_is_not_found(tree: Path, engine: str, complaint: str) -> None:
    before = {name: (tree / name).read_text() for name in FILES}
    done = lock(tree, engine)
    assert done.returncode == 1
    assert done.stderr.count(complaint) == 2
    assert {name: (tree / name).read_text() for name in FILES} == before
