"""The definition of an attempt, and the list of all."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypedDict, Unpack

from .place import PYTHON as PYTHON, Place as Place
from .world import World

MAX_TEXT = 600
"""Most characters of each text about an attempt."""


class Outcome(enum.StrEnum):
    """The result of an attempt."""

    REACHED = "reached"
    REFUSED = "refused"
    UNTRIED = "untried"
    PLANTED = "planted"
    """It left something for readers outside; the audit checks its effect."""


@dataclass(frozen=True, slots=True)
class Tried:
    """The action and its result; never the content that was read, only its kind and length."""

    outcome: Outcome
    done: str
    seen: str

    def bounded(self) -> Tried:
        """The texts cut to :data:`MAX_TEXT` characters each."""
        return replace(self, done=self.done[:MAX_TEXT], seen=self.seen[:MAX_TEXT])


def reached(done: str, seen: str) -> Tried:
    """The job reached what it must not have."""
    return Tried(Outcome.REACHED, done, seen)


def refused(done: str, seen: str) -> Tried:
    """The target existed, and the job could not reach it."""
    return Tried(Outcome.REFUSED, done, seen)


def untried(why: str) -> Tried:
    """There was no target, or no way to try; this is never a pass."""
    return Tried(Outcome.UNTRIED, "", why)


def planted(done: str, seen: str) -> Tried:
    """The job left something for a reader outside; only the audit outside can see the effect."""
    return Tried(Outcome.PLANTED, done, seen)


@dataclass(frozen=True, slots=True)
class Group:
    """Common properties of attempts of one kind; ids begin with ``prefix``.

    Attributes:
        cwe: numbers of weaknesses (https://cwe.mitre.org).
        expected: the required result, as a noun phrase.
    """

    prefix: str
    severity: str
    cwe: tuple[int, ...]
    expected: str
    remedy: str


Run = Callable[[World], Tried]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One action that an insider would try.

    Attributes:
        what: it completes "a job can …".
        places: where it runs.
        seconds: how long it may take; a process that takes longer is killed.
        forked: whether it runs in its own process, which may die; not possible in JVMs.
        last: whether it may end the whole job, and so runs after all others were reported.
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
"""All attempts by id, in the order of their modules."""


class Options(TypedDict, total=False):
    """Optional properties of an attempt; see :class:`Attempt`."""

    severity: str
    cwe: tuple[int, ...]
    remedy: str
    places: tuple[Place, ...]
    seconds: float
    forked: bool
    last: bool


def add(id_: str, what: str, group: Group, run: Run, **options: Unpack[Options]) -> None:
    """Register an attempt; missing severity, weaknesses and remedy are those of its group."""
    if id_ in ATTEMPTS or not id_.startswith(f"{group.prefix}-"):
        raise ValueError(f"{id_} is taken, or is none of {group.prefix}")
    inherited: Options = {
        "severity": options.get("severity") or group.severity,
        "cwe": options.get("cwe") or group.cwe,
        "remedy": options.get("remedy") or group.remedy,
    }
    ATTEMPTS[id_] = Attempt(id_, what, group, run, **(options | inherited))


def attempt(id_: str, what: str, group: Group, **options: Unpack[Options]) -> Callable[[Run], Run]:
    """Register the decorated function as an attempt, like :func:`add`."""

    def listed(run: Run) -> Run:
        add(id_, what, group, run, **options)
        return run

    return listed
