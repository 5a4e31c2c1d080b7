"""The history of ended jobs: what is kept, which jobs are removed, and what the next leader finds."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, strategies as st

from sluice.runtime.config import HistoryConfig
from sluice.runtime.ha.errors import EntryMissing, LeadershipLost, StorageUnavailable
from sluice.runtime.ha.storage import HaStorage, LocalStorage
from sluice.runtime.jobmanager.dispatcher.job_records import accepted_detail
from sluice.runtime.jobmanager.errors import JobNotFound, LogNotFound
from sluice.runtime.jobmanager.history import archive as archive_module, log_blocks
from sluice.runtime.jobmanager.history.archive import INDEX, JOBS, JobArchive
from sluice.runtime.jobmanager.history.entries import DAY_MS, MAX_ARCHIVED_JOBS, ArchivedJob, jobs_to_remove, owner_mark
from sluice.runtime.jobmanager.views import JobRecord
from sluice.runtime.messages import BlobRef, JobState, JobSubmission, LogChunk
from tests.unit.runtime.ha.simulated import MemoryStorage

ONE, TWO = "1" * 32, "2" * 32
NOW = 100 * DAY_MS


def record(job_id: str = ONE, ended_at: int = NOW) -> JobRecord:
    submission = JobSubmission(name="p.py", owner="ada", pipeline=BlobRef(sha256="0" * 64, name="p.py", size=1))
    detail = accepted_detail(job_id, submission, ended_at - 1000)
    ended = msgspec.structs.replace(detail, state=JobState.FINISHED, end_time=ended_at, duration_ms=1000)
    return JobRecord(submission=submission, detail=ended)


@dataclass
class Logs:
    """Fake logs of TaskManagers, in pieces of ``piece`` bytes. Some can be made unreadable."""

    logs: dict[str, bytes] = field(default_factory=dict)
    piece: int = 1 << 20
    lost: Sequence[str] = ()
    nameless: bool = False

    async def names(self) -> Sequence[str]:
        if self.nameless:
            raise LogNotFound("no TaskManager")
        return (*self.lost, *self.logs)

    async def read(self, name: str, offset: int, limit: int) -> LogChunk:
        if name in self.lost:
            raise LogNotFound(f"{name} went with its TaskManager")
        content = self.logs[name]
        data = content[offset : offset + min(limit, self.piece)]
        end = offset + len(data)
        return LogChunk(data=data.decode(errors="replace"), offset=offset, next_offset=end, end=end >= len(content))


NO_LOGS = Logs()


def leads() -> None:
    """A leadership check that always passes."""


def archive_in(
    storage: HaStorage, *, check: Callable[[], None] = leads, now: int = NOW, **settings: float
) -> JobArchive:
    config = msgspec.structs.replace(HistoryConfig(), **settings)
    return JobArchive(storage, config, check, lambda: now / 1000)


def below(root: Path) -> list[Path]:
    return list(root.rglob("*"))


async def whole_log(archive: JobArchive, job_id: str, name: str, limit: int) -> str:
    pieces, offset = [], 0
    while True:
        chunk = await archive.read_log(job_id, name, offset, limit)
        assert chunk.offset == offset
        pieces.append(chunk.data)
        offset = chunk.next_offset
        if chunk.end:
            return "".join(pieces)


# --- what is kept of one job ------------------------------------------------------------------------------


async def test_the_next_leader_finds_the_record_and_logs_of_an_archived_job(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    logs = Logs(
        {"driver.stderr": "schön, größer\n".encode() * 5000, "driver.stdout": b"", "executor-1.stdout": b"here"}
    )
    await archive_in(storage).put(record(), logs)
    archive = archive_in(storage)
    await archive.load()
    assert ONE in archive
    assert await archive.record(ONE) == record()
    assert await archive.logs(ONE) == ("driver.stderr", "driver.stdout", "executor-1.stdout")
    assert await whole_log(archive, ONE, "driver.stdout", 10) == ""
    for limit in (4096, 1 << 20):
        assert await whole_log(archive, ONE, "driver.stderr", limit) == "schön, größer\n" * 5000
    assert await whole_log(archive, ONE, "executor-1.stdout", 1) == "here"
    beyond = await archive.read_log(ONE, "executor-1.stdout", 99, 10)
    assert (beyond.data, beyond.end) == ("", True)
    assert await archive.summaries(archive.page(None, 10)[0]) == (record().detail.summary(),)
    assert all(path.stat().st_mode & 0o077 == 0 for path in below(tmp_path)), "nobody else reads what jobs print"


async def test_logs_are_split_into_blocks_and_read_across_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_blocks, "BLOCK_BYTES", 100)
    logs = Logs({f"executor-{n}.stdout": bytes(range(48, 58)) * n * 7 for n in range(1, 6)}, piece=33)
    archive = archive_in(MemoryStorage())
    await archive.put(record(), logs)
    for limit in (1, 32, 1000):
        for name, content in logs.logs.items():
            assert await whole_log(archive, ONE, name, limit) == content.decode()


@given(content=st.binary(max_size=300), piece=st.integers(1, 50), limit=st.integers(4, 400), block=st.integers(1, 200))
async def test_an_archived_log_reads_exactly_as_it_did_on_the_taskmanager(
    content: bytes, piece: int, limit: int, block: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_blocks, "BLOCK_BYTES", block)
        archive = archive_in(MemoryStorage())
        logs = Logs({"driver.stdout": content}, piece=piece)
        await archive.put(record(), logs)
        shown, offset = "", 0
        while offset < len(content):
            chunk = await logs.read("driver.stdout", offset, 1 << 20)
            shown, offset = shown + chunk.data, chunk.next_offset
        assert await whole_log(archive, ONE, "driver.stdout", limit) == shown


async def test_a_lost_taskmanager_loses_only_its_own_logs() -> None:
    archive = archive_in(MemoryStorage())
    await archive.put(record(), Logs({"driver.stderr": b"why"}, lost=["executor-1.stdout"]))
    assert await archive.logs(ONE) == ("driver.stderr",)
    with pytest.raises(LogNotFound):
        await archive.read_log(ONE, "executor-1.stdout", 0, 10)
    await archive.put(record(TWO), Logs(nameless=True))
    assert await archive.record(TWO) == record(TWO)


async def test_the_logs_of_one_job_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that prints noise keeps what fits, and its record in any case."""
    monkeypatch.setattr(log_blocks, "BLOCK_BYTES", 1000)
    storage = MemoryStorage()
    archive = archive_in(storage, max_job_bytes=3000)
    noise = os.urandom(20_000).hex().encode()
    await archive.put(record(), Logs({"driver.stdout": noise, "driver.stderr": b"why"}, piece=1000))
    kept = await whole_log(archive, ONE, "driver.stdout", 1 << 20)
    assert kept
    assert noise.decode().startswith(kept)
    assert sum(len(data) for name, data in storage.entries.items() if "/logs-" in name) <= 3000
    assert await archive.record(ONE) == record()


