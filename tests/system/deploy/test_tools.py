"""Third-party programs check the operator's kit: promtool and systemd-analyze."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
EXPOSURE = {
    "sluice@.service": 20,
    "sluice-checkpoint.service": 20,
    "sluice.service": 55,
    "sluice-taskmanager.service": 55,
}
"""Ten times what ``systemd-analyze security`` calls the exposure level, at most."""


def test_alerts_are_raised_by_recorded_series() -> None:
    found = subprocess.run([ROOT / "scripts" / "ensure-promtool"], check=True, capture_output=True, text=True)
    for arguments in (["check", "rules", "sluice.rules.yml"], ["test", "rules", "sluice.test.yml"]):
        subprocess.run([found.stdout.strip(), *arguments], cwd=DEPLOY / "prometheus", check=True, timeout=60)


@pytest.mark.parametrize("name", sorted(EXPOSURE))
def test_systemd_analyze_finds_each_unit_valid_and_hardened(name: str, tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / name).read_text()
    program = shutil.which("sluice", path=str(Path(sys.executable).parent))
    assert program is not None
    unit = tmp_path / name.replace("@", "@auth")
    # What a unit starts must be there to be verified, and so must what it reads.
    unit.write_text(text.replace("/opt/sluice/bin/sluice", program))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, timeout=60, check=False
    )
    assert not [line for line in verified.stderr.splitlines() if name.partition("@")[0] in line], verified.stderr
    subprocess.run(
        ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE[name]}", unit],
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=60,
    )


def test_every_unit_has_an_expected_exposure() -> None:
    assert {path.name for path in (DEPLOY / "systemd").glob("*.service")} == set(EXPOSURE)


def test_the_sbom_has_every_locked_package_and_is_reproducible(tmp_path: Path) -> None:
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    for path in (one, other):
        subprocess.run([ROOT / "scripts" / "make-sbom", path], check=True, timeout=110)
    assert one.read_bytes() == other.read_bytes()
    listed = {(each["name"], each["version"]) for each in json.loads(one.read_text())["components"]}
    locked = re.findall(r"^([a-z0-9._-]+)==([^ ;\\]+)", (ROOT / "requirements" / "run.txt").read_text(), re.MULTILINE)
    assert listed == set(locked)
