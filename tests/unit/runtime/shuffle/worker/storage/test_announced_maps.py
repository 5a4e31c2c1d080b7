"""What a reader that follows is given, and how it ends: decided with values and a clock."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st

from sluice.runtime.shuffle.data_plane.errors import (
    AttemptLost,
    AttemptSuperseded,
    MapUnknown,
    ProducerAborted,
    ProducerSilent,
)
from sluice.runtime.shuffle.data_plane.frames import MAX_MAPS_PER_BATCH, Share
from sluice.runtime.shuffle.worker.storage.announced_maps import AnnouncedMaps, ShareCursor

ALL = Share(1, 0)
PATIENCE = 60.0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pipeline(clock: Clock) -> AnnouncedMaps:
    return AnnouncedMaps("job/3", clock)


def write(pipeline: AnnouncedMaps, index: int, map_id: int) -> None:
    pipeline.claim(index, map_id)
    pipeline.commit(index, map_id)


def follow(pipeline: AnnouncedMaps, share: Share = ALL, had: tuple[int, ...] = ()) -> ShareCursor:
    return pipeline.follow(share, had, PATIENCE)


def test_a_reader_is_given_each_map_once_as_it_is_committed(pipeline: AnnouncedMaps) -> None:
    reader = follow(pipeline)
    assert reader.next() == []
    write(pipeline, 1, 11)
    pipeline.claim(2, 12)
    assert reader.next() == [(11, 1)]
    assert reader.next() == []
    pipeline.commit(2, 12)
    write(pipeline, 0, 10)
    assert reader.next() == [(12, 2), (10, 0)]
    pipeline.complete(ALL, [10, 11, 12])
    assert not reader.complete
    assert reader.next() == []
    assert reader.complete


def test_a_late_reader_is_given_all_and_then_the_end(pipeline: AnnouncedMaps) -> None:
    for index in range(MAX_MAPS_PER_BATCH + 1):
        write(pipeline, index, 7 + index)
    pipeline.complete(ALL, range(7, 8 + MAX_MAPS_PER_BATCH))
    reader = follow(pipeline)
    assert len(reader.next()) == MAX_MAPS_PER_BATCH
    assert not reader.complete
    assert reader.next() == [(7 + MAX_MAPS_PER_BATCH, MAX_MAPS_PER_BATCH)]
    assert reader.next() == []
    assert reader.complete


def test_a_reader_is_given_its_share_without_what_it_has_had(pipeline: AnnouncedMaps) -> None:
    for index in range(6):
        write(pipeline, index, 10 + index)
    reader = follow(pipeline, Share(3, 1), had=(11,))
    assert reader.next() == [(14, 4)]
    pipeline.complete(ALL, range(10, 16))
    assert reader.next() == []
    assert reader.complete


def test_the_first_attempt_that_commits_counts_and_no_other_ever(pipeline: AnnouncedMaps) -> None:
    reader = follow(pipeline)
    write(pipeline, 0, 10)
    with pytest.raises(AttemptSuperseded, match="attempt 20 of map 0"):
        pipeline.claim(0, 20)
    write(pipeline, 0, 10)  # again is harmless
    assert reader.next() == [(10, 0)]
    assert reader.next() == []
    pipeline.complete(ALL, [10])
    with pytest.raises(AttemptSuperseded):
        pipeline.claim(1, 30)


def test_an_attempt_counts_for_one_map(pipeline: AnnouncedMaps) -> None:
    write(pipeline, 0, 10)
    with pytest.raises(AttemptSuperseded):
        pipeline.claim(1, 10)
    write(pipeline, 1, 11)


def test_an_attempt_that_could_not_be_committed_leaves_its_place_to_another(pipeline: AnnouncedMaps) -> None:
    pipeline.claim(0, 10)
    with pytest.raises(AttemptSuperseded):
        pipeline.claim(0, 20)
    pipeline.disclaim(0, 10)
    write(pipeline, 0, 20)
    pipeline.disclaim(0, 20)
    assert follow(pipeline).next() == [(20, 0)]


def test_who_has_read_an_attempt_that_is_lost_is_told_and_others_get_the_next(pipeline: AnnouncedMaps) -> None:
    reader, resumed = follow(pipeline), follow(pipeline, had=(10,))
    write(pipeline, 0, 10)
    assert reader.next() == [(10, 0)]
    pipeline.lose([10, 99])
    late = follow(pipeline)
    assert late.next() == []
    write(pipeline, 0, 20)
    assert late.next() == [(20, 0)]
    for each in (reader, resumed):
        with pytest.raises(AttemptLost, match="attempt 10"):
            each.next()


def test_who_has_read_what_is_not_in_the_complete_shuffle_is_told(pipeline: AnnouncedMaps) -> None:
    reader, elsewhere = follow(pipeline), follow(pipeline, had=(77,))
    write(pipeline, 0, 10)
    write(pipeline, 1, 11)
    assert len(reader.next()) == 2
    assert len(elsewhere.next()) == 2
    pipeline.complete(ALL, [11])
    with pytest.raises(AttemptLost):
        reader.next()
    with pytest.raises(AttemptLost):
        elsewhere.next()
    late = follow(pipeline)
    assert late.next() == [(11, 1)]


def test_a_worker_that_does_not_have_all_says_so_to_producer_and_readers(pipeline: AnnouncedMaps) -> None:
    reader = follow(pipeline)
    write(pipeline, 0, 10)
    with pytest.raises(MapUnknown, match="1 of 2 maps not here"):
        pipeline.complete(ALL, [10, 11])
    with pytest.raises(MapUnknown):
        reader.next()


def test_complete_is_said_once(pipeline: AnnouncedMaps) -> None:
    write(pipeline, 0, 10)
    pipeline.complete(ALL, [10])
    pipeline.complete(ALL, [10])
    with pytest.raises(MapUnknown, match="complete with other maps"):
        pipeline.complete(ALL, [])
    reader = follow(pipeline)
    assert reader.next() == [(10, 0)]
    assert reader.next() == []
    assert reader.complete


def test_an_aborted_shuffle_ends_for_everybody(pipeline: AnnouncedMaps) -> None:
    reader = follow(pipeline)
    write(pipeline, 0, 10)
    pipeline.abort(ProducerAborted("enough"))
    pipeline.abort(MapUnknown("released"))
    doings: list[Callable[[], object]] = [
        reader.next, follow(pipeline).next, pipeline.check_open, lambda: pipeline.claim(1, 11),
        lambda: pipeline.complete(ALL, [10]),
    ]  # fmt: skip
    for doing in doings:
        with pytest.raises(ProducerAborted, match="enough"):
            doing()


def test_a_producer_without_a_sign_of_life_is_taken_for_gone(pipeline: AnnouncedMaps, clock: Clock) -> None:
    clock.now += 10 * PATIENCE
    reader = follow(pipeline)
    clock.now += PATIENCE
    assert reader.next() == []
    pipeline.touch()
    clock.now += PATIENCE
    assert reader.next() == []
    write(pipeline, 0, 10)
    clock.now += PATIENCE + 1
    assert reader.next() == [(10, 0)]
    with pytest.raises(ProducerSilent, match="60 s"):
        reader.next()


def test_a_complete_shuffle_needs_no_sign_of_life(pipeline: AnnouncedMaps, clock: Clock) -> None:
    pipeline.complete(ALL, [])
    clock.now += 10 * PATIENCE
    reader = follow(pipeline)
    clock.now += 10 * PATIENCE
    assert reader.next() == []
    assert reader.complete


def test_whoever_listens_is_woken_by_what_matters_to_readers(pipeline: AnnouncedMaps) -> None:
    woken: list[int] = []

    def wake() -> None:
        woken.append(1)

    pipeline.listen(wake)
    pipeline.touch()
    pipeline.claim(0, 10)
    assert not woken
    pipeline.commit(0, 10)
    assert len(woken) == 1
    pipeline.lose([10])
    pipeline.complete(ALL, [])
    pipeline.abort(ProducerAborted("late"))
    assert len(woken) == 4
    pipeline.unlisten(wake)
    write_again = AnnouncedMaps("job/4")
    write_again.listen(wake)
    assert len(woken) == 4


STEPS = st.lists(
    st.tuples(st.sampled_from(["write", "lose", "read", "open"]), st.integers(0, 3), st.integers(0, 30)), max_size=40
)


@given(steps=STEPS)
def test_no_reader_ever_has_two_attempts_of_a_map(steps: list[tuple[str, int, int]]) -> None:
    pipeline = AnnouncedMaps("job/3", Clock())
    readers: list[tuple[ShareCursor, list[tuple[int, int]]]] = []
    counting: dict[int, int] = {}
    lost: set[int] = set()
    for what, index, map_id in steps:
        match what:
            case "write":
                try:
                    write(pipeline, index, map_id)
                except AttemptSuperseded:
                    assert index in counting or map_id in counting.values() or map_id in lost
                else:
                    assert counting.setdefault(index, map_id) == map_id
            case "lose":
                pipeline.lose([map_id])
                lost |= {map_id} & set(counting.values())
                counting = {key: value for key, value in counting.items() if value != map_id}
            case "open":
                readers.append((follow(pipeline), []))
            case "read":
                for reader, had in list(readers):
                    try:
                        had.extend(reader.next())
                    except AttemptLost:
                        readers.remove((reader, had))
                        assert not {each for each, _ in had} <= set(counting.values())
    pipeline.complete(ALL, list(counting.values()))
    for reader, had in readers:
        try:
            had.extend(reader.next())
            assert reader.next() == []
        except AttemptLost:
            continue
        assert reader.complete
        assert sorted((index, each) for each, index in had) == sorted(counting.items())


WRITERS = 2


def write_for(pipeline: AnnouncedMaps, index: int, size: int) -> int:
    """Announce a map of one of two writers; what its readers have not taken."""
    pipeline.claim(index, 10 + index)
    return pipeline.commit(index, 10 + index, size, WRITERS)


def test_a_writer_hears_how_far_its_own_readers_are(pipeline: AnnouncedMaps) -> None:
    assert write_for(pipeline, 0, 100) == 100
    assert write_for(pipeline, 1, 7) == 7
    readers = [follow(pipeline, Share(WRITERS, 0)) for _ in range(2)]
    readers[0].take(60)
    assert write_for(pipeline, 2, 5) == 45
    readers[1].take(45)
    assert write_for(pipeline, 4, 0) == 0
    assert write_for(pipeline, 3, 1) == 8


def test_a_repeated_commit_only_asks_again(pipeline: AnnouncedMaps) -> None:
    assert write_for(pipeline, 0, 100) == 100
    follow(pipeline, Share(WRITERS, 0)).take(30)
    assert write_for(pipeline, 0, 100) == 70


def test_what_a_lost_reader_took_is_unread_until_it_comes_back_and_says_so(pipeline: AnnouncedMaps) -> None:
    write_for(pipeline, 0, 100)
    share = Share(WRITERS, 0)
    reader = follow(pipeline, share)
    reader.take(80)
    reader.close()
    assert write_for(pipeline, 2, 0) == 100
    pipeline.follow(share, (10,), PATIENCE, taken=80)
    assert write_for(pipeline, 4, 0) == 20


def test_commits_without_writers_are_not_measured(pipeline: AnnouncedMaps) -> None:
    pipeline.claim(0, 10)
    assert pipeline.commit(0, 10, 100) == 0


def test_a_reader_that_claims_too_much_holds_nobody_up(pipeline: AnnouncedMaps) -> None:
    follow(pipeline, Share(WRITERS, 0)).take(1 << 60)
    assert write_for(pipeline, 0, 100) == 0
