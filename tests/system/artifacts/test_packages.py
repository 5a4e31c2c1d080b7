"""Files and packages submitted with a pipeline are available on the driver and on the executors."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.client.uploads import LARGE_BYTES
from tests.integration.cluster.conftest import LocalCluster, start_cluster
from tests.shared_folder import shared_folder

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

PIPELINE = Path(__file__).with_name("with_packages.py")
WITH_PYTHON = Path(__file__).with_name("with_python.py")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster of one TaskManager."""
    started = start_cluster(tmp_path_factory.mktemp("artifacts") / "home", "--taskmanagers", "1")
    yield started
    started.sluice("down")


@pytest.fixture
def result(cluster: LocalCluster, tmp_path: Path) -> Path:
    """Return the path to which the pipeline writes its result."""
    return shared_folder(cluster.shared, tmp_path.name) / "result"


def test_modules_wheels_archives_and_files_reach_driver_and_executors(
    cluster: LocalCluster, tmp_path: Path, result: Path
) -> None:
    (tmp_path / "single.py").write_text("ONE = 1\n")
    (tmp_path / "numbers.csv").write_text("1\n2\n3\n" + "\n" * (LARGE_BYTES + 1))  # comes in pieces, before the job
    with zipfile.ZipFile(tmp_path / "packed-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("packed/__init__.py", "")
        wheel.writestr("packed/doubling.py", "def double(n):\n    return 2 * n\n")
        wheel.writestr("packed-1.0.dist-info/METADATA", "Name: packed\n")
    with tarfile.open(tmp_path / "env.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("inside/offset.txt")
        member.size = 3
        archive.addfile(member, io.BytesIO(b"100"))
    done = cluster.sluice(
        "submit",
        str(PIPELINE),
        *("--file", str(tmp_path / "numbers.csv")),
        *("--py-files", f"{tmp_path}/single.py,{tmp_path}/packed-1.0-py3-none-any.whl"),
        *("--archives", f"{tmp_path}/env.tar.gz#settings"),
        *("--executors", "1", "--wait", "--", str(result)),
    )
    assert done.returncode == 0, done.stderr
    assert result.read_text() == "103 105 107 109"
    assert cluster.get("/v1/uploads") == {"uploads": []}
    assert cluster.get("/v1/blobs")["blobs"] == []


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide a packed virtual environment with a module that is installed nowhere else."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True, timeout=60)
    (packages,) = (folder / "env").glob("lib/python3*/site-packages")
    (packages / "only_here.py").write_text("VALUE = 41\n")
    with tarfile.open(folder / "packed.tar.gz", "w:gz") as archive:
        for each in (folder / "env").iterdir():
            archive.add(each, each.name)
    return folder / "packed.tar.gz"


@pytest.mark.parametrize(
    "named", [("--python", "house/bin/python"), ("--conf", "spark.pyspark.python=./house/bin/python")]
)
def test_driver_and_executors_run_the_python_of_an_archive(
    cluster: LocalCluster, environment: Path, result: Path, named: tuple[str, str]
) -> None:
    arguments = ("--archives", f"{environment}#house", *named, "--executors", "1", "--wait")
    done = cluster.sluice("submit", str(WITH_PYTHON), *arguments, "--", str(result))
    assert done.returncode == 0, done.stderr
    told = json.loads(result.read_text())
    assert [value for _, value in told["executors"]] == [42, 42]
    for prefix in (told["driver"], *(prefix for prefix, _ in told["executors"])):
        assert prefix.endswith("/house"), told
        assert prefix.startswith(str(cluster.home)), told
    assert told["pyspark"].endswith("/pyspark.zip/pyspark/__init__.py")
