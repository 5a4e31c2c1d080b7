"""Worker processes of a benchmark. They receive orders as lines of JSON, and answer with figures."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from typing import IO, Any, cast

Figures = dict[str, float]


class Worker:
    """A process that runs one of the benchmarks' modules, with pipes to its standard input and output."""

    def __init__(self, module: str, *argv: str) -> None:
        command = [sys.executable, "-m", module, *argv]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._input = cast("IO[str]", self._process.stdin)
        self._output = cast("IO[str]", self._process.stdout)

    def read(self) -> Figures:
        """Read the next answer."""
        line = self._output.readline()
        if not line:
            raise SystemExit(f"{self._process.args!r} ended with {self._process.wait()}")
        figures: Figures = json.loads(line)
        return figures

    def tell(self, **order: object) -> None:
        """Send an order. The caller must :meth:`read` the answer."""
        self._input.write(json.dumps(order) + "\n")
        self._input.flush()

    def ask(self, **order: object) -> Figures:
        """Send an order, and wait for the answer."""
        self.tell(**order)
        return self.read()

    def end(self) -> None:
        """Close the process's standard input, and wait for its end."""
        self._input.close()
        self._process.wait(60)


async def next_order() -> Mapping[str, Any] | None:
    """Called in the worker process: return the next order; None at the end."""
    line = await asyncio.to_thread(sys.stdin.readline)
    order: Mapping[str, Any] | None = json.loads(line) if line else None
    return order


def say(figures: Mapping[str, float]) -> None:
    """Called in the worker process: answer an order."""
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()
