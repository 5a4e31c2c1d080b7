"""A job's knowledge of its surroundings: from the audit, and found by itself."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pkgutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .place import Place

TARGETS = "targets.json"
"""In the package, as it goes to the cluster: what exists outside, with paths and ports but no secret."""
WELL_KNOWN_HOMES = ("/var/lib/sluice", "~/.sluice")
MAX_FOUND = 16
"""Most targets of one kind that are tried."""
_HOME_MARKS = ("pki", "gateway", "run")


@dataclass(frozen=True, slots=True)
class Target:
    """A target of attempts.

    Attributes:
        kind: such as ``authority-key``; attempts select targets by it.
        place: a path, ``HOST:PORT``, or the number of a process.
        name: for people.
        mark: what distinguishes it from another one at its place inside: a process's start in clock ticks
            (``/proc/PID/stat``), a directory's ``DEVICE:INODE``, or the SHA-256 of a file.
        known: whether it is known from outside to exist; else it was found from inside.
    """

    kind: str
    place: str
    name: str = ""
    mark: str = ""
    known: bool = True

    @property
    def path(self) -> Path:
        """As a path."""
        return Path(self.place)

    @property
    def address(self) -> tuple[str, int]:
        """As an address."""
        host, _, port = self.place.rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def pid(self) -> int:
        """As a process, by its number outside."""
        return int(self.place)

    def __str__(self) -> str:
        source = "exists outside" if self.known else "found from inside"
        return f"{self.name or self.kind} {self.place} ({source})"


@dataclass(frozen=True)
class World:
    """The targets and context of attempts.

    Attributes:
        nonce: of this run; marks the job's output.
        targets: what the audit knows from outside.
        home: of the cluster, where the audit runs beside it; else empty.
        victim: id of the other job; else empty.
        canary: a file outside with random content, made for this run; else empty.
        bounds: what a job may use, by name, where the audit knows.
        own: id of the job that runs this; empty when it does not say.
        place: from where the attempt is made.
        spark: the session, in the driver; else None. It is not sent to executors.
    """

    nonce: str = ""
    targets: tuple[Target, ...] = ()
    home: str = ""
    victim: str = ""
    canary: str = ""
    bounds: dict[str, int] = field(default_factory=dict)
    own: str = ""
    place: Place = Place.DRIVER
    spark: Any = None

    def of(self, *kinds: str, named: str | tuple[str, ...] = "") -> list[Target]:
        """Targets of these kinds: known ones, else found ones; at most :data:`MAX_FOUND`.

        ``named``: only those whose names begin so.
        """
        known = [each for each in self.targets if each.kind in kinds and each.name.startswith(named)]
        found = known or [target for kind in kinds for target in self._look_for(kind)]
        return found[:MAX_FOUND]

    def _look_for(self, kind: str) -> Iterator[Target]:
        for home in self.homes():
            for pattern in PATTERNS.get(kind, ()):
                with contextlib.suppress(OSError):
                    for path in sorted(home.glob(pattern)):
                        if not self.own or self.own not in path.parts:
                            yield Target(kind, str(path), known=False)

    def homes(self) -> list[Path]:
        """Directories that look like a cluster's home, from what this process can see."""
        candidates = [self.home, os.environ.get("SLUICE_HOME", ""), *WELL_KNOWN_HOMES]
        candidates += [str(parent) for parent in Path.cwd().parents]
        candidates += _homes_in_command_lines()
        found = []
        for text in filter(None, candidates):
            with contextlib.suppress(OSError, RuntimeError):
                path = Path(text).expanduser()
                if path not in found and any((path / mark).is_dir() for mark in _HOME_MARKS):
                    found.append(path)
        return found


PATTERNS: dict[str, tuple[str, ...]] = {}
"""Patterns of targets below a home, by kind; only these kinds can be found from inside."""


def _homes_in_command_lines() -> Iterator[str]:
    for process in processes():
        with contextlib.suppress(OSError):
            arguments = (process / "cmdline").read_bytes()[: 1 << 14].decode(errors="replace").split("\0")
            for before, after in itertools.pairwise(arguments):
                if before == "--home":
                    yield after


def processes() -> Iterable[Path]:
    """The processes that ``/proc`` shows, as directories of it."""
    with contextlib.suppress(OSError):
        yield from (Path(entry.path) for entry in os.scandir("/proc") if entry.name.isdecimal())


def encode(world: World) -> bytes:
    """Encode for :data:`TARGETS`, which :func:`read` decodes."""
    document = {
        "nonce": world.nonce,
        "targets": [[t.kind, t.place, t.name, t.mark] for t in world.targets],
        "home": world.home,
        "victim": world.victim,
        "canary": world.canary,
        "bounds": world.bounds,
    }
    return json.dumps(document).encode()


def read() -> World:
    """Read the knowledge that was packed into this package."""
    document = json.loads(pkgutil.get_data(__package__, TARGETS) or b"{}")
    targets = tuple(Target(*each) for each in document.pop("targets", ()))
    return World(targets=targets, **document)
