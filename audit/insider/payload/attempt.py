"""The definition of an attempt, and the list of all."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypedDict, Unpack

from .place import PYTHON as PYTHON, Place as Place
from .world import World

MAX_TEXT = 600
"""Characters of what is told of an attempt."""


class Outcome(enum.StrEnum):
    """What became of an attempt."""

    REACHED = "reached"
    REFUSED = "refused"
    UNTRIED = "untried"
    PLANTED = "planted"
    """It has laid something out for those outside who read it; the audit looks at what they make of it."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What was done and what came of it; never what was read, only its kind and length."""

    outcome: Outcome
    done: str
    seen: str

    def bounded(self) -> Tried:
        """The same, in at most :data:`MAX_TEXT` characters each."""
        return replace(self, done=self.done[:MAX_TEXT], seen=self.seen[:MAX_TEXT])


def reached(done: str, seen: str) -> Tried:
    """The job got what it must not have."""
    return Tried(Outcome.REACHED, done, seen)


def refused(done: str, seen: str) -> Tried:
    """The target was there, and the job did not get it."""
    return Tried(Outcome.REFUSED, done, seen)


def untried(why: str) -> Tried:
    """There was no target, or no means to try; never a pass."""
    return Tried(Outcome.UNTRIED, "", why)


def planted(done: str, seen: str) -> Tried:
    """Something lies where somebody outside reads it; only from outside can be seen what comes of it."""
    return Tried(Outcome.PLANTED, done, seen)


@dataclass(frozen=True, slots=True)
class Group:
    """What attempts of one kind have in common; ids begin with ``prefix``.

    Attributes:
        cwe: numbers of weaknesses (https://cwe.mitre.org).
        expected: how it must end, as a noun phrase.
    """

    prefix: str
    severity: str
    cwe: tuple[int, ...]
    expected: str
    remedy: str


Run = Callable[[World], Tried]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One thing that an insider would try.

    Attributes:
        what: it completes "a job can …".
        places: from where.
        seconds: how long it may take; a process that takes longer is killed.
        forked: whether it runs in a process of its own, so that it may die; those of JVMs cannot.
        last: whether it may end the whole job, and is therefore tried when all others have been told.
    """

    id: str
    what: str
    group: Group
    run: Run = field(compare=False)
    severity: str
    cwe: tuple[int, ...]
    remedy: str
    places: tuple[Place, ...] = PYTHON
    seconds: float = 10.0
    forked: bool = True
    last: bool = False


ATTEMPTS: dict[str, Attempt] = {}
"""All, by id, in the order in which their modules define them."""


class Options(TypedDict, total=False):
    """What an attempt may have besides what it must; see :class:`Attempt`."""

    severity: str
    cwe: tuple[int, ...]
    remedy: str
    places: tuple[Place, ...]
    seconds: float
    forked: bool
    last: bool


def add(id_: str, what: str, group: Group, run: Run, **options: Unpack[Options]) -> None:
    """List an attempt; severity, weaknesses and remedy that are empty or not given are those of its group."""
    if id_ in ATTEMPTS or not id_.startswith(f"{group.prefix}-"):
        raise ValueError(f"{id_} is taken, or is none of {group.prefix}")
    inherited: Options = {
        "severity": options.get("severity") or group.severity,
        "cwe": options.get("cwe") or group.cwe,
        "remedy": options.get("remedy") or group.remedy,
    }
    ATTEMPTS[id_] = Attempt(id_, what, group, run, **(options | inherited))


def attempt(id_: str, what: str, group: Group, **options: Unpack[Options]) -> Callable[[Run], Run]:
    """List the decorated function as an attempt, as :func:`add` does."""

    def listed(run: Run) -> Run:
        add(id_, what, group, run, **options)
        return run

    return listed
