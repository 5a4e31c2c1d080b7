"""Archives of classes: found when they are what was made, and refused whenever they might not be."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.runtime.spark import code_cache
from sluice.runtime.spark.errors import ClassArchiveFailed
from sluice.runtime.spark.java import Java, SparkDistribution
from sluice.runtime.spark.jvm import class_archive
from sluice.runtime.spark.jvm.class_archive import (
    archive_name,
    find_class_archive,
    has_class_archive,
    make_class_archive,
)
from sluice.runtime.spark.jvm.class_training import class_names

JAVA = Java(Path("/opt/java/bin/java"), 17, "openjdk 17.0.1")


@pytest.fixture
def spark(tmp_path: Path) -> SparkDistribution:
    """A Spark of two jars."""
    jars = tmp_path / "jars"
    jars.mkdir()
    for name in ("a.jar", "b.jar"):
        (jars / name).write_text(name)
    return SparkDistribution(tmp_path, "4.3.0", (jars / "a.jar", jars / "b.jar"))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Where archives are."""
    return tmp_path / "cache"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How often one was made; nothing runs."""
    times: list[str] = []

    def classes(java: Java, spark: SparkDistribution, work: Path) -> Path:  # noqa: ARG001  # that of the other
        times.append("once more")
        time.sleep(0.05)
        return work

    def dump(java: Java, spark: SparkDistribution, classes: Path, work: Path) -> None:  # noqa: ARG001  # likewise
        (work / "classes.jsa").write_bytes(b"code")

    monkeypatch.setattr(class_archive, "loaded_classes", classes)
    monkeypatch.setattr(class_archive, "_dump", dump)
    return times


@pytest.mark.usefixtures("made")
def test_one_that_was_made_is_found(spark: SparkDistribution, cache: Path) -> None:
    assert find_class_archive(JAVA, spark, cache=cache) is None
    archive = make_class_archive(java=JAVA, spark=spark, cache=cache)
    assert archive.read_bytes() == b"code"
    assert find_class_archive(JAVA, spark, cache=cache) == archive
    assert has_class_archive(JAVA, spark, cache=cache)
    assert cache.stat().st_mode & 0o777 == 0o700
    assert sorted(path.suffix for path in cache.iterdir()) == [".jsa", ".json", ".lock"]


def test_it_is_made_once_however_many_want_it(spark: SparkDistribution, cache: Path, made: list[str]) -> None:
    threads = [
        threading.Thread(target=lambda: make_class_archive(java=JAVA, spark=spark, cache=cache)) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1


@pytest.mark.usefixtures("made")
def test_another_jvm_or_another_jar_has_another(spark: SparkDistribution) -> None:
    name = archive_name(JAVA, spark)
    assert archive_name(replace(JAVA, build="openjdk 17.0.2"), spark) != name
    assert archive_name(JAVA, replace(spark, jars=spark.jars[::-1])) != name
    os.utime(spark.jars[0], (1, 1))
    assert archive_name(JAVA, spark) != name


def _other_code(archive: Path) -> None:
    archive.write_bytes(b"evil")


def _longer(archive: Path) -> None:
    archive.write_bytes(b"code and more")


def _writable(archive: Path) -> None:
    archive.chmod(0o664)


def _link(archive: Path) -> None:
    elsewhere = archive.with_name("elsewhere")
    archive.rename(elsewhere)
    archive.symlink_to(elsewhere)


def _gone(archive: Path) -> None:
    archive.unlink()


def _no_digest(archive: Path) -> None:
    archive.with_suffix(".json").write_text("{")


@pytest.mark.parametrize(
    "harm",
    [_other_code, _longer, _writable, _link, _gone, _no_digest],
    ids=lambda harm: harm.__name__,
)
def test_one_that_may_not_be_what_was_made_is_not_used_but_made_again(
    spark: SparkDistribution, cache: Path, made: list[str], harm: object
) -> None:
    archive = make_class_archive(java=JAVA, spark=spark, cache=cache)
    assert callable(harm)
    harm(archive)
    assert find_class_archive(JAVA, spark, cache=cache) is None
    assert make_class_archive(java=JAVA, spark=spark, cache=cache) == archive
    assert find_class_archive(JAVA, spark, cache=cache) == archive
    assert len(made) == 2


@pytest.mark.usefixtures("made")
def test_nothing_in_a_directory_that_others_may_write_is_used(spark: SparkDistribution, cache: Path) -> None:
    make_class_archive(java=JAVA, spark=spark, cache=cache)
    cache.chmod(0o777)
    assert find_class_archive(JAVA, spark, cache=cache) is None
    with pytest.raises(ClassArchiveFailed, match="others may have written"):
        make_class_archive(java=JAVA, spark=spark, cache=cache)


@pytest.mark.usefixtures("made")
def test_one_of_somebody_else_is_not_used(
    spark: SparkDistribution, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = make_class_archive(java=JAVA, spark=spark, cache=cache)
    owner = archive.stat().st_uid + 7
    monkeypatch.setattr(code_cache, "TRUSTED_OWNERS", frozenset())
    monkeypatch.setattr(os, "geteuid", lambda: owner)
    assert find_class_archive(JAVA, spark, cache=cache) is None


def test_a_job_that_fails_leaves_nothing(
    spark: SparkDistribution, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> Path:
        raise ClassArchiveFailed("Spark's JVM did not start")

    monkeypatch.setattr(class_archive, "loaded_classes", fails)
    with pytest.raises(ClassArchiveFailed, match="did not start"):
        make_class_archive(java=JAVA, spark=spark, cache=cache)
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


@pytest.mark.usefixtures("made")
def test_the_digest_beside_it_is_that_of_its_content(spark: SparkDistribution, cache: Path) -> None:
    archive = make_class_archive(java=JAVA, spark=spark, cache=cache)
    note = json.loads(archive.with_suffix(".json").read_text())
    assert note == {"sha256": hashlib.sha256(b"code").hexdigest(), "size": 4}


def test_only_classes_with_a_class_file_are_archived() -> None:
    """A JVM with an agent dies of any other."""
    listed = """# NOTE: do not edit
java/lang/Object id: 0
org/apache/spark/SparkEnv id: 7
@lambda-proxy org/apache/spark/SparkEnv run ()V
@lambda-form-invoker [LF_RESOLVE] x
made/Elsewhere id: 9 super: 0 source: other.jar

"""
    assert class_names(listed) == ["java/lang/Object", "org/apache/spark/SparkEnv"]
