"""Where a client looks for a shuffle whose workers are drained."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from sluice.runtime.messages import OutputLocation, WorkerAddress
from sluice.runtime.shuffle.client import successors
from sluice.runtime.shuffle.client.successors import TRIES, Successors
from sluice.runtime.shuffle.data_plane.errors import AttemptSuperseded, Moved, ShuffleUnavailable

A, B, C = (WorkerAddress(name, "h", number) for number, name in enumerate("abc", 1))


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(successors, "PAUSE_SECONDS", 0.0)


class Workers:
    """Where each says that it went; None: it is gone."""

    def __init__(self, **moved: WorkerAddress | None) -> None:
        self.moved = moved
        self.asked: list[str] = []
        self.then: Callable[[], None] = lambda: None

    async def ask(self, place: WorkerAddress) -> str:
        self.asked.append(place.name)
        self.then()
        if place.name in self.moved:
            to = self.moved[place.name]
            raise Moved("moved", to=to) if to is not None else ShuffleUnavailable("gone")
        return place.name


async def test_a_worker_is_itself_until_it_says_where_it_went() -> None:
    found, workers = Successors(3), Workers()
    assert await found.at(A, workers.ask) == "a"
    workers.moved["a"] = B
    assert await found.at(A, workers.ask) == "b"
    assert await found.at(A, workers.ask) == "b"
    assert workers.asked == ["a", "a", "b", "b"]
    assert (found.of(A), found.of(B)) == (B, B)


async def test_who_went_to_a_worker_that_moves_goes_with_it_and_may_come_home() -> None:
    found, workers = Successors(3), Workers(a=B, b=C)
    assert await found.at(A, workers.ask) == "c"
    assert (found.of(A), found.of(B)) == (C, C)
    workers.moved = {"c": A}  # which was started again meanwhile
    assert await found.at(B, workers.ask) == "a"
    assert {found.of(each) for each in (A, B, C)} == {A}


async def test_a_successor_that_dies_is_asked_for_at_the_one_before_it() -> None:
    found, workers = Successors(3), Workers(a=B, b=None)

    def replaced() -> None:
        if len(workers.asked) > 6:
            workers.moved["a"] = C

    workers.then = replaced
    assert await found.at(A, workers.ask) == "c"
    assert set(workers.asked) == {"a", "b", "c"}


async def test_the_search_ends() -> None:
    workers = Workers(a=B, b=None)
    with pytest.raises(ShuffleUnavailable):
        await Successors(3).at(A, workers.ask)
    assert len(workers.asked) == TRIES + 1
    circle = Workers(a=B, b=A)
    with pytest.raises(ShuffleUnavailable, match="moved"):
        await Successors(3).at(A, circle.ask)
    assert len(circle.asked) == TRIES + 1


async def test_a_worker_that_is_gone_is_asked_for_elsewhere_if_anybody_knows() -> None:
    workers = Workers(a=None)
    with pytest.raises(ShuffleUnavailable, match="gone"):
        await Successors(3).at(A, workers.ask)
    questions: list[tuple[int, Sequence[str]]] = []
    known = [OutputLocation(pushed_to="a", address=A)]

    async def locate(shuffle: int, names: Sequence[str]) -> Sequence[OutputLocation]:
        questions.append((shuffle, names))
        return known

    with pytest.raises(ShuffleUnavailable, match="gone"):
        await Successors(3, locate).at(A, workers.ask)
    known.insert(0, OutputLocation(pushed_to="a", address=B))
    assert await Successors(3, locate).at(A, workers.ask) == "b"
    assert questions == [(3, ["a"]), (3, ["a"])]


async def test_other_errors_are_not_looked_into() -> None:
    async def refuse(_: WorkerAddress) -> None:
        raise AttemptSuperseded("another one counts")

    with pytest.raises(AttemptSuperseded):
        await Successors(3).at(A, refuse)
