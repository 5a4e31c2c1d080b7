"""What an image is built from: only a wheel that is still exactly as it was installed."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from importlib.metadata import Distribution
from io import BytesIO
from pathlib import Path

import pytest

from sluice.cli.compose.image_context import INSTRUCTIONS, image_files, pack_wheel
from sluice.cli.errors import CommandError

ROOT = Path(__file__).parents[4]
FILES = {
    "core/__init__.py": b"",
    "core/settings.toml": b"[a]\n",
    "sluice-1.0.dist-info/METADATA": b"Metadata-Version: 2.4\nName: sluice\nVersion: 1.0\n",
    "sluice-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nTag: py3-none-any\n",
}
OF_THE_INSTALLER = {
    "../../../bin/sluice": b"#!/environment/bin/python\n",
    "core/__pycache__/__init__.cpython-311.pyc": b"\0",
    "sluice-1.0.dist-info/INSTALLER": b"pip\n",
    "sluice-1.0.dist-info/REQUESTED": b"",
    "sluice-1.0.dist-info/direct_url.json": b"{}",
}


def digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of installed packages, as pip leaves it."""
    place = tmp_path / "environment" / "lib" / "python3" / "site-packages"
    for name, data in (FILES | OF_THE_INSTALLER).items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
    lines = [f"{name},sha256={digest(data)},{len(data)}" for name, data in (FILES | OF_THE_INSTALLER).items()]
    (place / "sluice-1.0.dist-info" / "RECORD").write_text("\n".join((*lines, "sluice-1.0.dist-info/RECORD,,")))
    return place


def installed(site: Path) -> Distribution:
    return Distribution.at(site / "sluice-1.0.dist-info")


def test_the_packed_wheel_has_the_files_of_the_installed_one_and_is_reproducible(site: Path) -> None:
    packed = pack_wheel(installed(site))
    with zipfile.ZipFile(BytesIO(packed)) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    record = found.pop("sluice-1.0.dist-info/RECORD").decode().splitlines()
    assert found == FILES
    assert sorted(record) == sorted(
        [
            *(f"{name},sha256={digest(data)},{len(data)}" for name, data in FILES.items()),
            "sluice-1.0.dist-info/RECORD,,",
        ]
    )
    assert packed == pack_wheel(installed(site))


def test_a_changed_file_of_the_installation_is_not_packed(site: Path) -> None:
    (site / "core" / "settings.toml").write_bytes(b"[evil]\n")
    with pytest.raises(CommandError, match=r"settings.toml is not what was installed \(install sluice again\)"):
        pack_wheel(installed(site))


def test_a_missing_file_of_the_installation_is_named_in_the_error(site: Path) -> None:
    (site / "core" / "settings.toml").unlink()
    with pytest.raises(CommandError, match=r"settings.toml: No such file"):
        pack_wheel(installed(site))


def test_a_source_checkout_has_no_wheel_to_pack() -> None:
    assert image_files() is None


def test_image_instructions_of_the_wheel_are_those_of_the_source_tree() -> None:
    kept = {
        name: (ROOT / "cli" / "compose" / "image" / name).resolve().relative_to(ROOT).as_posix()
        for name in INSTRUCTIONS
    }
    assert kept == {
        "Dockerfile": "compose/Dockerfile",
        "Dockerfile.envoy": "compose/Dockerfile.envoy",
        "build.txt": "requirements/build.txt",
        "run.txt": "requirements/run.txt",
    }
