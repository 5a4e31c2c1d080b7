"""Trying whether a machine can make a sandbox; a failure is reported with a remedy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.runtime.sandbox import IsolationConfig, IsolationLevel, Limits, Sandbox, SandboxUnavailable, View
from sluice.runtime.sandbox.trial import ROOTS_RIGHTS, programs
from sluice.runtime.sandbox.uids import is_job_uid
from tests.integration.runtime.sandbox.conftest import JOB
from tests.ordinary_user import ROOT


def _stand_in(tmp_path: Path, script: str) -> IsolationConfig:
    """A configuration with a script in place of bubblewrap."""
    program = tmp_path / "bwrap"
    program.write_text(f"#!{sys.executable}\n{script}", encoding="utf-8")
    program.chmod(0o755)
    return IsolationConfig(bwrap=str(program))


def test_this_machine_can_make_a_sandbox(sandbox: Sandbox) -> None:
    assert sandbox.level is IsolationLevel.SANDBOX
    assert str(sandbox).startswith("sandbox: bubblewrap (/")
    uid = sandbox.uid(JOB)
    assert is_job_uid(uid) if uid is not None else os.geteuid() != 0


def test_another_process_uses_a_tried_sandbox_without_another_trial(tmp_path: Path) -> None:
    own, private = View(JOB, writable=(tmp_path,)), (tmp_path / "private",)
    tried = Sandbox.prepare(IsolationConfig(), private=private)

    again = Sandbox.as_tried(tried.trial, tried.config, private=private)

    assert str(again) == str(tried)
    assert again.box(own, Limits()) == tried.box(own, Limits())
    assert again.uid(JOB) == tried.uid(JOB)


def test_nothing_is_tried_without_isolation() -> None:
    sandbox = Sandbox.prepare(IsolationConfig(level=IsolationLevel.NONE, bwrap="/does/not/exist"))

    assert str(sandbox).startswith("none")


@pytest.mark.parametrize(
    ("complaint", "advice"),
    [
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "systempaths=unconfined"),
        ("bwrap: Unknown option --disable-userns", "bubblewrap 0.8 or newer"),
    ],
)
def test_a_bubblewrap_that_fails_is_reported_with_a_remedy(tmp_path: Path, complaint: str, advice: str) -> None:
    config = _stand_in(tmp_path, f"import sys; sys.exit({complaint!r})")

    with pytest.raises(SandboxUnavailable) as raised:
        Sandbox.prepare(config)
    assert complaint in raised.value.what
    assert advice in raised.value.remedy


def test_a_bubblewrap_that_is_missing_or_cannot_run_is_reported(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(SandboxUnavailable, match=r"cannot be started.*check isolation.bwrap"):
            Sandbox.prepare(IsolationConfig(bwrap=str(path)))


def test_a_bubblewrap_that_makes_no_box_is_detected(tmp_path: Path) -> None:
    """It reports success, without a filter and with everything in sight."""
    lie = 'print("uid 1 groups 0 pids 400\\nSeccomp 0 NoNewPrivs 0 CapPrm 0 CapBnd 0")'

    with pytest.raises(SandboxUnavailable, match="the sandbox does not hold: NoNewPrivs is 0"):
        Sandbox.prepare(_stand_in(tmp_path, lie))


def test_a_bubblewrap_without_the_seccomp_filter_is_detected(tmp_path: Path) -> None:
    """It leaves out the filter of system calls."""
    real = next(programs(IsolationConfig()))
    script = f"""
import os, sys
fd = int(sys.argv[2])
options = os.read(fd, 1 << 20).split(b"\\0")
at = options.index(b"--seccomp")
del options[at:at + 2]
copy = os.memfd_create("options", 0)
os.write(copy, b"\\0".join(options))
os.lseek(copy, 0, os.SEEK_SET)
os.set_inheritable(copy, True)
os.execv({real!r}, [{real!r}, "--args", str(copy), *sys.argv[3:]])
"""
    with pytest.raises(SandboxUnavailable, match="the sandbox does not hold: Seccomp is 0, not 2"):
        Sandbox.prepare(_stand_in(tmp_path, script))


def test_paths_that_cannot_be_shown_are_reported_before_any_job(tmp_path: Path) -> None:
    for path, why in (
        ("data", "not an absolute path"),
        ("/etc", "may not see all of"),
        (str(tmp_path / "no"), "does not exist"),
    ):
        for config in (IsolationConfig(read_only=(path,)), IsolationConfig(writable=(path,))):
            with pytest.raises(SandboxUnavailable, match=rf"isolation\.(read_only|writable): .*{why}"):
                Sandbox.prepare(config)


def test_only_root_can_give_uids() -> None:
    config = IsolationConfig(level=IsolationLevel.UID)
    if os.geteuid() == 0:
        try:
            sandbox = Sandbox.prepare(config)
        except SandboxUnavailable as error:
            assert "not below /root" in str(error)  # noqa: PT017  # where the tests' own Python is
        else:
            assert is_job_uid(sandbox.uid(JOB) or 0)
    else:
        with pytest.raises(SandboxUnavailable, match=f"needs root, with the capabilities {', '.join(ROOTS_RIGHTS)}"):
            Sandbox.prepare(config)


def test_root_without_capabilities_is_refused() -> None:
    """A job in its user namespace would be the machine's user 0, which /proc/sys trusts."""
    code = "from sluice.runtime.sandbox import IsolationConfig, Sandbox; print(Sandbox.prepare(IsolationConfig()))"
    outer = (next(programs(IsolationConfig())), "--dev-bind", "/", "/", "--cap-drop", "CAP_SYS_ADMIN", "--")
    command = (*(outer if os.geteuid() == 0 else ()), sys.executable, "-c", code)
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    if os.geteuid() == 0:
        assert "root without the capabilities sys_admin cannot keep jobs from being root" in run.stderr
    else:
        assert "user namespaces" in run.stdout
