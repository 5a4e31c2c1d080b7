"""Finding Java, and compiling the plugin with it."""

from __future__ import annotations

import re
import stat
import threading
import zipfile
from pathlib import Path

import pytest

from sluice.runtime.spark.errors import JavaNotFound, PluginBuildFailed
from sluice.runtime.spark.java import MINIMUM_JAVA, find_java, find_preferred_java, find_spark
from sluice.runtime.spark.jvm import command, conf, job_conf
from sluice.runtime.spark.plugin_build import (
    AGENT_CLASS,
    CLUSTER_MANAGER_CLASS,
    ensure_plugin,
    plugin_sources,
    source_digest,
)


def fake_java(folder: Path, version: str) -> Path:
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


class TestFindJava:
    """Tests of ``find_java``; its error says exactly what to install."""

    def test_java_is_found_in_java_home(self, tmp_path: Path) -> None:
        path = fake_java(tmp_path, 'openjdk version "21.0.2" 2024-01-16')
        java = find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})
        assert (java.executable, java.major) == (path, 21)

    def test_java_is_found_in_the_path(self, tmp_path: Path) -> None:
        path = fake_java(tmp_path, 'openjdk version "17" 2021-09-14')
        assert find_java({"PATH": str(path.parent)}).executable == path

    @pytest.mark.parametrize("version", ['java version "1.8.0_392"', 'openjdk version "11.0.21"', "what?"])
    def test_a_java_that_is_too_old_or_of_unknown_version_is_refused(self, tmp_path: Path, version: str) -> None:
        fake_java(tmp_path, version)
        with pytest.raises(JavaNotFound, match="openjdk-17-jre-headless"):
            find_java({"JAVA_HOME": str(tmp_path)})

    @pytest.mark.parametrize("environment", [{"PATH": "/nowhere"}, {"JAVA_HOME": "/nowhere", "PATH": "/usr/bin"}])
    def test_a_missing_java_is_an_error_with_a_hint_to_install_one(self, environment: dict[str, str]) -> None:
        with pytest.raises(JavaNotFound, match=f"install a Java {MINIMUM_JAVA} runtime"):
            find_java(environment)


def installed(folder: Path, version: str) -> Path:
    """Create a Java installation in ``folder`` as distributions do, and return its command."""
    (folder / "bin").mkdir(parents=True)
    (folder / "release").write_text(f'IMPLEMENTOR="somebody"\nJAVA_VERSION="{version}"\n')
    (folder / "bin" / "java").write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    (folder / "bin" / "java").chmod(0o755)
    return folder / "bin" / "java"


