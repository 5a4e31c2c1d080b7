"""A job's own Python: only from one of its archives, unpacked for the driver before its program runs."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from sluice.runtime.jobmanager.dispatcher.submission_checks import check_submission
from sluice.runtime.jobmanager.errors import SubmissionRejected
from sluice.runtime.messages import Archive, BlobRef, JobSubmission
from sluice.runtime.node import Exit
from sluice.runtime.spark.errors import DriverFailed, ForbiddenSparkConf, PackageRefused
from sluice.runtime.spark.java import find_spark
from sluice.runtime.spark.job_python import (
    SETTING,
    check_python,
    install_job_python,
    job_python_environment,
    pyspark_path,
    unpack,
)


def ref(name: str) -> BlobRef:
    """Return a reference to a blob with that name."""
    return BlobRef(sha256="0" * 64, name=name, size=1)


ARCHIVES = (Archive(blob=ref("env.tar.gz"), name="env"), Archive(blob=ref("data.zip"), name="data"))


@pytest.mark.parametrize("python", ["env/bin/python", "./env/bin/python", "./env/bin/python3.11"])
def test_a_python_in_an_archive_is_accepted(python: str) -> None:
    assert check_python(python, ARCHIVES) == python.removeprefix("./")


@pytest.mark.parametrize(
    ("python", "why"),
    [
        pytest.param("/usr/bin/python3", "not the path", id="of the machine"),
        pytest.param("python3", "not the path", id="by its name"),
        pytest.param("env", "not the path", id="the directory itself"),
        pytest.param("env/", "not the path", id="nothing below it"),
        pytest.param("env/../../bin/sh", "not the path", id="out of it"),
        pytest.param("env/..", "not the path", id="above it"),
        pytest.param("env/./python", "not the path", id="a dot"),
        pytest.param("./../env/bin/python", "not the path", id="from above"),
        pytest.param("env//bin", "not the path", id="two slashes"),
        pytest.param("env/bin/python -c", "not the path", id="with an option"),
        pytest.param("env/bin/python\n", "not the path", id="with a line break"),
        pytest.param("env/" + "x" * 500, "not the path", id="too long"),
        pytest.param("", "not the path", id="empty"),
        pytest.param("other/bin/python", "in no archive", id="no such archive"),
        pytest.param("data/bin/python", "cannot contain", id="in a zip file"),
    ],
)
def test_a_python_that_is_not_in_an_archive_is_refused(python: str, why: str) -> None:
    with pytest.raises(PackageRefused, match=why):
        check_python(python, ARCHIVES)


def test_the_spark_setting_for_python_is_equivalent_to_the_option() -> None:
    wanted = JobSubmission(
        name="p",
        owner="ada",
        pipeline=ref("p.py"),
        archives=ARCHIVES,
        spark_conf={SETTING: "./env/bin/python", "spark.sql.shuffle.partitions": "3"},
    )
    vetted = check_submission(wanted)
    assert vetted.python == "env/bin/python"
    assert vetted.spark_conf == {"spark.sql.shuffle.partitions": "3"}
    plain = JobSubmission(name="p", owner="ada", pipeline=ref("p.py"), archives=ARCHIVES)
    assert check_submission(plain).python == ""


def test_a_forbidden_or_conflicting_python_in_the_spark_setting_is_refused() -> None:
    for refused, error in (
        ({SETTING: "/bin/sh"}, PackageRefused),
        ({"spark.pyspark.driver.python": "env/bin/python"}, ForbiddenSparkConf),
    ):
        with pytest.raises(error):
            check_submission(
                JobSubmission(name="p", owner="a", pipeline=ref("p.py"), archives=ARCHIVES, spark_conf=refused)
            )
    with pytest.raises(SubmissionRejected, match="two Pythons"):
        check_submission(
            JobSubmission(
                name="p",
                owner="a",
                pipeline=ref("p.py"),
                archives=ARCHIVES,
                python="env/bin/python",
                spark_conf={SETTING: "env/bin/python3"},
            )
        )


def test_the_pyspark_of_the_cluster_comes_first_in_the_python_path() -> None:
    home = find_spark().home
    variables = job_python_environment("env/bin/python", home, {"PYTHONPATH": "/job/modules.zip"})
    assert variables["PYSPARK_PYTHON"] == "./env/bin/python"
    path = variables["PYTHONPATH"].split(os.pathsep)
    assert path == [*map(str, pyspark_path(home)), "/job/modules.zip"]
    assert [Path(each).name.partition("-")[0] for each in path] == ["pyspark.zip", "py4j", "modules.zip"]
    assert job_python_environment("env/bin/python", home, {})["PYTHONPATH"].count(os.pathsep) == 1


def test_an_installation_without_pyspark_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DriverFailed, match="has no PySpark"):
        pyspark_path(tmp_path)


def packed(path: Path, *members: tuple[str, int, str]) -> Path:
    """Create a tar archive from (name, mode, link target or empty), and return its path."""
    with tarfile.open(path, "w:gz") as archive:
        for name, mode, target in members:
            member = tarfile.TarInfo(name)
            member.mode = mode
            if target:
                member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member, io.BytesIO())
    return path


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """The working directory of a driver, including the program's directory ``app``."""
    (tmp_path / "work" / "app").mkdir(parents=True)
    return tmp_path / "work"