async def test_nonsense_answers_of_a_taskmanager_do_not_block_archiving_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hostile(Logs):
        async def names(self) -> Sequence[str]:
            return ("x" * 5000, "driver.stdout", "driver.stdout", *(f"executor-{n}.stdout" for n in range(2000)))

        async def read(self, name: str, offset: int, limit: int) -> LogChunk:
            assert len(name) < 5000
            return LogChunk(data="again", offset=offset, next_offset=offset - limit, end=False)

    monkeypatch.setattr(log_blocks, "MAX_LOGS", 3)
    archive = archive_in(MemoryStorage())
    await archive.put(record(), Hostile())
    assert await archive.logs(ONE) == ("driver.stdout", "executor-0.stdout")
    assert (await archive.read_log(ONE, "driver.stdout", -5, 1 << 30)).data == "again"


async def test_an_endless_log_is_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(Logs):
        async def read(self, name: str, offset: int, limit: int) -> LogChunk:
            return LogChunk(data="x" * 100, offset=offset, next_offset=offset + 100, end=False)

    monkeypatch.setattr(log_blocks, "MAX_LOG_BYTES", 1000)
    archive = archive_in(MemoryStorage())
    await archive.put(record(), Endless({"driver.stdout": b""}))
    assert len(await whole_log(archive, ONE, "driver.stdout", 1 << 20)) == 1000


