"""A real sandbox that runs as the user who runs the tests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from sluice.runtime.node import ChildProcess, Exit
from sluice.runtime.sandbox import Box, IsolationConfig, Sandbox, View

JOB = "0123456789abcdef0123456789abcdef"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program in a box ended, and what it wrote."""

    exit: Exit
    out: str
    err: str


@dataclass
class Boxes:
    """Boxes of one job that may write :attr:`work`."""

    sandbox: Sandbox
    work: Path
    logs: Path

    def box(self, *, read_only: Sequence[Path] = (), job: str = JOB) -> Box:
        """A box of ``job``."""
        self.sandbox.own([self.work], job)
        return self.sandbox.box(View(job, tuple(read_only), (self.work,)), self.sandbox.limits())

    async def start(self, *argv: str, env: Mapping[str, str] | None = None, box: Box | None = None) -> ChildProcess:
        """Start ``argv`` in a box; its output goes to files that are not in it."""
        with (self.logs / "out").open("wb") as out, (self.logs / "err").open("wb") as err:
            return await ChildProcess.start(
                argv,
                env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", **(env or {})},
                cwd=self.work,
                stdout=out,
                stderr=err,
                box=box or self.box(),
            )

    async def run(self, *argv: str, env: Mapping[str, str] | None = None, box: Box | None = None) -> Ended:
        """Start ``argv`` in a box and wait for its end."""
        child = await self.start(*argv, env=env, box=box)
        async with asyncio.timeout(60):
            ended = await child.wait()
        return Ended(ended, self.output(), (self.logs / "err").read_text(encoding="utf-8"))

    def output(self) -> str:
        """Return what the last program has written to standard output."""
        return (self.logs / "out").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def sandbox() -> Sandbox:
    return Sandbox.prepare(IsolationConfig())


@pytest.fixture
def boxes(sandbox: Sandbox, tmp_path: Path) -> Boxes:
    for name in ("work", "logs"):
        (tmp_path / name).mkdir(mode=0o700)
    return Boxes(sandbox, tmp_path / "work", tmp_path / "logs")
