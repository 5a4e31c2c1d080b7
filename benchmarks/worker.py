"""Processes that take part in a measurement: told what to do by lines of JSON, answering with figures."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from typing import IO, Any, cast

Figures = dict[str, float]


class Worker:
    """A process of one of our modules, its standard input and output."""

    def __init__(self, module: str, *argv: str) -> None:
        command = [sys.executable, "-m", module, *argv]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._input = cast("IO[str]", self._process.stdin)
        self._output = cast("IO[str]", self._process.stdout)

    def read(self) -> Figures:
        """What it says next."""
        line = self._output.readline()
        if not line:
            raise SystemExit(f"{self._process.args!r} ended with {self._process.wait()}")
        figures: Figures = json.loads(line)
        return figures

    def tell(self, **order: object) -> None:
        """Have it do something; the answer is to be read."""
        self._input.write(json.dumps(order) + "\n")
        self._input.flush()

    def ask(self, **order: object) -> Figures:
        """Have it do something, and wait for the answer."""
        self.tell(**order)
        return self.read()

    def end(self) -> None:
        """Close its standard input and wait."""
        self._input.close()
        self._process.wait(60)


async def next_order() -> Mapping[str, Any] | None:
    """In the process itself: what is to be done next; None at the end."""
    line = await asyncio.to_thread(sys.stdin.readline)
    order: Mapping[str, Any] | None = json.loads(line) if line else None
    return order


def say(figures: Mapping[str, float]) -> None:
    """In the process itself: answer."""
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()
