"""Secrets in real boxes: readable only inside, never on disk, and masked in logs."""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.runtime.masking import Masker
from sluice.runtime.node import ChildProcess
from sluice.runtime.sandbox import Box, IsolationConfig, IsolationLevel, Sandbox, SandboxRefused, SecretFile, View
from tests.integration.runtime.sandbox.conftest import JOB, Boxes

VALUE = b"correct horse\nbattery staple \xff\x00 end"
SECRETS = (SecretFile("db-password", VALUE), SecretFile("api.key", b"another value of a secret"))


def box_with(boxes: Boxes, secrets: tuple[SecretFile, ...] = SECRETS, job: str = JOB) -> Box:
    boxes.sandbox.own([boxes.work], job)
    view = View(job, (), (boxes.work,), secrets=secrets)
    return boxes.sandbox.box(view, boxes.sandbox.limits())


async def test_a_program_reads_its_secrets_and_cannot_change_them(boxes: Boxes) -> None:
    code = f"""
import os, stat
from pathlib import Path
folder = Path("/run/secrets")
assert sorted(os.listdir(folder)) == ["api.key", "db-password"]
assert (folder / "db-password").read_bytes() == {VALUE!r}
for change in (
    lambda: (folder / "db-password").write_bytes(b"x"),
    lambda: (folder / "db-password").unlink(),
    lambda: (folder / "other").write_bytes(b"x"),
    lambda: (folder / "db-password").chmod(0o666),
):
    try:
        change()
    except OSError:
        continue
    raise SystemExit("changed")
mode = stat.S_IMODE((folder / "db-password").stat().st_mode)
assert not mode & 0o222, oct(mode)
assert mode & 0o777 == (0o400 if {os.geteuid() != 0} else 0o444), oct(mode)
filesystem = os.statvfs(folder)
assert filesystem.f_flag & os.ST_RDONLY
print(Path("/proc/self/environ").read_bytes(), Path("/proc/self/cmdline").read_bytes())
"""
    ended = await boxes.run(sys.executable, "-c", code, box=box_with(boxes))
    assert ended.exit.code == 0, ended.err
    assert ended.err == ""


async def test_another_box_on_the_machine_does_not_see_the_secrets(boxes: Boxes) -> None:
    child = await boxes.start("/bin/sleep", "60", box=box_with(boxes))
    try:
        ended = await boxes.run(
            "/bin/sh", "-c", "ls -la /run/secrets /proc/*/root/run/secrets", box=boxes.box(job="f" * 32)
        )
        assert "db-password" not in ended.out + ended.err
        assert ended.exit.code != 0
    finally:
        await child.stop(0)


async def test_no_secret_is_found_outside_of_the_box(boxes: Boxes, tmp_path: Path) -> None:
    child = await boxes.start("/bin/sleep", "60", box=box_with(boxes))
    try:
        assert _outside(child.pid, tmp_path) == []
    finally:
        await child.stop(0)
    assert "horse" not in repr(box_with(boxes))


def _outside(pid: int, directory: Path) -> list[Path]:
    """Where the secret is found outside of the box; also all in-memory files open in this process.

    Looks at the files in ``directory``, and at the command lines and environments of both processes.
    """
    told = [Path(f"/proc/{process}/{name}") for process in (pid, os.getpid()) for name in ("cmdline", "environ")]
    files = [path for path in directory.rglob("*") if path.is_file()]
    memory = [path for path in Path("/proc/self/fd").iterdir() if "memfd" in _target(path)]
    return [*(path for path in (*told, *files) if b"horse" in path.read_bytes()), *memory]


def _target(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


@pytest.mark.parametrize("name", ["../escape", "a/b", "/etc/passwd", "..", ".", "", "-x", "a\0b"])
async def test_secret_names_that_lead_elsewhere_are_refused(boxes: Boxes, name: str) -> None:
    with pytest.raises((SandboxRefused, ValueError)):
        await boxes.run("/bin/true", box=box_with(boxes, (SecretFile(name, b"x"),)))


def test_secrets_without_a_sandbox_are_refused(boxes: Boxes) -> None:
    boxes.sandbox = Sandbox.prepare(IsolationConfig(level=IsolationLevel.NONE))
    with pytest.raises(SandboxRefused, match="others would see them"):
        box_with(boxes)
    assert box_with(boxes, ()).isolation is None


def test_secrets_without_namespaces_are_refused(boxes: Boxes) -> None:
    view = View(JOB, (), (boxes.work,), secrets=SECRETS)
    isolation = replace(boxes.box().isolation, bwrap="")  # type: ignore[type-var]  # it is isolated
    sandbox = Sandbox(IsolationConfig(level=IsolationLevel.UID), isolation, own_uids=True, private=())
    with pytest.raises(SandboxRefused, match="level uid"):
        sandbox.box(view, sandbox.limits())


async def test_printed_secrets_are_masked_in_the_log_however_they_are_split(boxes: Boxes) -> None:
    value = b"s3cr3t/value+of=a%job"
    code = f"""
import base64, os, sys, time
value = {value!r}
for byte in value:
    os.write(1, bytes([byte]))
    time.sleep(0.002)
os.write(1, b"\\n" + base64.b64encode(b"x" + value) + b"\\n")
os.write(2, b"error: " + value[:9])
os.write(2, value[9:] + b" " + value.hex().encode() + b"\\n")
sys.stdout.write("plain\\n" * 100000)
sys.stdout.flush()
os.write(1, value[:-1])
"""
    masker = Masker([("token", value)])
    with (boxes.logs / "out").open("wb") as out, (boxes.logs / "err").open("wb") as err:
        child = await ChildProcess.start(
            (sys.executable, "-c", code),
            env={"PATH": "/usr/bin:/bin"},
            cwd=boxes.work,
            stdout=out,
            stderr=err,
            box=boxes.box(),
            masker=masker,
        )
    async with asyncio.timeout(60):
        ended = await child.wait()
    printed, complained = (boxes.logs / "out").read_bytes(), (boxes.logs / "err").read_bytes()
    assert ended.code == 0, complained
    assert printed.startswith(b"[secret token]\n")
    assert printed.count(b"plain\n") == 100_000
    assert printed.endswith(b"plain\n[secret]")
    assert complained == b"error: [secret token] [secret token]\n"
    for form in (value, base64.b64encode(value)[:-4], value[:9], value.hex().encode()):
        assert form not in printed + complained


async def test_a_program_without_secrets_writes_directly_to_its_log(boxes: Boxes) -> None:
    with (boxes.logs / "out").open("wb") as out:
        child = await ChildProcess.start(
            ("/bin/sh", "-c", "readlink /proc/self/fd/1"),
            env={"PATH": "/usr/bin:/bin"},
            cwd=boxes.work,
            stdout=out,
            stderr=asyncio.subprocess.DEVNULL,
            masker=Masker([("short", b"abc")]),
        )
    await child.wait()
    assert boxes.output() == f"{boxes.logs / 'out'}\n"
