"""The code cache: code is not loaded if others could have written to it or anywhere on its path."""

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
    """A cache whose parent directory is also ours."""
    return prepare_directory(tmp_path / "above" / "cache")


@pytest.fixture
def kept(cache: Path) -> Path:
    """A file in the cache, with its digest."""
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


def test_a_recorded_file_is_usable(kept: Path) -> None:
    assert why_unusable(kept) == ""


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__.strip("_"))
def test_a_file_that_others_could_have_written_is_unusable(kept: Path, harm: Callable[[Path], None]) -> None:
    harm(kept)
    assert why_unusable(kept) != ""


def test_a_file_below_a_sticky_directory_is_usable(kept: Path) -> None:
    """In a sticky directory like /tmp, only the owner of a file can rename it."""
    kept.parent.parent.chmod(0o1777)
    assert why_unusable(kept) == ""


def test_a_linked_path_is_unusable_when_others_can_write_at_its_target(kept: Path, tmp_path: Path) -> None:
    (tmp_path / "way").symlink_to(kept.parent.parent)
    linked = tmp_path / "way" / "cache" / kept.name
    assert why_unusable(linked) == ""
    kept.parent.parent.chmod(0o777)
    assert "others may replace what is in" in why_unusable(linked)


@pytest.mark.parametrize("whose", ["file", "note", "directory", "above"])
def test_a_file_that_belongs_to_another_user_is_unusable(
    kept: Path, whose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every path belongs to the user of this process except for one, which belongs to user id 4711."""
    path = {"file": kept, "note": checksum_file(kept), "directory": kept.parent, "above": kept.parent.parent}[whose]
    inode = path.stat().st_ino

    def belongs(where: Path, info: os.stat_result) -> str:
        return f"{where} belongs to user id 4711" if info.st_ino == inode else ""

    monkeypatch.setattr(code_cache, "_belongs_to_others", belongs)
    assert why_unusable(kept) == f"{path} belongs to user id 4711"


def test_a_cache_directory_writable_by_others_is_refused_and_not_changed(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(StoreError, match=r"others may have written.*XDG_CACHE_HOME"):
        prepare_directory(open_to_all)
    with pytest.raises(StoreError, match="others may replace"):
        prepare_directory(open_to_all / "below")
    assert open_to_all.stat().st_mode & 0o777 == 0o777


class TestPlugin:
    """The plugin, which is the agent of every JVM."""

    @pytest.fixture
    def compiled(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """A list with one entry per compilation; no compiler runs."""
        times: list[str] = []

        def compile_(*arguments: object, **_: object) -> None:
            times.append("once more")
            classes = arguments[3]
            assert isinstance(classes, Path)
            (classes / "Agent.class").write_bytes(b"ours")

        monkeypatch.setattr(plugin_build, "_compile", compile_)
        return times

    def test_a_planted_jar_is_not_used_but_compiled_again(
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
    def test_a_jar_that_was_changed_is_compiled_again(
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
    def test_no_jar_is_built_in_a_directory_writable_by_others(self, cache: Path) -> None:
        ensure_plugin(java=JAVA, spark=SPARK, cache=cache)
        cache.chmod(0o777)
        with pytest.raises(PluginBuildFailed, match="others may have written"):
            ensure_plugin(java=JAVA, spark=SPARK, cache=cache)
