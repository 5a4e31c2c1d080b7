"""The locked packages fit the declared requirements, and pip accepts nothing else."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LISTS = ("run", "dev", "build", "lock")


def locked(name: str) -> dict[str, tuple[str, int]]:
    """Return the version of each package and the number of files that pip may take."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    assert "\n--require-hashes\n" in text
    found: dict[str, tuple[str, int]] = {}
    for entry in re.split(r"\n(?=\w)", text)[1:]:
        requirement = Requirement(entry.partition(" \\\n")[0])
        (version,) = requirement.specifier
        assert version.operator == "=="
        hashes = re.findall(r"--hash=sha256:[0-9a-f]{64}(?: \\)?(?=\n|\Z)", entry)
        found[canonicalize_name(requirement.name)] = (version.version, len(hashes))
    return found


@pytest.mark.parametrize("name", LISTS)
def test_every_package_has_a_version_and_at_least_one_hash(name: str) -> None:
    found = locked(name)
    assert found
    assert [package for package, (_, hashes) in found.items() if hashes == 0] == []


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        pytest.param("run", PROJECT["project"]["dependencies"], id="run"),
        pytest.param(
            "dev", PROJECT["project"]["dependencies"] + PROJECT["project"]["optional-dependencies"]["dev"], id="dev"
        ),
        pytest.param("build", PROJECT["build-system"]["requires"], id="build"),
    ],
)
def test_every_requirement_is_locked_in_a_matching_version(name: str, wanted: list[str]) -> None:
    found = locked(name)
    for each in map(Requirement, wanted):
        assert each.specifier.contains(found[canonicalize_name(each.name)][0]), each


def test_every_build_requirement_is_pinned() -> None:
    for each in map(Requirement, PROJECT["build-system"]["requires"]):
        assert [specifier.operator for specifier in each.specifier] == ["=="], each


def test_runtime_packages_are_locked_as_in_development() -> None:
    developed = locked("dev")
    assert {package: developed[package] for package in locked("run")} == locked("run")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The program scripts/lock, loaded as a module although it has no suffix."""
    loader = importlib.machinery.SourceFileLoader("lock", str(ROOT / "scripts" / "lock"))
    spec = importlib.util.spec_from_loader("lock", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("wheel", "wanted"),
    [
        pytest.param("a-1-py3-none-any.whl", True, id="pure"),
        pytest.param("a-1-py2.py3-none-any.whl", True, id="both Pythons"),
        pytest.param("a-1-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", True, id="3.11"),
        pytest.param("a-1-cp313-cp313-musllinux_1_2_aarch64.whl", True, id="3.13, musl, aarch64"),
        pytest.param("a-1-cp39-abi3-manylinux_2_28_aarch64.whl", True, id="stable ABI of an older one"),
        pytest.param("a-1-cp310-cp310-manylinux_2_28_x86_64.whl", False, id="3.10"),
        pytest.param("a-1-cp313-cp313t-manylinux_2_28_x86_64.whl", False, id="without a global lock"),
        pytest.param("a-1-pp311-pypy311_pp73-manylinux_2_28_x86_64.whl", False, id="PyPy"),
        pytest.param("a-1-cp311-cp311-macosx_11_0_arm64.whl", False, id="macOS"),
        pytest.param("a-1-cp311-cp311-win_amd64.whl", False, id="Windows"),
        pytest.param("a-1-cp311-cp311-manylinux_2_28_ppc64le.whl", False, id="another processor"),
        pytest.param("a-1-py2-none-any.whl", False, id="Python 2"),
    ],
)
def test_wheels_are_recognized_as_for_supported_machines_or_not(script: ModuleType, wheel: str, wanted: bool) -> None:
    assert script.is_for_us(wheel) is wanted


def test_a_package_without_a_suitable_wheel_is_locked_by_its_sdist(script: ModuleType) -> None:
    source = {"url": "https://files.example/a-1.tar.gz", "hash": "sha256:5"}
    wheel = {"url": "https://files.example/x/a-1-py3-none-any.whl", "hash": "sha256:3"}
    windows = {"url": "https://files.example/x/a-1-cp311-cp311-win_amd64.whl", "hash": "sha256:4"}
    assert script.hashes({"sdist": source}) == ["sha256:5"]
    assert script.hashes({"sdist": source, "wheels": [windows]}) == ["sha256:5"]
    assert script.hashes({"sdist": source, "wheels": [windows, wheel]}) == ["sha256:3"]
