"""Decides which processes are killed, and when.

All decisions are drawn from a seed before anything runs, so a seed always gives the same story.

Stories of consecutive seeds share a shuffled deck, in which each kind of process occurs once before any
occurs twice. The number of stories that :func:`runs_of_a_deck` returns is enough to kill every kind at
least once. In the first deck, each death waits until the job has recovered from the previous one. In later
decks, deaths often do not wait.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

LONGEST_PAUSE_SECONDS = 4.0
HASTE = 0.5
"""The share of deaths, from the second deck on, that do not wait for the job."""


class Kind(enum.StrEnum):
    """A kind of process of a cluster or a job."""

    LAUNCHER = "launcher"
    """`sluice up`, with which all others end; it is started again."""
    LEADER = "leader"
    STANDBY = "standby"
    TASKMANAGER = "taskmanager"
    SHUFFLE_MANAGER = "shuffle-manager"
    SHUFFLE_WORKER = "shuffle-worker"
    DRIVER_AGENT = "driver-agent"
    DRIVER_JVM = "driver-jvm"
    DRIVER_PYTHON = "driver-python"
    EXECUTOR_JVM = "executor-jvm"
    EXECUTOR_PYTHON = "executor-python"
    AUTHORITY = "authority"
    AUTH = "auth"
    CONNECT = "connect"
    GATEWAY = "gateway"
    """What starts Envoy and gives it its secrets."""
    ENVOY = "envoy"
    ZOOKEEPER = "zookeeper"


ON_ONE_MACHINE = tuple(each for each in Kind if each is not Kind.ZOOKEEPER)
"""What `sluice up` has, and its jobs."""
WITH_AN_ENSEMBLE = (Kind.LEADER, Kind.STANDBY, Kind.ZOOKEEPER, Kind.DRIVER_JVM)
"""What is different when leaders are elected by ZooKeeper, each on a machine of its own."""


@dataclass(frozen=True, slots=True)
class Death:
    """Kill a process of ``kind`` after the job has run for ``after`` more seconds.

    ``choice`` selects one of several processes. If ``hasty``, the kill does not wait for the job to make
    progress after the previous death.
    """

    kind: Kind
    after: float
    choice: float
    hasty: bool = False

    def __str__(self) -> str:
        """Return a description for the output of the test."""
        return f"{self.kind} in haste" if self.hasty else str(self.kind)


def runs_of_a_deck(deaths: int, kinds: Sequence[Kind] = ON_ONE_MACHINE) -> int:
    """Return how many stories share a deck. With 3, a new deck begins with seeds 1, 4, 7, …."""
    return -(-len(kinds) // deaths)


def story(plot: str, seed: int, deaths: int, kinds: Sequence[Kind] = ON_ONE_MACHINE) -> tuple[Death, ...]:
    """Return the deaths of one run. Seeds begin with 1."""
    deck, turn = divmod(seed - 1, runs_of_a_deck(deaths, kinds))
    dealer = random.Random(f"{plot} {deck}")  # noqa: S311  # a seed is the point
    order: list[Kind] = []
    while len(order) < (turn + 1) * deaths:
        order += dealer.sample(kinds, len(kinds))
    chance = random.Random(f"{plot} {deck} {turn}")  # noqa: S311
    mine = [
        Death(kind, chance.uniform(0.2, LONGEST_PAUSE_SECONDS), chance.random())
        for kind in order[turn * deaths : (turn + 1) * deaths]
    ]
    return tuple(replace(each, hasty=deck > 0 and chance.random() < HASTE) for each in mine)
