"""``sluice completion`` and the completions that its scripts give in a shell."""

from __future__ import annotations

import subprocess

import pytest

from tests.command import sluice


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_of_each_shell_calls_the_program(shell: str) -> None:
    printed = sluice("completion", shell)
    assert printed.returncode == 0
    assert "_SLUICE_COMPLETE" in printed.stdout
    assert f"complete_{shell}" in printed.stdout


def test_bash_accepts_the_script() -> None:
    script = sluice("completion", "bash").stdout + "\ncomplete -p sluice\n"
    done = subprocess.run(["bash", "--norc"], input=script, capture_output=True, text=True, timeout=60, check=True)
    assert "_sluice_completion" in done.stdout


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("sluice au", {"audit", "audit-log"}), ("sluice audit-log ch", {"checkpoint"}), ("sluice completion f", {"fish"})],
)
def test_verbs_and_values_are_completed(typed: str, offered: set[str]) -> None:
    asked = {"_SLUICE_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    assert set(sluice(environment=asked).stdout.split()) == offered


def test_another_shell_is_wrong_usage() -> None:
    assert sluice("completion", "tcsh").returncode == 2