async def test_a_job_is_archived_without_logs_if_a_taskmanager_is_too_slow() -> None:
    class Slow(Logs):
        async def read(self, name: str, offset: int, limit: int) -> LogChunk:
            raise TimeoutError  # as the time-out of the whole has it raised here

    archive = archive_in(MemoryStorage())
    await archive.put(record(), Slow({"driver.stdout": b"x"}))
    assert (await archive.record(ONE), await archive.logs(ONE)) == (record(), ())


# --- which jobs go ----------------------------------------------------------------------------------------


def job(number: int, ended_at: int, size: int = 10, owner: str = "ada") -> ArchivedJob:
    return ArchivedJob(ended_at, f"{number:032x}", owner_mark(owner), "0" * 16, "a" * 32, size)


def test_expired_jobs_are_removed_first_then_the_oldest_until_the_rest_fits() -> None:
    settings = HistoryConfig(days=2, max_bytes=25)
    jobs = [job(1, NOW - 3 * DAY_MS), job(2, NOW - DAY_MS), job(3, NOW - 5), job(4, NOW)]
    assert jobs_to_remove(jobs, settings, NOW) == jobs[:2]
    assert jobs_to_remove(reversed(jobs), settings, NOW) == jobs[:2]
    assert jobs_to_remove(jobs[2:], settings, NOW) == []
    assert jobs_to_remove(jobs[1:2], settings, NOW + DAY_MS) == []
    assert jobs_to_remove(jobs[1:2], settings, NOW + DAY_MS + 1) == jobs[1:2]
    assert jobs_to_remove(jobs, HistoryConfig(days=0), NOW + 1) == jobs


def test_a_user_with_many_jobs_does_not_displace_the_archived_jobs_of_others() -> None:
    settings = HistoryConfig(days=2, max_bytes=100)
    of_ada = [job(number, number + NOW - DAY_MS, 10, "ada") for number in range(3)]
    of_eve = [job(number, number + NOW - 99, 20, "eve") for number in range(100, 120)]
    gone = jobs_to_remove([*of_eve, *of_ada], settings, NOW)
    assert gone == of_eve[:-3], "hers alone, the oldest first"
    few = [job(1, NOW - 5, 1, "ada"), *(job(number, NOW, 0, "eve") for number in range(2, MAX_ARCHIVED_JOBS + 2))]
    assert jobs_to_remove(few, settings, NOW) == few[1:2]


@given(
    st.lists(st.tuples(st.integers(0, NOW), st.integers(0, 100), st.sampled_from(["ada", "eve", "bob"])), max_size=30),
    st.floats(0, 100),
    st.integers(0, 1000),
)
def test_kept_jobs_are_within_the_bounds_and_newer_than_the_removed_jobs_of_their_owner(
    made: list[tuple[int, int, str]], days: float, most: int
) -> None:
    jobs = [job(number, *each) for number, each in enumerate(made)]
    settings = HistoryConfig(days=days, max_bytes=most)
    gone = jobs_to_remove(jobs, settings, NOW)
    stay = set(jobs) - set(gone)
    assert sum(each.size for each in stay) <= most
    assert all(NOW - each.ended_at <= days * DAY_MS for each in stay)
    for owner in map(owner_mark, ("ada", "eve", "bob")):
        left, removed = ([each for each in some if each.owner == owner] for some in (stay, gone))
        assert not left or not removed or max(removed) < min(left)
    last = gone[-1:]
    assert jobs_to_remove([*stay, *last], settings, NOW) == last, "no more than has to"


def test_the_number_of_jobs_is_bounded_whatever_the_settings_say() -> None:
    jobs = [job(number, number) for number in range(MAX_ARCHIVED_JOBS + 3)]
    assert jobs_to_remove(jobs, HistoryConfig(days=3650, max_bytes=1 << 60), NOW) == jobs[:3]


def test_an_archived_job_is_parsed_from_its_name_and_malformed_names_are_ignored() -> None:
    assert ArchivedJob.parse(job(1, NOW, 77).name) == job(1, NOW, 77)
    for name in ("", ".tmp", "x.json", job(1, NOW).name + ".tmp", job(1, NOW).name.replace("0" * 16, "../" * 5 + "x")):
        assert ArchivedJob.parse(name) is None