async def run(argv: Sequence[str]) -> tuple[Exit, str]:
    """Run a command; return how it ended and its standard error."""
    child = await asyncio.create_subprocess_exec(*argv, stderr=asyncio.subprocess.PIPE)
    _, complaint = await child.communicate()
    return Exit(child.returncode or 0), complaint.decode()


async def test_the_python_archive_is_unpacked_for_the_program_and_for_the_jvm(work: Path) -> None:
    file = packed(work / "app" / "env.tar.gz", ("bin/python", 0o755, ""), ("lib/x.py", 0o644, ""))
    found = await install_job_python("env/bin/python", [(file, "env")], work, work / "app", run)
    assert found == work / "app" / "env" / "bin" / "python"
    assert os.access(work / "env" / "bin" / "python", os.X_OK)
    assert (work / "env" / "lib" / "x.py").is_file()


@pytest.mark.parametrize(
    ("members", "why"),
    [
        pytest.param([("bin/other", 0o755, "")], "has no program bin/python", id="another program"),
        pytest.param([("bin/python", 0o644, "")], "has no program bin/python", id="no program"),
        pytest.param([("bin/python/x", 0o755, "")], "has no program bin/python", id="a directory"),
        pytest.param([("../../outside", 0o644, "")], "cannot unpack", id="out of the directory"),
        pytest.param([("way", 0o777, "../.."), ("way/outside", 0o644, "")], "env.tar.gz", id="out by a link"),
    ],
)
async def test_an_archive_without_the_python_or_with_escaping_members_is_an_error(
    work: Path, members: list[tuple[str, int, str]], why: str
) -> None:
    file = packed(work / "app" / "env.tar.gz", *members)
    with pytest.raises(DriverFailed, match=why):
        await install_job_python("env/bin/python", [(file, "env")], work, work / "app", run)
    assert [name for _, _, names in os.walk(work.parent) for name in names if name == "outside"] == []


async def test_a_malformed_archive_is_reported_with_the_error_of_tar(work: Path) -> None:
    file = work / "app" / "env.tar.gz"
    file.write_bytes(b"nothing of the kind")
    with pytest.raises(DriverFailed, match=r"cannot unpack env.tar.gz: .*tar"):
        await unpack(file, work / "app" / "env", run)


@pytest.mark.parametrize("name", ["app", "local"])
async def test_an_archive_name_that_the_driver_needs_is_refused(work: Path, name: str) -> None:
    (work / "local").mkdir()
    file = packed(work / "app" / "env.tar.gz", ("bin/python", 0o755, ""))
    with pytest.raises(DriverFailed, match="FILE#NAME"):
        await install_job_python(f"{name}/bin/python", [(file, name)], work, work / "app", run)


async def test_an_archive_that_takes_too_long_to_unpack_is_an_error(work: Path) -> None:
    async def late(_: Sequence[str]) -> tuple[Exit, str]:
        raise TimeoutError

    with pytest.raises(DriverFailed, match="took too long to unpack"):
        await unpack(work / "env.tar", work / "app" / "env", late)
