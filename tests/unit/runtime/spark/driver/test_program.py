"""A pipeline's files: their names, and that a job sees them only when they are complete."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from sluice.runtime.messages import Archive, BlobRef, DriverAssignment
from sluice.runtime.spark.driver.program.program import Program
from sluice.runtime.spark.errors import DriverFailed

SECRET = "0" * 64


def ref(name: str) -> BlobRef:
    return BlobRef(name=name, sha256="0" * 64, size=1)


def assignment(*files: str, py_files: tuple[str, ...] = (), archives: tuple[str, ...] = ()) -> DriverAssignment:
    return DriverAssignment(
        pipeline=ref("job.py"),
        args=("one",),
        spark_conf={},
        files=tuple(map(ref, files)),
        py_files=tuple(map(ref, py_files)),
        archives=tuple(Archive(blob=ref(each), name="env") for each in archives),
        spark_auth_secret=SECRET,
        blob_host="127.0.0.1",
        blob_port=1,
    )


async def fetch(_: DriverAssignment, what: BlobRef, target: Path) -> None:
    make(target, what)


def make(target: Path, what: BlobRef) -> None:
    if what.name.endswith(".whl"):
        with zipfile.ZipFile(target, "w") as package:
            package.writestr("m/__init__.py", "")
    else:
        target.write_text(what.name, encoding="utf-8")


async def test_paths_of_the_program_are_known_before_its_files_are_fetched(tmp_path: Path) -> None:
    place = tmp_path / "work" / "app"
    place.parent.mkdir()
    work = assignment("rows.csv", py_files=("m-1.0-py3-none-any.whl",), archives=("env.tar.gz",))
    program = Program(work, place, tmp_path / "fetched")

    assert program.pipeline.script == place / "job.py"
    assert program.pipeline.packages.modules == (place / "m-1.0-py3-none-any.whl.zip",)
    assert not place.exists()
    owned: list[Path] = []

    def own(path: Path) -> None:
        owned.extend(path.iterdir())
        assert not place.exists(), "the job sees files that are not its own yet"

    await program.fetch(work, fetch, own)

    names = {"job.py", "rows.csv", "m-1.0-py3-none-any.whl.zip", "env.tar.gz"}
    assert {path.name for path in place.iterdir()} == {path.name for path in owned} == names
    assert not (tmp_path / "fetched").exists()


async def test_a_link_in_place_of_the_program_directory_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "app").symlink_to(tmp_path / "elsewhere")
    work = assignment()

    with pytest.raises(OSError, match="app"):
        await Program(work, tmp_path / "app", tmp_path / "fetched").fetch(work, fetch, lambda _: None)

    assert not list((tmp_path / "elsewhere").iterdir())


async def test_an_existing_program_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "job.py").write_text("another", encoding="utf-8")
    work = assignment()

    with pytest.raises(OSError, match="app"):
        await Program(work, tmp_path / "app", tmp_path / "fetched").fetch(work, fetch, lambda _: None)


async def test_a_broken_module_is_reported_by_its_original_file_name(tmp_path: Path) -> None:
    work = assignment(py_files=("broken.zip",))

    with pytest.raises(DriverFailed, match=r"^broken.zip is not a zip file"):
        await Program(work, tmp_path / "app", tmp_path / "fetched").fetch(work, fetch, lambda _: None)

    assert not (tmp_path / "app").exists()


@pytest.mark.parametrize(
    ("files", "py_files"),
    [(("job.py",), ()), (("m.py",), ("m.py",)), (("m.whl.zip",), ("m.whl",)), (("../up",), ()), ((".hidden",), ())],
)
def test_conflicting_hidden_or_escaping_file_names_are_refused(
    tmp_path: Path, files: tuple[str, ...], py_files: tuple[str, ...]
) -> None:
    with pytest.raises(DriverFailed):
        Program(assignment(*files, py_files=py_files), tmp_path / "app", tmp_path / "fetched")
