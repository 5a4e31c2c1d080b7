"""Finds out whether a fault had an effect: a fault without an effect proves nothing.

Effects are lines in the logs of the job and the workers, and counts of the proxies. None of them occurs
without a fault; the last test of the series checks this.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.shuffle.scene import Scene

SAID_BY_THE_JOB = {
    "pushed elsewhere": re.compile(rb"goes on without|does not go to|no more workers can be reached"),
    "asked again": re.compile(rb"is asked for again|cannot be read from"),
    "task failed": re.compile(rb"WARN TaskSetManager.*Lost task"),
    "executor lost": re.compile(rb"Lost executor"),
    "computed again": re.compile(rb"FetchFailed"),
    "reconnected": re.compile(rb"connection to shuffle-worker-\d+ has ended"),
}
SAID_BY_WORKERS = {
    "refused": re.compile(rb"WARNING .*refused"),
    "disk excluded": re.compile(rb"ERROR disk .* not used for"),
    "not recovered": re.compile(rb"was committed but is not whole"),
}


class Effects:
    """The effects of the fault of one run. Only log lines and counts after its creation are included."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._sizes = {path: path.stat().st_size for path, _ in self._logs()}
        self._harmed = {name: proxy.harmed for name, proxy in scene.workers.proxies.items()}

    def found(self) -> tuple[str, ...]:
        """Return the effects so far."""
        effects = set()
        for path, patterns in self._logs():
            with path.open("rb") as file:
                file.seek(self._sizes.get(path, 0))
                said = file.read()
            effects |= {effect for effect, pattern in patterns.items() if pattern.search(said)}
        for name, proxy in self._scene.workers.proxies.items():
            if proxy.harmed > self._harmed.get(name, 0):
                effects.add("on the wire")
        return tuple(sorted(effects | self._scene.seen))

    def _logs(self) -> Iterator[tuple[Path, dict[str, re.Pattern[bytes]]]]:
        job = self._scene.job.job.directory
        for path in (job / "python.log", *sorted(job.glob("**/jvm.log"))):
            yield path, SAID_BY_THE_JOB
        for path in sorted(self._scene.workers.directory.glob("*/log")):
            yield path, SAID_BY_WORKERS
