"""Class archives are found if they are as they were made, and refused if in doubt."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from sluice.runtime.spark import code_cache
from sluice.runtime.spark.errors import ClassArchiveFailed
from sluice.runtime.spark.java import Java, SparkDistribution, find_preferred_java
from sluice.runtime.spark.jvm import class_archive
from sluice.runtime.spark.jvm.class_archive import (
    archive_file,
    archive_options,
    find_class_archive,
    find_spark_java,
    has_class_archive,
)
from sluice.runtime.spark.jvm.command import SparkRuntime, TlsEngine
from sluice.runtime.spark.training.archive import KEPT_ARCHIVES, make_class_archive
from sluice.runtime.spark.training.rehearsal import Order, class_names, read, written

JAVA = Java(Path("/opt/java/bin/java"), 17, "openjdk 17.0.1")
JAVA_25 = Java(Path("/opt/java25/bin/java"), 25, "openjdk 25.0.3")


@pytest.fixture
def spark(tmp_path: Path) -> SparkDistribution:
    """A Spark distribution with two jars."""
    jars = tmp_path / "jars"
    jars.mkdir()
    for name in ("a.jar", "b.jar"):
        (jars / name).write_text(name)
    return SparkDistribution(tmp_path, "4.3.0", (jars / "a.jar", jars / "b.jar"))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """The directory for archives."""
    return tmp_path / "cache"


@dataclass
class Workshop:
    """Makes archives without Java, and records them."""

    spark: SparkDistribution
    cache: Path
    made: list[Path] = field(default_factory=list)
    before: Callable[[], None] = lambda: None

    def make(self, java: Java, spark: SparkDistribution, work: Path, made: Path) -> None:
        """Make an archive; stands for a training run of Spark."""
        assert work.stat().st_mode & 0o777 == 0o700
        assert made.parent == work
        self.made.append(made)
        time.sleep(0.05)
        made.write_bytes(b"co")
        self.before()
        made.write_bytes(b"code")

    def archive(self, java: Java = JAVA) -> Path:
        """The archive, made if needed."""
        return make_class_archive(java=java, spark=self.spark, cache=self.cache, make=self.make)

    def found(self, java: Java = JAVA) -> Path | None:
        """Return the archive that a JVM would be given."""
        return find_class_archive(java, self.spark, cache=self.cache)


@pytest.fixture
def workshop(spark: SparkDistribution, cache: Path) -> Workshop:
    return Workshop(spark, cache)


def test_a_class_archive_that_was_made_is_found(workshop: Workshop, spark: SparkDistribution, cache: Path) -> None:
    assert workshop.found() is None
    archive = workshop.archive()
    assert archive.read_bytes() == b"code"
    assert workshop.found() == archive
    assert has_class_archive(JAVA, spark, cache=cache)
    assert cache.stat().st_mode & 0o777 == 0o700
    assert sorted(path.suffix for path in cache.iterdir()) == [".jsa", ".json", ".lock"]


def test_a_class_archive_is_made_once_for_concurrent_callers(workshop: Workshop) -> None:
    threads = [threading.Thread(target=workshop.archive) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(workshop.made) == 1


def test_another_jvm_or_other_jars_have_another_class_archive(spark: SparkDistribution, cache: Path) -> None:
    def name(java: Java, spark: SparkDistribution) -> Path:
        return archive_file(java, spark, cache=cache)

    first = name(JAVA, spark)
    assert name(replace(JAVA, build="openjdk 17.0.2"), spark) != first
    assert name(JAVA, replace(spark, jars=spark.jars[::-1])) != first
    os.utime(spark.jars[0], (1, 1))
    assert name(JAVA, spark) != first


def test_another_plugin_has_another_class_archive(
    spark: SparkDistribution, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "Guard.scala"
    monkeypatch.setattr(class_archive, "plugin_sources", lambda: (source,))
    names = []
    for text in ("one", "two"):
        source.write_text(text)
        names.append(archive_file(JAVA_25, spark, cache=tmp_path))
    assert names[0] != names[1]


@pytest.mark.parametrize(
    ("java", "option"),
    [
        (JAVA, "-XX:SharedArchiveFile={}"),
        (replace(JAVA, major=21), "-XX:SharedArchiveFile={}"),
        (JAVA_25, "-XX:AOTCache={}"),
        (replace(JAVA_25, major=26), "-XX:AOTCache={}"),
    ],
    ids=["17", "21", "25", "26"],
)
def test_java_25_and_newer_use_aot_caches(java: Java, option: str, workshop: Workshop) -> None:
    archive = workshop.archive(java)
    assert workshop.found(java) == archive
    lines = archive_options(archive, Path("/work/classes.log"))
    assert option.format(archive) in lines
    assert {"-Xshare:auto", "-XX:AOTMode=auto"} & set(lines), "a JVM that it does not fit would not start"
    assert {"-Xlog:aot*=off", "-Xlog:cds*=off"} & set(lines), "the JVM would print among the job's own lines"


def test_java_25_is_preferred_once_it_has_a_class_archive(workshop: Workshop, tmp_path: Path) -> None:
    for name, version in (("path", "17.0.15"), ("jvm/best", "25.0.3")):
        home = tmp_path / name
        (home / "bin").mkdir(parents=True)
        (home / "release").write_text(f'JAVA_VERSION="{version}"\n')
        (home / "bin" / "java").write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        (home / "bin" / "java").chmod(0o755)
    installed = [f"{tmp_path}/jvm/*"]

    def java(**environment: str) -> Java:
        return find_spark_java(workshop.spark, cache=workshop.cache, environment=environment, installed=installed)

    on_path = str(tmp_path / "path" / "bin")
    assert java(PATH=on_path).major == 17
    assert java(PATH="/nowhere").major == 25, "better than none"
    workshop.archive(find_preferred_java({"PATH": on_path}, installed))
    assert java(PATH=on_path).major == 25
    assert java(PATH=on_path, JAVA_HOME=str(tmp_path / "path")).major == 17


def _other_code(archive: Path) -> None:
    archive.write_bytes(b"evil")


def _truncated(archive: Path) -> None:
    archive.write_bytes(b"co")


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


def _writable_digest(archive: Path) -> None:
    archive.with_suffix(".json").chmod(0o666)


@pytest.mark.parametrize("java", [JAVA, JAVA_25], ids=["17", "25"])
@pytest.mark.parametrize(
    "harm",
    [_other_code, _truncated, _longer, _writable, _link, _gone, _no_digest, _writable_digest],
    ids=lambda harm: harm.__name__,
)
def test_a_class_archive_that_may_have_been_changed_is_made_again(
    workshop: Workshop, harm: Callable[[Path], None], java: Java
) -> None:
    archive = workshop.archive(java)
    harm(archive)
    assert workshop.found(java) is None
    assert workshop.archive(java) == archive
    assert workshop.found(java) == archive
    assert len(workshop.made) == 2


def test_a_class_archive_in_a_directory_writable_by_others_is_not_used(workshop: Workshop, cache: Path) -> None:
    workshop.archive()
    cache.chmod(0o777)
    assert workshop.found() is None
    with pytest.raises(ClassArchiveFailed, match="others may have written"):
        workshop.archive()


def test_a_class_archive_of_another_user_is_not_used(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = workshop.archive().stat().st_uid + 7
    monkeypatch.setattr(code_cache, "TRUSTED_OWNERS", frozenset())
    monkeypatch.setattr(os, "geteuid", lambda: owner)
    assert workshop.found() is None


def test_a_failed_training_job_leaves_no_class_archive(workshop: Workshop, cache: Path) -> None:
    def fails() -> None:
        raise ClassArchiveFailed("Spark's JVM did not start")

    workshop.before = fails
    with pytest.raises(ClassArchiveFailed, match="did not start"):
        workshop.archive()
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


def test_a_class_archive_is_not_found_while_it_is_made(workshop: Workshop) -> None:
    seen: list[Path | None] = []
    workshop.before = lambda: seen.append(workshop.found())
    workshop.archive()
    assert seen == [None]


def test_leftovers_of_a_killed_training_are_removed(workshop: Workshop, cache: Path) -> None:
    workshop.archive()
    left = cache / "making-classes-killed"
    left.mkdir()
    (left / "classes.aotconf").write_bytes(b"half")
    workshop.archive(JAVA_25)
    assert not left.exists()


def test_old_class_archives_are_removed(workshop: Workshop, cache: Path) -> None:
    javas = [replace(JAVA, build=f"build {number}") for number in range(KEPT_ARCHIVES + 2)]
    for number, java in enumerate(javas):
        archive = workshop.archive(java)
        os.utime(archive, (number, number))
    newest = workshop.archive(JAVA_25)
    kept = {path for path in cache.iterdir() if path.suffix in {".jsa", ".aot"}}
    assert kept == {newest} | {archive_file(java, workshop.spark, cache=cache) for java in javas[-KEPT_ARCHIVES:]}
    assert {path.stem for path in cache.glob("*.json")} == {path.stem for path in kept}


def test_a_class_archive_has_a_note_with_its_digest_and_size(workshop: Workshop) -> None:
    note = json.loads(workshop.archive().with_suffix(".json").read_text())
    assert note == {"sha256": hashlib.sha256(b"code").hexdigest(), "size": 4}


def test_only_classes_with_a_class_file_are_archived() -> None:
    """A JVM with an agent crashes on any other class."""
    listed = """# NOTE: do not edit
java/lang/Object id: 0
org/apache/spark/SparkEnv id: 7
@lambda-proxy org/apache/spark/SparkEnv run ()V
@lambda-form-invoker [LF_RESOLVE] x
made/Elsewhere id: 9 super: 0 source: other.jar

"""
    assert class_names(listed) == ["java/lang/Object", "org/apache/spark/SparkEnv"]


def test_an_order_survives_being_written_for_the_rehearsal(spark: SparkDistribution, tmp_path: Path) -> None:
    order = Order(
        spark=SparkRuntime(JAVA_25, spark, tmp_path / "plugin.jar", TlsEngine.OPENSSL),
        directory=tmp_path,
        driver_options=("-XX:AOTMode=record",),
        executor_options=(),
        executor_classes=tmp_path / "classes",
        both_in_driver=True,
    )
    assert read(written(order)) == order
    assert order.own_network
