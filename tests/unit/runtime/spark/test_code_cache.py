"""The cache of code: what others could have written is not loaded, wherever in the way they could write."""

from __future__ import annotations

import json
import logging
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.core.errors import StoreError
from sluice.runtime.spark import code_cache, plugin_build
from sluice.runtime.spark.code_cache import (
    checksum_file,
    prepare_directory,
    why_unusable,
    write_checksum,
)
from sluice.runtime.spark.errors import PluginBuildFailed
from sluice.runtime.spark.java import Java, SparkDistribution
from sluice.runtime.spark.plugin_build import ensure_plugin, plugin_sources, source_digest

JAVA = Java(Path("/opt/java/bin/java"), 17, "openjdk 17.0.1")
SPARK = SparkDistribution(Path("/opt/spark"), "4.3.0", ())


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache with a directory of our own above it."""
    return prepare_directory(tmp_path / "above" / "cache")


@pytest.fixture
def kept(cache: Path) -> Path:
    """A file in it, with its digest."""
    file = cache / "code.jar"
    file.write_bytes(b"code")
    file.chmod(0o644)
    write_checksum(file)
    return file


def _other_content(file: Path) -> None:
    file.write_bytes(b"evil")


def _longer(file: Path) -> None:
    file.write_bytes(b"code and more")


def _others_may_write_it(file: Path) -> None:
    file.chmod(0o666)


def _a_link(file: Path) -> None:
    elsewhere = file.with_name("elsewhere")
    file.rename(elsewhere)
    file.symlink_to(elsewhere)


def _a_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def _no_digest(file: Path) -> None:
    checksum_file(file).unlink()


def _damaged_digest(file: Path) -> None:
    checksum_file(file).write_text("{")


def _others_may_write_the_digest(file: Path) -> None:
    checksum_file(file).chmod(0o666)


def _a_linked_digest(file: Path) -> None:
    _a_link(checksum_file(file))


def _others_may_write_the_directory(file: Path) -> None:
    file.parent.chmod(0o770)


def _others_may_write_above(file: Path) -> None:
    file.parent.parent.chmod(0o777)


HARMS = [
    _other_content,
    _longer,
    _others_may_write_it,
    _a_link,
    _a_fifo,
    _no_digest,
    _damaged_digest,
    _others_may_write_the_digest,
    _a_linked_digest,
    _others_may_write_the_directory,
    _others_may_write_above,
]


def test_what_was_recorded_may_be_used(kept: Path) -> None:
    assert why_unusable(kept) == ""


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__.strip("_"))
def test_what_others_could_have_written_may_not(kept: Path, harm: Callable[[Path], None]) -> None:
    harm(kept)
    assert why_unusable(kept) != ""


def test_a_sticky_directory_above_is_as_good_as_a_private_one(kept: Path) -> None:
    """Nobody but its owner can rename what is in it: /tmp."""
    kept.parent.parent.chmod(0o1777)
    assert why_unusable(kept) == ""


def test_a_link_above_counts_where_it_lies_and_where_it_leads(kept: Path, tmp_path: Path) -> None:
    (tmp_path / "way").symlink_to(kept.parent.parent)
    linked = tmp_path / "way" / "cache" / kept.name
    assert why_unusable(linked) == ""
    kept.parent.parent.chmod(0o777)
    assert "others may replace what is in" in why_unusable(linked)


@pytest.mark.parametrize("whose", ["file", "note", "directory", "above"])
def test_what_belongs_to_another_user_may_not_be_used(kept: Path, whose: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every owner but one is this process's; the one is user id 4711's."""
    path = {"file": kept, "note": checksum_file(kept), "directory": kept.parent, "above": kept.parent.parent}[whose]
    inode = path.stat().st_ino

    def belongs(where: Path, info: os.stat_result) -> str:
        return f"{where} belongs to user id 4711" if info.st_ino == inode else ""

    monkeypatch.setattr(code_cache, "_belongs_to_others", belongs)
    assert why_unusable(kept) == f"{path} belongs to user id 4711"


def test_a_directory_that_others_may_write_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(StoreError, match=r"others may have written.*XDG_CACHE_HOME"):
        prepare_directory(open_to_all)
    with pytest.raises(StoreError, match="others may replace"):
        prepare_directory(open_to_all / "below")
    assert open_to_all.stat().st_mode & 0o777 == 0o777


class TestPlugin:
    """The agent of every JVM."""

    @pytest.fixture
    def compiled(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """How often it was compiled; no compiler runs."""
        times: list[str] = []

        def compile_(*arguments: object, **_: object) -> None:
            times.append("once more")
            classes = arguments[3]
            assert isinstance(classes, Path)
            (classes / "Agent.class").write_bytes(b"ours")

        monkeypatch.setattr(plugin_build, "_compile", compile_)
        return times

    def test_a_jar_that_was_put_there_is_not_used(
        self, cache: Path, compiled: list[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        planted = cache / f"sluice-spark-4.3.0-{source_digest(plugin_sources(), '4.3.0')}.jar"
        planted.write_bytes(b"the agent of an attacker")
        planted.chmod(0o644)
        with caplog.at_level(logging.WARNING):
            jar = ensure_plugin(java=JAVA, spark=SPARK, cache=cache)
        assert jar == planted
        assert zipfile.ZipFile(jar).read("Agent.class") == b"ours"
        assert "is compiled again" in caplog.text
        assert len(compiled) == 1

    @pytest.mark.parametrize("harm", HARMS[:9], ids=lambda harm: harm.__name__.strip("_"))
    def test_one_that_was_changed_is_compiled_again(
        self, cache: Path, compiled: list[str], harm: Callable[[Path], None]
    ) -> None:
        jar = ensure_plugin(java=JAVA, spark=SPARK, cache=cache)
        assert ensure_plugin(java=JAVA, spark=SPARK, cache=cache) == jar
        assert len(compiled) == 1
        harm(jar)
        assert ensure_plugin(java=JAVA, spark=SPARK, cache=cache) == jar
        assert len(compiled) == 2
        assert zipfile.ZipFile(jar).read("Agent.class") == b"ours"
        assert json.loads(checksum_file(jar).read_text())["size"] == jar.stat().st_size

    @pytest.mark.usefixtures("compiled")
    def test_none_is_made_where_others_may_write(self, cache: Path) -> None:
        ensure_plugin(java=JAVA, spark=SPARK, cache=cache)
        cache.chmod(0o777)
        with pytest.raises(PluginBuildFailed, match="others may have written"):
            ensure_plugin(java=JAVA, spark=SPARK, cache=cache)
