"""What a following reader is given, and how its reading ends, with values and a clock only."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from sluice.runtime.shuffle.data_plane.errors import (
    AttemptSuperseded,
    MapUnknown,
    ProducerAborted,
    ProducerSilent,
    QuotaExceeded,
)
from sluice.runtime.shuffle.data_plane.frames import MAX_MAPS_PER_BATCH, Share
from sluice.runtime.shuffle.worker.storage.announced_maps import (
    MAX_GONE_READERS,
    NO_LIMIT,
    AnnouncedMaps,
    Progress,
    ShareCursor,
)
from sluice.runtime.shuffle.worker.storage.budget import (
    ANNOUNCED_BYTES,
    READER_BYTES,
    SHARE_BYTES,
    Account,
    Budget,
)

ONE = Share(1, 0)
WRITERS = 2
FIRST, SECOND = Share(WRITERS, 0), Share(WRITERS, 1)
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


def write(pipeline: AnnouncedMaps, index: int, map_id: int, size: int = 0, writers: int = 1) -> int:
    """Announce and commit a map; return how many bytes of its share are unread."""
    share = Share(writers, index % writers)
    pipeline.claim(share, index, map_id)
    return pipeline.commit(share, map_id, size)


def follow(
    pipeline: AnnouncedMaps, share: Share = ONE, partitions: tuple[int, int] = (0, 1), had: int = 0, taken: int = 0
) -> ShareCursor:
    return pipeline.follow(share, partitions, PATIENCE, maps_received=had, bytes_taken=taken)


def test_a_reader_is_given_each_map_once_as_it_is_committed(pipeline: AnnouncedMaps) -> None:
    reader = follow(pipeline)
    assert reader.next() == []
    write(pipeline, 0, 70)
    pipeline.claim(ONE, 1, 71)
    assert reader.next() == [(70, 0)]
    assert reader.next() == []
    pipeline.commit(ONE, 71, 0)
    write(pipeline, 2, 72)
    assert reader.next() == [(71, 1), (72, 2)]
    pipeline.complete(ONE, 3)
    assert reader.next() == []
    assert reader.complete


def test_a_late_reader_is_given_all_in_batches_and_then_the_end(pipeline: AnnouncedMaps) -> None:
    for index in range(MAX_MAPS_PER_BATCH + 2):
        write(pipeline, index, index)
    pipeline.complete(ONE, MAX_MAPS_PER_BATCH + 2)
    reader = follow(pipeline)
    assert len(reader.next()) == MAX_MAPS_PER_BATCH
    assert [index for _, index in reader.next()] == [MAX_MAPS_PER_BATCH, MAX_MAPS_PER_BATCH + 1]
    assert reader.next() == []
    assert reader.complete


def test_a_reader_is_given_only_the_maps_of_its_writer_that_it_has_not_had(pipeline: AnnouncedMaps) -> None:
    for index in (0, 1, 2, 4, 3):
        write(pipeline, index, 10 + index, writers=WRITERS)
    assert follow(pipeline, FIRST).next() == [(10, 0), (12, 2), (14, 4)]
    assert follow(pipeline, SECOND, had=1).next() == [(13, 3)]
    ahead = follow(pipeline, FIRST, had=4)  # by another worker, which was told before this one
    assert ahead.next() == []
    write(pipeline, 6, 16, writers=WRITERS)
    assert ahead.next() == []
    write(pipeline, 8, 18, writers=WRITERS)
    assert ahead.next() == [(18, 8)]


def test_only_the_first_claimed_attempt_of_a_map_is_accepted(pipeline: AnnouncedMaps) -> None:
    pipeline.claim(ONE, 0, 1)
    with pytest.raises(AttemptSuperseded):
        pipeline.claim(ONE, 0, 2)
    pipeline.commit(ONE, 1, 0)
    pipeline.claim(ONE, 0, 1)
    with pytest.raises(AttemptSuperseded):
        pipeline.claim(ONE, 0, 2)
    pipeline.complete(ONE, 1)
    with pytest.raises(AttemptSuperseded):
        pipeline.claim(ONE, 1, 3)


def test_a_disclaimed_attempt_can_be_replaced_by_another(pipeline: AnnouncedMaps) -> None:
    pipeline.claim(ONE, 0, 1)
    pipeline.disclaim(ONE, 1)
    write(pipeline, 0, 2)
    pipeline.disclaim(ONE, 2)
    assert follow(pipeline).next() == [(2, 0)]


def test_a_map_after_a_missing_map_is_refused(pipeline: AnnouncedMaps) -> None:
    write(pipeline, 0, 1)
    with pytest.raises(MapUnknown, match="came before others"):
        pipeline.claim(ONE, 2, 3)


def test_completing_with_missing_maps_is_an_error_for_writer_and_readers(pipeline: AnnouncedMaps) -> None:
    write(pipeline, 0, 1, writers=WRITERS)
    write(pipeline, 1, 2, writers=WRITERS)
    for _ in range(2):
        with pytest.raises(MapUnknown, match="1 of 2 maps"):
            pipeline.complete(FIRST, 2)
        with pytest.raises(MapUnknown, match="1 of 2 maps"):
            follow(pipeline, FIRST).next()
    assert follow(pipeline, SECOND).next() == [(2, 1)]


def test_completing_a_shuffle_is_idempotent_and_ends_its_readers(pipeline: AnnouncedMaps) -> None:
    write(pipeline, 0, 1)
    pipeline.complete(ONE, 1)
    pipeline.complete(ONE, 1)
    with pytest.raises(MapUnknown):
        pipeline.complete(ONE, 2)
    reader = follow(pipeline)
    assert reader.next() == [(1, 0)]
    assert reader.next() == []
    assert reader.complete
    with pytest.raises(MapUnknown):
        follow(pipeline, had=2).next()


def test_an_aborted_shuffle_raises_for_readers_and_writers(pipeline: AnnouncedMaps) -> None:
    assert not pipeline.active
    reader = follow(pipeline)
    assert pipeline.active
    reader.close()
    assert not pipeline.active
    write(pipeline, 0, 1)
    reader = follow(pipeline)
    assert pipeline.active
    pipeline.abort(ProducerAborted("broken"))
    pipeline.abort(ProducerAborted("again"))
    assert not pipeline.active
    for act in (
        reader.next,
        follow(pipeline, had=1).next,
        lambda: pipeline.claim(ONE, 1, 2),
        lambda: pipeline.complete(ONE, 1),
        lambda: pipeline.forget(ONE, 1),
    ):
        with pytest.raises(ProducerAborted, match="broken"):
            act()


def test_a_reader_gives_up_a_writer_that_is_silent_for_too_long(pipeline: AnnouncedMaps, clock: Clock) -> None:
    reader = follow(pipeline)
    clock.now += PATIENCE
    assert reader.next() == []
    pipeline.touch()
    clock.now += PATIENCE
    assert reader.next() == []
    clock.now += 1
    with pytest.raises(ProducerSilent):
        reader.next()
    assert follow(pipeline).next() == []


def test_readers_of_a_complete_shuffle_need_no_live_writer(pipeline: AnnouncedMaps, clock: Clock) -> None:
    write(pipeline, 0, 1)
    pipeline.complete(ONE, 1)
    clock.now += 2 * PATIENCE
    reader = follow(pipeline)
    clock.now += 2 * PATIENCE
    assert reader.next() == [(1, 0)]
    assert reader.next() == []
    assert reader.complete


def test_listeners_are_woken_only_by_events_that_matter_to_readers(pipeline: AnnouncedMaps) -> None:
    woken: list[str] = []

    def wake() -> None:
        woken.append("")

    pipeline.listen(wake)
    pipeline.claim(ONE, 0, 1)
    assert not woken
    pipeline.commit(ONE, 1, 0)
    pipeline.commit(ONE, 1, 0)
    assert len(woken) == 1
    pipeline.complete(ONE, 1)
    pipeline.abort(ProducerAborted("over"))
    assert len(woken) == 3
    pipeline.unlisten(wake)
    assert len(woken) == 3


def test_a_commit_returns_the_unread_bytes_of_the_writers_own_readers(pipeline: AnnouncedMaps) -> None:
    assert write(pipeline, 0, 10, 100, WRITERS) == 100
    assert write(pipeline, 1, 11, 7, WRITERS) == 7
    readers = [follow(pipeline, FIRST, (n, n + 1)) for n in range(2)]
    readers[0].take(60)
    assert write(pipeline, 2, 12, 5, WRITERS) == 45
    readers[1].take(45)
    assert write(pipeline, 4, 14, 0, WRITERS) == 0
    assert write(pipeline, 3, 13, 1, WRITERS) == 8
    assert write(pipeline, 4, 14, 0, WRITERS) == 0, "a commit that is repeated only asks"


def test_data_taken_by_a_lost_reader_counts_as_unread_until_the_reader_returns(pipeline: AnnouncedMaps) -> None:
    write(pipeline, 0, 10, 100)
    reader = follow(pipeline)
    reader.take(80)
    reader.close()
    reader.close()
    assert write(pipeline, 1, 11) == 100
    follow(pipeline, had=1, taken=80)
    assert write(pipeline, 2, 12) == 20


def test_a_reader_that_claims_to_have_taken_too_much_is_harmless(pipeline: AnnouncedMaps) -> None:
    reader = follow(pipeline)
    reader.take(1 << 60, 1 << 30)
    assert write(pipeline, 0, 1, 100) == 0
    assert pipeline.forget(ONE, 0)[1] == Progress(0, 1, 0)


def test_maps_that_all_readers_have_had_are_forgotten_except_for_the_last(pipeline: AnnouncedMaps) -> None:
    readers = [follow(pipeline, ONE, partitions) for partitions in ((0, 2), (2, 3))]
    for index in range(4):
        write(pipeline, index, 10 + index)
    for had, reader in zip((3, 4), readers, strict=True):
        reader.next()
        reader.take(0, had)
    assert pipeline.forget(ONE, 0) == ([], Progress(0, 3, 3))
    assert pipeline.forget(ONE, 3) == ([10, 11, 12], Progress(0, 3, 3))
    assert pipeline.forget(ONE, 9)[0] == []
    assert write(pipeline, 3, 13) == 0
    with pytest.raises(AttemptSuperseded):
        pipeline.claim(ONE, 2, 12)
    with pytest.raises(MapUnknown, match="after 2 maps"):
        follow(pipeline, had=2).next()
    assert follow(pipeline, had=3).next() == [(13, 3)]
    write(pipeline, 4, 14)
    assert [reader.next() for reader in readers] == [[(14, 4)]] * 2
    pipeline.complete(ONE, 5)
    assert [reader.next() for reader in readers] == [[], []]
    assert all(reader.complete for reader in readers)


def test_the_progress_of_a_share_counts_a_departed_reader_until_it_returns(pipeline: AnnouncedMaps) -> None:
    stays, goes = (follow(pipeline, ONE, partitions) for partitions in ((0, 1), (1, 2)))
    for index in range(5):
        write(pipeline, index, index)
    for reader, had in ((stays, 5), (goes, 2)):
        reader.next()
        reader.take(0, had)
    goes.close()
    assert pipeline.forget(ONE, 0)[1] == Progress(0, 1, 2)
    back = follow(pipeline, ONE, (1, 2), had=4)
    assert pipeline.forget(ONE, 0)[1] == Progress(0, 2, 4)
    back.next()
    pipeline.complete(ONE, 5)
    assert back.next() == []
    back.close()
    assert pipeline.forget(ONE, 0)[1] == Progress(0, 1, 5)


def test_the_progress_of_a_share_without_readers_is_unlimited(pipeline: AnnouncedMaps) -> None:
    write(pipeline, 0, 1)
    assert pipeline.forget(ONE, 0)[1] == Progress(0, 0, NO_LIMIT)


def test_departed_readers_beyond_the_limit_are_assumed_to_lack_all_maps(pipeline: AnnouncedMaps) -> None:
    for number in range(2 * MAX_GONE_READERS):
        follow(pipeline, ONE, (number, number + 1), had=7).close()
    assert pipeline.forget(ONE, 0)[1].maps == 0
    assert len(pipeline._shares[ONE].gone) == MAX_GONE_READERS + 1


def test_memory_for_announced_maps_and_shares_is_charged_until_they_are_forgotten() -> None:
    account = Account(Budget("memory", 1 << 20))
    pipeline = AnnouncedMaps("job/3", Clock(), account.holding())
    for index in range(10):
        write(pipeline, index, index)
        write(pipeline, index, index)
    assert account.used == SHARE_BYTES + 10 * ANNOUNCED_BYTES
    pipeline.forget(ONE, 6)
    assert account.used == SHARE_BYTES + 4 * ANNOUNCED_BYTES
    pipeline.claim(ONE, 10, 10)
    pipeline.disclaim(ONE, 10)
    pipeline.disclaim(ONE, 10)
    assert account.used == SHARE_BYTES + 4 * ANNOUNCED_BYTES
    full = AnnouncedMaps("job/4", Clock(), Account(Budget("memory", SHARE_BYTES)).holding())
    with pytest.raises(QuotaExceeded):
        follow(full)


STEPS = st.lists(
    st.tuples(st.sampled_from(["write", "read", "say", "leave", "forget"]), st.integers(0, 2)), max_size=80
)


@given(steps=STEPS)
def test_readers_that_reconnect_get_every_map_once_and_in_order_despite_forgetting(
    steps: list[tuple[str, int]],
) -> None:
    pipeline = AnnouncedMaps("job/3", Clock())
    readers = [follow(pipeline, ONE, (n, n + 1)) for n in range(3)]
    had: list[list[int]] = [[], [], []]
    count = 0
    for what, number in steps:
        reader = readers[number]
        match what:
            case "write":
                write(pipeline, count, count)
                count += 1
            case "read":
                had[number] += [map_id for map_id, _ in reader.next()]
            case "say":
                reader.take(0, len(had[number]))
            case "leave":
                reader.close()
                readers[number] = follow(pipeline, ONE, reader.partitions, had=len(had[number]))
            case _:
                _, progress = pipeline.forget(ONE, 0)
                assert progress.partitions == 3
                pipeline.forget(ONE, progress.maps)
    pipeline.complete(ONE, count)
    for number, reader in enumerate(readers):
        while not reader.complete:
            had[number] += [map_id for map_id, _ in reader.next()]
        assert had[number] == list(range(count))


def test_departed_readers_are_charged_until_they_return_and_are_complete() -> None:
    account = Account(Budget("memory", 1 << 20))
    pipeline = AnnouncedMaps("job/3", Clock(), account.holding())
    for number in range(5):
        follow(pipeline, ONE, (number, number + 1)).close()
    assert account.used == SHARE_BYTES + 5 * READER_BYTES
    back = follow(pipeline, ONE, (0, 1))
    assert account.used == SHARE_BYTES + 5 * READER_BYTES
    pipeline.complete(ONE, 0)
    back.next()
    back.close()
    assert account.used == SHARE_BYTES + 4 * READER_BYTES


def test_a_job_cannot_add_readers_beyond_its_memory() -> None:
    pipeline = AnnouncedMaps("job/3", Clock(), Account(Budget("memory", 1 << 18)).holding())

    def come_and_go() -> None:
        for number in range(2000):
            follow(pipeline, ONE, (number, number + 1)).close()

    with pytest.raises(QuotaExceeded):
        come_and_go()
