"""One API server for all tests of a module."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.api_server import ApiServer, api_server

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def programs() -> Path:
    """The directory with ``etcd``, ``kube-apiserver`` and ``kubectl``, made by scripts/get-kubernetes."""
    found = Path(os.environ.get("SLUICE_KUBERNETES") or ROOT / "build" / "kubernetes") / "bin"
    if not all((found / name).is_file() for name in ("etcd", "kube-apiserver", "kubectl")):
        pytest.fail(f"{found} lacks etcd, kube-apiserver or kubectl: make test-kubernetes builds them", pytrace=False)
    return found


@pytest.fixture(scope="session")
def fake_time(programs: Path) -> Path:
    """The library that shows a process a different time than the machine's."""
    found = programs.parent / "lib" / "libfaketime.so.1"
    if not found.is_file():
        pytest.fail(f"there is no {found}: make test-kubernetes fetches it", pytrace=False)
    return found


@pytest.fixture(scope="module")
def server(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server; tests give JobManagers only the rights in docs/howto/high-availability.md."""
    with api_server(programs, tmp_path_factory.mktemp("kubernetes")) as found:
        yield found