async def test_trimming_removes_old_jobs_and_leaves_everything_else(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    archive = archive_in(storage)
    await archive.put(record(ONE, NOW - 40 * DAY_MS), Logs({"driver.stdout": b"old"}))
    await archive.put(record(TWO), NO_LOGS)
    (tmp_path / INDEX / "README").write_text("of somebody else")
    await archive.trim()
    assert ONE not in archive
    with pytest.raises(JobNotFound):
        await archive.record(ONE)
    assert storage.names(JOBS) == [TWO]
    assert len(storage.names(INDEX)) == 2, "what is not of the history is left alone"
    again = archive_in(storage)
    await again.load()
    assert await again.record(TWO) == record(TWO)
    off = archive_in(storage, days=0, now=NOW + 1)
    await off.load()
    await off.put(record(ONE), NO_LOGS)
    await off.trim()
    assert storage.names(JOBS) == []


async def test_pages_list_the_jobs_that_ended_last_first() -> None:
    archive = archive_in(MemoryStorage())
    ids = [f"{number:032x}" for number in range(5)]
    for number, job_id in enumerate(ids):
        await archive.put(record(job_id, NOW - number // 2), NO_LOGS)
    seen: list[str] = []
    before, more = None, True
    while more:
        page, more = archive.page(before, 2)
        seen += [each.job_id for each in page]
        before = (page[-1].ended_at, page[-1].job_id)
    assert seen == [ids[each] for each in (1, 0, 3, 2, 4)]


# --- ends in between --------------------------------------------------------------------------------------


class Killed(BaseException):
    """Simulates the death of the process: none of its code runs after this."""


@dataclass
class FailingStorage(MemoryStorage):
    """A storage that fails with ``error`` at the change number ``at``, before or after carrying it out."""

    at: int = 0
    after: bool = False
    error: BaseException = field(default_factory=Killed)
    steps: int = 0

    def write(self, name: str, data: bytes) -> None:
        self._step(lambda: MemoryStorage.write(self, name, data))

    def remove(self, name: str) -> None:
        self._step(lambda: MemoryStorage.remove(self, name))

    def _step(self, change: Callable[[], None]) -> None:
        if self.at and isinstance(self.error, Killed) and self.steps >= self.at:
            raise self.error  # it is dead
        self.steps += 1
        if self.steps != self.at:
            change()
            return
        if self.after:
            change()
        raise self.error


async def steps_of(work: Callable[[JobArchive], object]) -> int:
    storage = FailingStorage()
    await work(archive_in(storage))  # type: ignore[misc]  # all of them are coroutines
    return storage.steps


async def keep_two_and_trim(archive: JobArchive) -> None:
    await archive.load()
    await archive.put(record(ONE, NOW - 40 * DAY_MS), Logs({"driver.stdout": b"old"}))
    await archive.put(record(TWO), Logs({"driver.stdout": b"new"}))
    await archive.trim()


@pytest.mark.parametrize("after", [False, True])
async def test_the_next_leader_repairs_an_archive_whose_leader_was_killed_at_any_step(after: bool) -> None:
    """The next leader archives and trims again, as it does with results that are not clean."""
    for at in range(1, await steps_of(keep_two_and_trim) + 1):
        storage = FailingStorage(at=at, after=after)
        with pytest.raises(Killed):
            await keep_two_and_trim(archive_in(storage))
        storage.at = 0
        found = archive_in(storage)
        await found.load()
        if TWO in found:
            assert await found.record(TWO) == record(TWO), "what is entered is whole"
        await keep_two_and_trim(archive_in(storage))
        last = archive_in(storage)
        await last.load()
        assert ONE not in last
        assert await last.record(TWO) == record(TWO)
        assert await whole_log(last, TWO, "driver.stdout", 10) == "new"
        assert len(storage.names(INDEX)) == 1
        assert len(storage.names(f"{JOBS}/{TWO}")) == 1
        assert storage.names(JOBS) == [TWO], "rubbish of no interrupted try is left"


async def test_a_full_disk_at_any_step_leaves_nothing_of_the_job_and_harms_no_other_job() -> None:
    async def keep(archive: JobArchive) -> None:
        await archive.put(record(TWO), Logs({"driver.stdout": b"new"}))

    for at in range(1, await steps_of(keep) + 1):
        storage = FailingStorage(error=StorageUnavailable("no space left"))
        archive = archive_in(storage)
        await archive.put(record(ONE), NO_LOGS)
        storage.at = storage.steps + at
        with pytest.raises(StorageUnavailable):
            await keep(archive)
        assert TWO not in archive
        assert storage.names(f"{JOBS}/{TWO}") == []
        assert await archive.record(ONE) == record(ONE)
        await keep(archive)
        assert await archive.record(TWO) == record(TWO)


async def test_a_deposed_leader_neither_archives_nor_removes_jobs() -> None:
    def deposed() -> None:
        raise LeadershipLost("another one leads")

    storage = MemoryStorage()
    await archive_in(storage).put(record(ONE, 5), NO_LOGS)
    before = dict(storage.entries)
    archive = archive_in(storage, check=deposed)
    await archive.load()
    with pytest.raises(LeadershipLost):
        await archive.put(record(TWO), NO_LOGS)
    with pytest.raises(LeadershipLost):
        await archive.trim()
    assert storage.entries == before


async def test_the_index_entry_whose_files_exist_wins_over_the_entry_of_a_deposed_leader() -> None:
    """A deposed leader wrote its entry late, after the new leader had removed the files of that entry."""
    storage = MemoryStorage()
    first, second = archive_in(storage), archive_in(storage)
    await first.put(record(), Logs({"driver.stdout": b"first"}))
    late = {name: data for name, data in storage.entries.items() if name.startswith(INDEX)}
    for name in late:
        del storage.entries[name]
    await second.put(record(), Logs({"driver.stdout": b"second"}))
    storage.entries |= late
    third = archive_in(storage)
    await third.load()
    assert await whole_log(third, ONE, "driver.stdout", 100) == "second"


@pytest.mark.parametrize("what", ["index", "record", "logs"])
@pytest.mark.parametrize("how", ["changed", "cut", "gone"])
async def test_damaged_files_are_treated_as_not_found(what: str, how: str) -> None:
    storage = MemoryStorage()
    archive = archive_in(storage)
    await archive.put(record(), Logs({"driver.stdout": b"a log"}))
    (name,) = [name for name in storage.entries if what in name.removeprefix(JOBS).removeprefix("history/")]
    data = storage.entries.pop(name)
    if how != "gone":
        storage.entries[name] = data[:-3] if how == "cut" else bytes([data[0] ^ 1]) + data[1:]
    if what == "logs":
        with pytest.raises(LogNotFound):
            await archive.read_log(ONE, "driver.stdout", 0, 10)
        assert await archive.record(ONE) == record()
        return
    with pytest.raises(JobNotFound):
        await archive.record(ONE)
    assert len(await archive.summaries(archive.page(None, 9)[0])) == (what == "record")


async def test_a_block_that_decompresses_to_too_many_bytes_is_treated_as_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    archive = archive_in(MemoryStorage())
    await archive.put(record(), Logs({"driver.stdout": bytes(50_000)}))
    monkeypatch.setattr(archive_module, "MAX_BLOCK_BYTES", 40_000)
    with pytest.raises(LogNotFound):
        await archive.read_log(ONE, "driver.stdout", 0, 10)


async def test_symbolic_links_in_place_of_archived_files_are_not_followed(tmp_path: Path) -> None:
    """Whoever can write into the HA storage can destroy the history, but cannot expose files elsewhere."""
    storage = LocalStorage(tmp_path / "ha")
    secret = tmp_path / "key.pem"
    secret.write_text("of another process")
    archive = archive_in(storage)
    await archive.put(record(), Logs({"driver.stdout": b"a log"}))
    for path in below(tmp_path / "ha" / JOBS / ONE):
        if path.suffix != ".z":
            continue
        path.unlink()
        path.symlink_to(secret)
    with pytest.raises(JobNotFound):
        await archive.record(ONE)
    with pytest.raises(LogNotFound):
        await archive.read_log(ONE, "driver.stdout", 0, 10)
    await archive_in(storage, days=0).trim()
    emptied = archive_in(storage, days=0, now=NOW + 1)
    await emptied.load()
    await emptied.trim()
    assert secret.read_text() == "of another process"
    with pytest.raises(EntryMissing):
        storage.read(f"{JOBS}/{ONE}/x")
