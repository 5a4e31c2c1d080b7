"""A shuffle that is followed goes from a drained worker to another one: decided with values and a clock."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from sluice.runtime.messages import WorkerAddress
from sluice.runtime.shuffle.data_plane.errors import (
    AttemptLost,
    AttemptSuperseded,
    MapUnknown,
    Moved,
    ProducerAborted,
    ShuffleError,
)
from sluice.runtime.shuffle.data_plane.frames import Share
from sluice.runtime.shuffle.worker.storage.announced_maps import AnnouncedMaps, ShareCursor
from tests.unit.runtime.shuffle.worker.storage.test_announced_maps import ALL, PATIENCE, Clock, follow, write

THERE = WorkerAddress("w-2", "h", 7)
EVEN, ODD = Share(2, 0), Share(2, 1)
SOON = 5.0


def give(source: AnnouncedMaps, to: AnnouncedMaps) -> None:
    """What a worker does that hands over, without the data."""
    assert source.hold(SOON)
    for map_id, index in source.indexes.items():
        try:
            write(to, index, map_id)
        except AttemptSuperseded:
            continue
    for share, maps in source.complete_shares:
        to.complete(share, maps)
    source.move(THERE)
    source.let_go()


def test_everybody_is_sent_to_where_it_went() -> None:
    pipeline, other = AnnouncedMaps("job/3", Clock()), AnnouncedMaps("job/3", Clock())
    reader = follow(pipeline)
    write(pipeline, 0, 10)
    give(pipeline, other)
    doings: list[Callable[[], object]] = [
        reader.next, follow(pipeline).next, pipeline.check_here, pipeline.alive, lambda: pipeline.claim(1, 11),
        lambda: pipeline.complete(ALL, [10]), pipeline.check_given_up,
    ]  # fmt: skip
    for doing in doings:
        with pytest.raises(Moved, match="w-2") as caught:
            doing()
        assert caught.value.to == THERE
    pipeline.check_open()  # what has begun may end here


def test_a_reader_goes_on_where_it_is_and_hears_the_end_there() -> None:
    pipeline, other = AnnouncedMaps("job/3", Clock()), AnnouncedMaps("job/3", Clock())
    reader = follow(pipeline)
    write(pipeline, 0, 10)
    assert reader.next() == [(10, 0)]
    write(pipeline, 1, 11)
    give(pipeline, other)
    again = follow(other, had=(10,))
    assert again.next() == [(11, 1)]
    with pytest.raises(AttemptSuperseded):
        other.claim(0, 20)
    write(other, 2, 12)
    assert again.next() == [(12, 2)]
    other.complete(ALL, [10, 11, 12])
    assert again.next() == []
    assert again.complete


def test_what_is_announced_late_is_not_announced_here() -> None:
    pipeline = AnnouncedMaps("job/3", Clock())
    write(pipeline, 0, 10)
    pipeline.move(THERE)
    with pytest.raises(Moved):
        pipeline.claim(4, 14)
    assert pipeline.indexes == {10: 0, 14: 4}


def test_a_complete_share_is_complete_there_and_others_go_on() -> None:
    """The successor has a share of its own, which is not complete yet."""
    pipeline, other = AnnouncedMaps("job/3", Clock()), AnnouncedMaps("job/3", Clock())
    write(pipeline, 0, 10)
    pipeline.complete(EVEN, [10])
    write(other, 1, 11)
    give(pipeline, other)
    even, odd = follow(other, EVEN), follow(other, ODD)
    assert even.next() == [(10, 0)]
    assert odd.next() == [(11, 1)]
    assert even.next() == odd.next() == []
    assert even.complete
    assert not odd.complete
    with pytest.raises(AttemptSuperseded):
        other.claim(2, 12)
    write(other, 3, 13)
    other.complete(ODD, [11, 13])
    assert odd.next() == [(13, 3)]
    assert odd.next() == []
    assert odd.complete


def test_a_share_that_is_not_all_here_fails_alone() -> None:
    pipeline = AnnouncedMaps("job/3", Clock())
    write(pipeline, 1, 11)
    for _ in range(2):
        with pytest.raises(MapUnknown, match="1 of 1 maps not here"):
            pipeline.complete(EVEN, [10])
    pipeline.complete(ODD, [11])
    with pytest.raises(MapUnknown):
        follow(pipeline, EVEN).next()
    assert follow(pipeline, ODD).next() == [(11, 1)]


def test_who_has_read_what_the_successor_does_not_have_is_told() -> None:
    """The successor had another attempt of the map, as a replica that was written to when this worker was away."""
    pipeline, other = AnnouncedMaps("job/3", Clock()), AnnouncedMaps("job/3", Clock())
    write(pipeline, 0, 10)
    write(other, 0, 20)
    give(pipeline, other)
    again = follow(other, had=(10,))
    assert again.next() == [(20, 0)]  # which the reader itself refuses
    other.complete(ALL, [20])
    with pytest.raises(AttemptLost):
        again.next()
    with pytest.raises(MapUnknown):
        other.complete(ALL, [10])


def test_what_was_given_up_is_given_up_wherever_one_asks() -> None:
    pipeline = AnnouncedMaps("job/3", Clock())
    pipeline.abort(ProducerAborted("enough"))
    assert pipeline.over
    pipeline.move(THERE)
    for doing in (follow(pipeline).next, pipeline.alive, pipeline.check_here):
        with pytest.raises(ProducerAborted):
            doing()
    assert pipeline.parties(PATIENCE) == 0


def test_a_commit_that_has_begun_ends_before_the_rest_is_given() -> None:
    pipeline = AnnouncedMaps("job/3")
    pipeline.claim(0, 10)
    assert not pipeline.hold(0.0)
    pipeline.let_go()
    held: list[bool] = []
    holding = threading.Thread(target=lambda: held.append(pipeline.hold(SOON)))
    holding.start()
    pipeline.commit(0, 10)
    holding.join(SOON)
    assert held == [True]
    pipeline.let_go()
    pipeline.claim(1, 11)
    pipeline.disclaim(1, 11)
    assert pipeline.hold(0.0)
    assert pipeline.indexes == {10: 0}


@pytest.mark.parametrize("moved", [pytest.param(True, id="moved"), pytest.param(False, id="the successor died")])
def test_who_commits_while_it_is_held_waits_and_goes_on(moved: bool) -> None:
    pipeline = AnnouncedMaps("job/3")
    assert pipeline.hold(SOON)
    outcome: list[ShuffleError | None] = []

    def commit() -> None:
        try:
            write(pipeline, 0, 10)
        except ShuffleError as error:
            outcome.append(error)
        else:
            outcome.append(None)

    writing = threading.Thread(target=commit)
    writing.start()
    writing.join(0.05)
    assert not outcome
    if moved:
        pipeline.move(THERE)
    pipeline.let_go()
    writing.join(SOON)
    assert [type(each) for each in outcome] == [Moved if moved else type(None)]
    assert pipeline.indexes == {10: 0}


def test_the_drain_waits_for_those_who_follow_and_produce_and_not_for_ever() -> None:
    clock = Clock()
    pipeline = AnnouncedMaps("job/3", clock)

    def wake() -> None: ...

    assert pipeline.parties(PATIENCE) == 0
    pipeline.alive()
    pipeline.listen(wake)
    clock.now += 10 * PATIENCE
    assert pipeline.parties(PATIENCE) == 2
    pipeline.move(THERE)
    assert pipeline.parties(PATIENCE) == 2
    pipeline.unlisten(wake)
    assert pipeline.parties(PATIENCE) == 1
    with pytest.raises(Moved):
        pipeline.check_here()  # a writer is not the producer
    assert pipeline.parties(PATIENCE) == 1
    with pytest.raises(Moved):
        pipeline.alive()
    assert pipeline.parties(PATIENCE) == 0
    silent = AnnouncedMaps("job/4", clock)
    silent.alive()
    silent.move(THERE)
    clock.now += PATIENCE + 1
    assert silent.parties(PATIENCE) == 0


STEPS = st.lists(
    st.tuples(st.sampled_from(["write", "read", "open", "move", "lose"]), st.integers(0, 3), st.integers(0, 30)),
    max_size=50,
)


class World:
    """A shuffle that moves, and readers that open again with what they have had where they are sent, as clients do."""

    def __init__(self) -> None:
        self.here = AnnouncedMaps("job/3", Clock())
        self.counting: dict[int, int] = {}
        self.readers: list[tuple[ShareCursor, dict[int, int]]] = []

    def write(self, index: int, map_id: int) -> None:
        try:
            write(self.here, index, map_id)
        except AttemptSuperseded:
            return
        self.counting[index] = map_id

    def lose(self, _: int, map_id: int) -> None:
        self.here.lose([map_id])
        self.counting = {index: each for index, each in self.counting.items() if each != map_id}

    def move(self, *_: int) -> None:
        there = AnnouncedMaps("job/3", Clock())
        give(self.here, there)
        self.here = there

    def open(self, *_: int) -> None:
        self.readers.append((follow(self.here), {}))

    def read(self, *_: int) -> None:
        self.readers = [after for each in self.readers if (after := self._read(*each)) is not None]

    def _read(self, reader: ShareCursor, had: dict[int, int]) -> tuple[ShareCursor, dict[int, int]] | None:
        try:
            for map_id, index in reader.next():
                if had.setdefault(index, map_id) != map_id:
                    return None  # the client says AttemptLost
        except Moved:
            return self.here.follow(ALL, had.values(), PATIENCE), had
        except AttemptLost:
            return None
        return reader, had


@given(steps=STEPS)
def test_however_often_it_moves_a_reader_that_ends_has_had_what_counts(steps: list[tuple[str, int, int]]) -> None:
    world = World()
    for what, index, map_id in steps:
        getattr(world, what)(index, map_id)
    world.here.complete(ALL, list(world.counting.values()))
    for _ in range(4):
        world.read()
    for reader, had in world.readers:
        assert reader.complete
        assert had == world.counting
