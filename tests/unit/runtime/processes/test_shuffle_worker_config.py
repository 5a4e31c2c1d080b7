"""Translation of a shuffle worker's settings."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from sluice.core.home import Home
from sluice.runtime.processes.shuffle_worker import worker_config
from sluice.runtime.shuffle.config import ShuffleConfig
from sluice.runtime.shuffle.worker.config import Layout, Policy


def test_a_worker_has_no_encryption_secret_by_default(tmp_path: Path) -> None:
    assert worker_config(Home.at(tmp_path), ShuffleConfig(), "w-1").at_rest_secret == b""


def test_each_worker_has_a_secret_of_its_own_and_keeps_it(tmp_path: Path) -> None:
    home, config = Home.at(tmp_path), ShuffleConfig(encrypt_at_rest=True)
    first, second, again = (worker_config(home, config, name) for name in ("w-1", "w-2", "w-1"))
    assert first.at_rest_secret == again.at_rest_secret != second.at_rest_secret
    assert len(first.at_rest_secret) == 32
    assert stat.S_IMODE((home.shuffle / "w-1.secret").stat().st_mode) == 0o600
    assert str(first.at_rest_secret) not in repr(first)


@pytest.mark.parametrize("policy", [pytest.param(policy, id=policy) for policy in Policy])
@pytest.mark.parametrize("layout", [pytest.param(layout, id=layout) for layout in Layout])
def test_a_worker_uses_the_policy_and_layout_of_the_service(tmp_path: Path, policy: Policy, layout: Layout) -> None:
    made = worker_config(Home.at(tmp_path), ShuffleConfig(policy=policy, layout=layout), "w-1")
    assert (made.policy, made.layout) == (policy, layout)
