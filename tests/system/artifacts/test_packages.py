"""What comes with a pipeline is there: on the driver and on the executors."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from cli.uploads import LARGE_BYTES
from tests.integration.cluster.conftest import start_cluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

PIPELINE = Path(__file__).with_name("with_packages.py")


def test_modules_wheels_archives_and_files_are_there(tmp_path: Path) -> None:
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
    cluster = start_cluster(tmp_path / "home", "--taskmanagers", "1")
    try:
        done = cluster.sluice(
            "submit",
            str(PIPELINE),
            *("--file", str(tmp_path / "numbers.csv")),
            *("--py-files", f"{tmp_path}/single.py,{tmp_path}/packed-1.0-py3-none-any.whl"),
            *("--archives", f"{tmp_path}/env.tar.gz#settings"),
            *("--executors", "1", "--wait", "--", str(tmp_path / "result")),
        )
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "result").read_text() == "103 105 107 109"
        assert cluster.get("/v1/uploads") == {"uploads": []}
        assert cluster.get("/v1/blobs")["blobs"] == []
    finally:
        cluster.sluice("down")
