"""The image of a release is reproducible, and it runs.

Two builds from scratch, in different directories and environments, give the same image.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(3600)

ROOT = Path(__file__).parents[2]
BUILD_SECONDS = 1700
FILES = ("image.json", "image.cdx.json", "image.oci.tar")
LOCAL_BASE = "sluice-base:local"


def base() -> dict[str, str]:
    """Where the Dockerfile's base cannot be pulled: one of this machine, which a release names only on purpose."""
    (named,) = re.findall(r"^ARG BASE_IMAGE=(.+)$", (ROOT / "compose" / "Dockerfile").read_text(), re.MULTILINE)
    for command in (["docker", "image", "inspect", named], ["timeout", "120", "docker", "pull", "--quiet", named]):
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return {}
    if subprocess.run(["docker", "image", "inspect", LOCAL_BASE], capture_output=True, check=False).returncode:
        subprocess.run([ROOT / "scripts" / "make-base-image", LOCAL_BASE], check=True, timeout=BUILD_SECONDS)
    return {"BASE_IMAGE": LOCAL_BASE}


def build(place: Path, umask: int, **environment: str) -> Path:
    """Build the release image in a fresh clone with its own script; returns the directory of its files."""
    place.mkdir()
    subprocess.run(["git", "clone", "--quiet", ROOT, place / "tree"], check=True, timeout=120)
    subprocess.run(
        [place / "tree" / "scripts" / "make-release-image", place / "made"],
        check=True,
        timeout=BUILD_SECONDS,
        umask=umask,
        env={**({} if os.environ.get("BASE_IMAGE") else base()), **os.environ, **environment},
    )
    return place / "made"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("release") / "first", 0o022)


def test_two_builds_give_the_same_image(made: Path, tmp_path: Path) -> None:
    again = build(tmp_path / "a longer path", 0o077, TZ="Pacific/Auckland", LANG="tr_TR.UTF-8")
    assert {path.name for path in again.iterdir()} == set(FILES)
    for name in FILES:
        compared = subprocess.run(["cmp", made / name, again / name], capture_output=True, text=True, check=False)
        assert compared.returncode == 0, compared.stdout


def test_the_image_is_loaded_under_its_digest_and_runs(made: Path) -> None:
    digests = json.loads((made / "image.json").read_text())
    subprocess.run(["docker", "load", "--input", made / "image.oci.tar"], check=True, timeout=600)
    try:
        inspect = ["docker", "image", "inspect", "--format", "{{.Id}}", "sluice:release"]
        loaded = subprocess.run(inspect, check=True, capture_output=True, text=True, timeout=60)
        assert loaded.stdout.strip() in digests.values()
        confined = ["docker", "run", "--rm", "--network", "none", "--read-only", "--cap-drop", "ALL", "sluice:release"]
        told = subprocess.run([*confined, "--version"], check=True, capture_output=True, text=True, timeout=300)
        assert "sluice" in told.stdout.lower()
        java = ["docker", "run", "--rm", "--network", "none", "--entrypoint", "java", "sluice:release", "-version"]
        subprocess.run(java, check=True, timeout=300)
    finally:
        subprocess.run(["docker", "image", "rm", "sluice:release"], check=False, timeout=300)


def test_the_sbom_lists_debian_and_python_packages(made: Path) -> None:
    document = json.loads((made / "image.cdx.json").read_text())
    listed = {each["purl"].partition("@")[0] for each in document["components"]}
    assert {"pkg:deb/debian/libc6", "pkg:pypi/pyspark", "pkg:pypi/sluice"} <= listed
    assert document["metadata"]["component"]["version"] == json.loads((made / "image.json").read_text())["manifest"]
