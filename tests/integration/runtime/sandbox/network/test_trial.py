"""The check, when a process starts, that boxes can have networks of their own."""

from __future__ import annotations

import pytest

from sluice.runtime.sandbox import IsolationConfig, IsolationLevel, Sandbox, SandboxUnavailable
from sluice.runtime.sandbox.network import try_network


def test_this_machine_can_make_networks_for_boxes() -> None:
    Sandbox.prepare(IsolationConfig(), own_networks=True)


def test_networks_for_boxes_without_a_sandbox_are_refused() -> None:
    with pytest.raises(SandboxUnavailable, match=r"egress\.mode"):
        Sandbox.prepare(IsolationConfig(level=IsolationLevel.NONE), own_networks=True)


def test_root_without_the_needed_capabilities_is_refused_with_their_names() -> None:
    def never(_: object) -> None:
        raise AssertionError

    with pytest.raises(SandboxUnavailable, match="sys_ptrace"):
        try_network(never, uid=1, rights=0)  # type: ignore[arg-type]  # it must not get that far


def test_a_box_that_does_not_work_is_reported(sandbox: Sandbox) -> None:
    def broken(_: object) -> None:
        raise SandboxUnavailable("no box today")

    with pytest.raises(SandboxUnavailable, match="no box today"):
        try_network(broken, uid=sandbox.uid("0" * 32), rights=-1)  # type: ignore[arg-type]
