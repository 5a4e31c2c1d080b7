"""What the distributions hold: all that is needed at run time, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.wheel.conftest import BUILD_SECONDS, ROOT, Distributions

pytestmark = pytest.mark.timeout(300)

PACKAGES = tuple(sorted(path.name for path in (ROOT / "sluice").iterdir() if path.is_symlink()))
"""Folders of the repository that are parts of the package."""
METADATA = "sluice-0.1.0.dist-info"
DATA = "sluice-0.1.0.data"


def contents(wheel: Path) -> dict[str, bytes]:
    """Return every file of the wheel by name."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def tracked() -> dict[str, bytes]:
    """Return every file of the packages in the repository by name; for links, the target's content."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *PACKAGES],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    names = sorted(filter(None, listed.stdout.decode().split("\0")))
    parts = {f"sluice/{name}": (ROOT / name).read_bytes() for name in names if (ROOT / name).exists()}
    return parts | {f"sluice/{name}": (ROOT / "sluice" / name).read_bytes() for name in ("__init__.py", "py.typed")}


def test_the_wheel_has_every_file_of_the_packages_and_no_other(distributions: Distributions) -> None:
    found = contents(distributions.wheel)
    assert {name: data for name, data in found.items() if not name.startswith((METADATA, DATA))} == tracked()
    assert {name.partition("/")[0] for name in found} == {"sluice", METADATA, DATA}


def test_the_wheel_has_the_manual_pages_where_man_finds_them_after_installation(distributions: Distributions) -> None:
    found = {name: data for name, data in contents(distributions.wheel).items() if name.startswith(f"{DATA}/")}
    pages = {path.name: path.read_bytes() for path in (ROOT / "man" / "man1").iterdir()}
    assert found == {f"{DATA}/data/share/man/man1/{name}": data for name, data in pages.items()}


@pytest.mark.parametrize(
    "needed",
    [
        pytest.param("sluice/gateway/envoy_config/sources/bootstrap.jsonc", id="bootstrap of Envoy"),
        pytest.param("sluice/gateway/envoy_config/sources/listener.jsonc", id="listener of Envoy"),
        pytest.param("sluice/core/xds/envoy_api.binpb.gz", id="API of Envoy"),
        pytest.param("sluice/gateway/proxy/nginx.conf.jinja", id="configuration of NGINX"),
        pytest.param("sluice/gateway/authz/default_policy.toml", id="policy"),
        pytest.param("sluice/gateway/templates/", id="pages of the gateway"),
        pytest.param("sluice/runtime/ui/templates/", id="pages of the cluster"),
        pytest.param("sluice/core/pages/static/", id="static files"),
        pytest.param("sluice/runtime/spark/plugin/", id="sources of the plugin"),
        pytest.param("sluice/cli/compose/image/Dockerfile", id="Dockerfile"),
        pytest.param("sluice/cli/compose/seccomp.json", id="seccomp profile of TaskManagers"),
        pytest.param("sluice/cli/compose/image/run.txt", id="requirements of the image"),
        pytest.param("sluice/pipelines/cert_inventory.py", id="pipeline of the demo"),
        pytest.param("sluice/pki/tls/openssl.cnf", id="settings of OpenSSL"),
        pytest.param(f"{METADATA}/licenses/LICENSE", id="license"),
    ],
)
def test_needed_data_files_are_in_both_distributions(distributions: Distributions, needed: str) -> None:
    assert any(name.startswith(needed) and data for name, data in contents(distributions.wheel).items())
    with tarfile.open(distributions.source) as archive:
        source = needed.replace(f"{METADATA}/licenses/", "")
        found = [each for each in archive.getmembers() if each.name.partition("/")[2].startswith(source)]
    assert any(each.isreg() and each.size for each in found)


def test_the_wheel_has_no_top_level_envoy_package(distributions: Distributions) -> None:
    assert [name for name in contents(distributions.wheel) if name.startswith("envoy")] == []


def test_tests_docs_and_build_products_are_in_neither_distribution(distributions: Distributions) -> None:
    with tarfile.open(distributions.source) as archive:
        names = [each.name.partition("/")[2] for each in archive.getmembers()]
    for name in (*names, *contents(distributions.wheel)):
        assert not name.startswith(("tests/", "benchmarks/", "docs/")), name
        assert not name.endswith((".pyc", ".jar")), name


def test_wheels_built_from_the_checkout_and_from_the_sdist_are_identical(distributions: Distributions) -> None:
    assert contents(distributions.wheel) == contents(distributions.wheel_of_source)
    assert distributions.wheel.read_bytes() == distributions.wheel_of_source.read_bytes()


def test_distributions_are_reproducible_in_another_place_and_at_another_time(
    distributions: Distributions, tmp_path: Path
) -> None:
    """In another directory, with other times, and under a umask that hides files from other users."""
    tree, to = tmp_path / "a checkout", tmp_path / "to"
    kept = shutil.ignore_patterns(".*", "__pycache__", "tests", "docs", "benchmarks")
    shutil.copytree(ROOT, tree, symlinks=True, ignore=kept)
    for path in tree.rglob("*"):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & 0o700)
            os.utime(path, (1e9, 1e9))
    subprocess.run([tree / "scripts" / "make-wheel", to, "--sdist"], check=True, timeout=BUILD_SECONDS, umask=0o077)
    for built in (distributions.source, distributions.wheel):
        assert (to / built.name).read_bytes() == built.read_bytes()
