"""Every policy change is recorded before the new policy decides anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sluice.gateway.audit_log.keys import SIGNING_KEY
from sluice.gateway.audit_log.log import AuditLog
from sluice.gateway.audit_log.recorded_policy import RecordedPolicy
from sluice.gateway.audit_log.verification import read_records
from sluice.gateway.errors import AuditLogError

POLICY = 'version = 1\n[roles.viewer]\nallow = ["jobs.list"]\n'
OPERATIONS = frozenset({"jobs.list", "jobs.submit"})


class World:
    def __init__(self, directory: Path) -> None:
        self.file = directory / "policy.toml"
        self.write(POLICY)
        self.path = directory / "audit" / "current.jsonl"
        self.log = AuditLog(self.path)
        self.policy = RecordedPolicy(lambda: self.file, lambda: OPERATIONS, self.log)

    def write(self, text: str) -> None:
        staged = self.file.with_suffix(".new")
        staged.write_text(text)
        staged.chmod(0o600)
        staged.rename(self.file)

    @property
    def acts(self) -> list[tuple[str, dict[str, str]]]:
        return [
            (str(each.kind), each.detail if isinstance(each.detail, dict) else {})
            for each in read_records(self.path.parent)
            if each.event == "act"
        ]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_policy_load_and_change_are_recorded_once_each(world: World) -> None:
    for _ in range(3):
        world.policy.get()
    world.write(POLICY + "\n# changed\n")
    for _ in range(3):
        world.policy.get()
    (loaded, first), (changed, second) = world.acts
    assert (loaded, changed) == ("policy.loaded", "policy.changed")
    assert second["before"] == first["sha256"] != second["sha256"]


def test_policy_file_with_a_new_time_only_is_not_recorded_as_changed(world: World) -> None:
    world.policy.get()
    os.utime(world.file, ns=(1, 1))
    world.policy.get()
    assert len(world.acts) == 1


def test_invalid_policy_and_its_correction_are_recorded(world: World) -> None:
    good = world.policy.get()
    world.write("version = 1\nnonsense = true\n")
    assert world.policy.get() is good
    assert world.policy.get() is good
    world.write(POLICY + "\n# repaired\n")
    assert world.policy.get() is not good
    kinds = [kind for kind, _ in world.acts]
    assert kinds == ["policy.loaded", "policy.rejected", "policy.changed"]
    assert world.acts[1][1]["why"]


def test_policy_whose_change_cannot_be_recorded_is_not_used(world: World) -> None:
    world.policy.get()
    world.write(POLICY + "\n# changed\n")
    (world.path.parent / SIGNING_KEY).unlink()
    world.path.rename(world.path.with_name("elsewhere"))
    for _ in range(2):
        with pytest.raises(AuditLogError):
            world.policy.get()
