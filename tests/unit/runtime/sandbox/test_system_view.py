"""What every sandbox sees of the machine."""

from __future__ import annotations

import sys
from pathlib import Path

from sluice.runtime.sandbox.mounts import Mount, MountKind
from sluice.runtime.sandbox.system_view import (
    MAX_FILE_BYTES,
    content_of,
    java_paths,
    outside_system,
    python_paths,
    system_files,
    system_mounts,
)


def _etc(tmp_path: Path) -> Path:
    etc = tmp_path / "etc"
    for name in ("ssl/certs", "ssl/private", "java-21-openjdk", "ssh"):
        (etc / name).mkdir(parents=True)
    for name in ("hosts", "shadow", "passwd", "ssl/openssl.cnf", "fstab"):
        (etc / name).touch()
    run = tmp_path / "run"
    run.mkdir()
    (run / "stub-resolv.conf").write_bytes(b"nameserver 127.0.0.53\n")
    (etc / "resolv.conf").symlink_to("../run/stub-resolv.conf")
    return etc


def test_only_known_settings_without_secrets_are_shown_from_etc(tmp_path: Path) -> None:
    etc = _etc(tmp_path)
    shown = {mount.path for mount in system_mounts(etc) if mount.path.is_relative_to(etc)}

    assert shown == {etc / "ssl" / "certs", etc / "java-21-openjdk"}
    assert set(system_files(etc)) == {etc / "hosts", etc / "resolv.conf", etc / "ssl" / "openssl.cnf"}
    assert content_of(etc / "resolv.conf") == b"nameserver 127.0.0.53\n"


def test_large_and_missing_files_are_shown_as_empty(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(MAX_FILE_BYTES + 1))

    assert content_of(tmp_path / "large") == b""
    assert content_of(tmp_path / "missing") == b""


def test_system_mounts_are_read_only_or_links() -> None:
    kinds = {mount.kind for mount in system_mounts()}

    assert Mount.read_only(Path("/usr")) in list(system_mounts())
    assert kinds <= {MountKind.READ_ONLY, MountKind.LINK}


def test_python_is_shown_with_its_environment() -> None:
    if not Path(sys.prefix).is_relative_to("/usr"):
        assert Path(sys.prefix) in python_paths()
    assert not [path for path in python_paths() if path.is_relative_to("/usr")]


def test_a_java_outside_of_usr_is_shown_but_not_a_home_directory_with_a_bin(tmp_path: Path) -> None:
    java, home = tmp_path / "jdk-21", tmp_path / "home"
    for directory in (java / "bin", java / "lib", home / "bin"):
        directory.mkdir(parents=True)
    (java / "bin" / "java").touch()
    (java / "lib" / "modules").touch()
    (home / "bin" / "java").symlink_to(java / "bin" / "java")

    assert java_paths(home / "bin" / "java") == (java,)
    assert java_paths(Path("/usr/bin/true")) == ()


def test_a_linked_path_is_shown_by_its_name_and_its_target(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "name").symlink_to("real")

    assert outside_system([tmp_path / "name"]) == (tmp_path / "name", tmp_path / "real")
    assert outside_system([Path("/usr/lib"), tmp_path / "missing", Path("/")]) == ()
