"""Modules and archives that come with a pipeline."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from sluice.runtime.messages import Archive, BlobRef, JobSubmission
from sluice.runtime.spark.errors import DriverFailed, PackageRefused
from sluice.runtime.spark.jvm.packages import (
    Packages,
    check_importable,
    check_packages,
    directory_name,
    importable_name,
)


def ref(name: str) -> BlobRef:
    """Return a reference to a blob with that name."""
    return BlobRef(sha256="0" * 64, name=name, size=1)


def submission(
    *, files: tuple[str, ...] = (), modules: tuple[str, ...] = (), archives: tuple[tuple[str, str], ...] = ()
) -> JobSubmission:
    """Return a job with these files in addition to its pipeline."""
    return JobSubmission(
        name="p",
        owner="ada",
        pipeline=ref("p.py"),
        files=tuple(map(ref, files)),
        py_files=tuple(map(ref, modules)),
        archives=tuple(Archive(blob=ref(file), name=name) for file, name in archives),
    )


@pytest.mark.parametrize("name", ["m.py", "m.zip", "m.egg", "m-1.0-py3-none-any.whl", "M.PY"])
def test_modules_with_a_known_suffix_are_accepted(name: str) -> None:
    check_packages(submission(modules=(name,)))


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(submission(modules=("m.tar.gz",)), id="an-archive-is-no-module"),
        pytest.param(submission(modules=("m",)), id="no-suffix"),
        pytest.param(submission(archives=(("e.rar", "e"),)), id="unknown-archive"),
        pytest.param(submission(archives=(("e#f.zip", "e"),)), id="a-name-that-Spark-would-split"),
        pytest.param(submission(archives=(("e.zip", "../e"),)), id="out-of-its-directory"),
        pytest.param(submission(archives=(("e.zip", "a,b"),)), id="a-list"),
        pytest.param(submission(archives=(("e.zip", ""),)), id="nameless"),
        pytest.param(submission(archives=(("e.zip", "e"), ("e.tgz", "e"))), id="two-directories-of-one-name"),
        pytest.param(submission(files=("e",), archives=(("e.zip", "e"),)), id="a-file-and-a-directory-of-one-name"),
    ],
)
def test_packages_with_unusable_or_conflicting_names_are_refused(wrong: JobSubmission) -> None:
    with pytest.raises(PackageRefused):
        check_packages(wrong)


@pytest.mark.parametrize(("file", "name"), [("e.tar.gz", "e"), ("e.tgz", "e"), ("a.b.zip", "a.b"), ("E.TAR", "E")])
def test_an_archive_is_unpacked_under_its_name_without_the_suffix(file: str, name: str) -> None:
    assert directory_name(file) == name


def wheel(path: Path, *members: str) -> Path:
    """Create a zip file with these members and return its path."""
    with zipfile.ZipFile(path, "w") as package:
        for member in members:
            package.writestr(member, "X = 1\n")
    return path


def test_a_wheel_is_given_the_suffix_zip_for_pyspark(tmp_path: Path) -> None:
    name = "m-1.0-py3-none-any.whl"
    check_importable(wheel(tmp_path / name, "m/__init__.py"), name)
    assert importable_name(name) == "m-1.0-py3-none-any.whl.zip"
    assert importable_name("m.zip") == "m.zip"


@pytest.mark.parametrize("member", ["m/_fast.cpython-311-x86_64-linux-gnu.so", "m/x.pyd", "m/lib.so.1.2"])
def test_a_wheel_with_native_code_is_refused_with_a_hint_to_archives(tmp_path: Path, member: str) -> None:
    with pytest.raises(DriverFailed, match="--archives"):
        check_importable(wheel(tmp_path / "m.whl", "m/__init__.py", member), "m.whl")


def test_a_module_archive_that_is_not_a_zip_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.zip").write_bytes(b"no zip")
    with pytest.raises(DriverFailed, match="not a zip file"):
        check_importable(tmp_path / "m.zip", "m.zip")
    check_importable(tmp_path / "m.py", "m.py")


def test_all_packages_are_in_the_spark_conf_and_the_python_path(tmp_path: Path) -> None:
    packages = Packages((tmp_path / "m.zip", tmp_path / "n.py"), ((tmp_path / "e.tgz", "env"),))
    assert packages.conf([tmp_path / "data.csv"]) == {
        "spark.files": f"{tmp_path}/data.csv,{tmp_path}/m.zip,{tmp_path}/n.py",
        "spark.submit.pyFiles": f"{tmp_path}/m.zip,{tmp_path}/n.py",
        "spark.archives": f"{tmp_path}/e.tgz#env",
    }
    assert packages.environment() == {"PYTHONPATH": f"{tmp_path}/m.zip"}
    assert (Packages().conf([]), Packages().environment()) == ({}, {})