class TestFindPreferredJava:
    """Preference order: JAVA_HOME, then Java 25, then the Java on the PATH."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> dict[str, str]:
        """An environment with Java 17 on its path."""
        return {"PATH": str(installed(tmp_path / "path", "17.0.15").parent)}

    def test_java_25_is_preferred_when_several_are_installed(self, tmp_path: Path, path: dict[str, str]) -> None:
        best = installed(tmp_path / "jvm" / "b", "25.0.3")
        installed(tmp_path / "jvm" / "a", "21.0.2")
        installed(tmp_path / "jvm" / "c", "26")
        java = find_preferred_java(path, [f"{tmp_path}/jvm/*"])
        assert (java.executable, java.major) == (best, 25)

    def test_java_home_takes_precedence_over_java_25(self, tmp_path: Path, path: dict[str, str]) -> None:
        installed(tmp_path / "jvm" / "b", "25.0.3")
        chosen = installed(tmp_path / "chosen", "21.0.2")
        environment = path | {"JAVA_HOME": str(tmp_path / "chosen")}
        assert find_preferred_java(environment, [f"{tmp_path}/jvm/*"]).executable == chosen

    def test_a_java_25_that_does_not_run_is_skipped(self, tmp_path: Path, path: dict[str, str]) -> None:
        installed(tmp_path / "jvm" / "b", "25.0.3").write_text("#!/bin/sh\nexit 1\n")
        assert find_preferred_java(path, [f"{tmp_path}/jvm/*"]).major == 17

    @pytest.mark.parametrize("release", ["", 'JAVA_VERSION="17.0.15"', "JAVA_VERSION=25"])
    def test_java_from_the_path_is_used_without_an_installed_java_25(
        self, tmp_path: Path, path: dict[str, str], release: str
    ) -> None:
        installed(tmp_path / "jvm" / "b", "25.0.3")
        (tmp_path / "jvm" / "b" / "release").write_text(release)
        assert find_preferred_java(path, [f"{tmp_path}/jvm/*", "/nowhere/*"]).major == 17


def test_spark_is_found_in_the_installed_pyspark() -> None:
    spark = find_spark()
    assert re.fullmatch(r"4\.3\.\d+", spark.version)
    assert any(jar.name.startswith("scala-compiler-") for jar in spark.jars)
    assert list(spark.jars) == sorted(spark.jars)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The plugin's jar as obtained by two concurrent callers; compiler warnings are fatal."""
    cache, jars = tmp_path_factory.mktemp("plugin"), []

    def build() -> None:
        jars.append(ensure_plugin(cache=cache, warnings_fatal=True))

    threads = [threading.Thread(target=build) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return jars


@pytest.mark.spark
def test_the_plugin_compiles_without_warnings_and_has_its_manifest_and_services(built: list[Path]) -> None:
    with zipfile.ZipFile(built[0]) as archive:
        names = archive.namelist()
        manifest = archive.read("META-INF/MANIFEST.MF").decode()
        service = archive.read("META-INF/services/org.apache.spark.scheduler.ExternalClusterManager").decode()
    assert names[0] == "META-INF/MANIFEST.MF"
    assert f"Premain-Class: {AGENT_CLASS}\n" in manifest
    assert service.strip() == CLUSTER_MANAGER_CLASS
    for class_name in (AGENT_CLASS, CLUSTER_MANAGER_CLASS):
        assert class_name.replace(".", "/") + ".class" in names
    assert sorted(path.suffix for path in built[0].parent.iterdir()) == [".jar", ".json", ".lock"]


@pytest.mark.spark
def test_built_plugin_is_used_again(built: list[Path]) -> None:
    """Two concurrent builders and a later caller all get the same complete file."""
    one, other = built
    stamp = one.stat().st_mtime_ns
    assert one == other == ensure_plugin(cache=one.parent)
    assert one.stat().st_mtime_ns == stamp
    assert zipfile.ZipFile(one).testzip() is None


def test_compiler_errors_are_in_the_build_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "Broken.scala"
    source.write_text("object Broken { val number: Int = nothingThere }")
    monkeypatch.setattr("sluice.runtime.spark.plugin_build.PLUGIN_SOURCES", tmp_path)
    with pytest.raises(PluginBuildFailed, match="nothingThere"):
        ensure_plugin(cache=tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["plugin.lock"]


def test_digest_follows_sources_and_spark(tmp_path: Path) -> None:
    source = tmp_path / "A.scala"
    source.write_text("object A")
    first = source_digest([source], "4.3.0")
    assert first == source_digest([source], "4.3.0")
    assert first != source_digest([source], "4.3.1")
    source.write_text("object A2")
    assert first != source_digest([source], "4.3.0")


def test_names_shared_by_python_and_scala_are_equal() -> None:
    """Python and Scala cannot import from each other."""
    scala = "\n".join(path.read_text() for path in plugin_sources())
    assert f'val Algorithm = "{conf.TLS_PROTOCOL}"' in scala
    assert f"val ExitCode = {command.IDENTITY_EXIT_CODE}\n" in scala
    assert f'val Reserved = "{job_conf.RESERVED_PROPERTY}"' in scala
    assert f'val Allowed = "{job_conf.ALLOWED_PROPERTY}"' in scala
