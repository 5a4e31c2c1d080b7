"""Commands about jobs: unique prefixes of job ids, filtered lists, and the tail and follow-up of logs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, strategies as st

from sluice.cli.errors import EXIT_USAGE, RefusedError, UsageError, exit_code_of
from sluice.cli.jobs.state_option import wanted_states
from sluice.client.job_logs import TAIL_BLOCK_BYTES, JobLog
from sluice.client.jobs import HISTORY, latest_jobs, whole_id
from sluice.runtime.node.log_files import _whole_characters

JOB = "a" * 32


def job(identifier: str, state: str = "RUNNING", owner: str = "ada") -> dict[str, Any]:
    return {"id": identifier.ljust(32, "0"), "name": f"{identifier}.py", "state": state, "owner": owner}


@dataclass
class Jobs:
    """Fakes the list of jobs of the REST API, in pages of ``page`` jobs, and records each query."""

    jobs: list[dict[str, Any]]
    page: int = 2
    asked: list[dict[str, str | int]] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)

    async def get(self, path: str, **query: str | int) -> Any:
        if path == "/v1/history":
            assert int(query.get("limit", 0)) <= 100
            return {"jobs": self.history, "next": None}
        assert path == "/v1/jobs"
        self.asked.append(query)
        start = int(query.get("after", 0))
        end = start + min(self.page, int(query.get("limit", 1000)))
        return {"jobs": self.jobs[start:end], "next": str(end) if end < len(self.jobs) else None}


async def test_a_full_job_id_is_used_without_a_lookup() -> None:
    client = Jobs([])
    assert await whole_id(client, JOB) == JOB
    assert client.asked == []


@pytest.mark.parametrize("typed", ["3f9c", "3", "3f9c" + "0" * 27])
async def test_a_unique_job_id_prefix_resolves_to_the_job(typed: str) -> None:
    jobs = [job("a1"), job("b2"), job("c3"), job("a9"), job("3f9c")]
    assert await whole_id(Jobs(jobs), typed) == "3f9c".ljust(32, "0")


async def test_a_job_id_prefix_resolves_to_a_job_in_the_history() -> None:
    kept = [job("3f9c", "FAILED"), job("a9", "FINISHED")]
    assert await whole_id(Jobs([job("a1")], history=kept), "3f") == "3f9c".ljust(32, "0")
    assert await whole_id(Jobs([job("a1")], history=kept), "a") == "a1".ljust(32, "0")
    assert await latest_jobs(Jobs([], history=kept), {"FAILED"}, "", 500, HISTORY) == kept[:1]


async def test_an_ambiguous_job_id_prefix_names_the_candidates() -> None:
    jobs = [job("3f9c"), job("b2"), job("c3"), job("3f01", "FAILED")]
    with pytest.raises(UsageError) as refused:
        await whole_id(Jobs(jobs), "3f")
    assert exit_code_of(refused.value) == EXIT_USAGE
    assert "3f9c.py, RUNNING" in str(refused.value)
    assert "3f01.py, FAILED" in str(refused.value)
    assert "b2.py" not in str(refused.value)


async def test_an_ambiguous_job_id_prefix_names_at_most_ten_candidates() -> None:
    with pytest.raises(UsageError, match="and 30 more") as refused:
        await whole_id(Jobs([job(f"a{number:02}") for number in range(40)]), "a")
    assert str(refused.value).count(".py") == 10


async def test_a_job_id_prefix_without_a_match_is_refused() -> None:
    with pytest.raises(RefusedError, match="there is no job 'ff'"):
        await whole_id(Jobs([job("a1")]), "ff")


@pytest.mark.parametrize("typed", ["", "../x", "a/b", "a?b=1", "a b", "a" * 33, "ä", "%2e"])
async def test_a_malformed_job_id_is_wrong_usage(typed: str) -> None:
    with pytest.raises(UsageError, match="is not the id of a job"):
        await whole_id(Jobs([job("a1")]), typed)


@pytest.mark.parametrize(
    ("states", "owner", "limit", "expected"),
    [
        ([], "", 100, ["e", "d", "c", "b", "a"]),
        ([], "", 2, ["e", "d"]),
        (["failed"], "", 100, ["d", "b"]),
        (["failed"], "", 1, ["d"]),
        (["active"], "", 100, ["e", "a"]),
        (["ended"], "bob", 100, ["b"]),
        (["FAILED", "canceled"], "ada", 100, ["d", "c"]),
        ([], "nobody", 100, []),
    ],
)
async def test_job_list_is_filtered_across_its_pages(
    states: list[str], owner: str, limit: int, expected: list[str]
) -> None:
    jobs = [job("e"), job("d", "FAILED"), job("c", "CANCELED"), job("b", "FAILED", "bob"), job("a", "CREATED", "bob")]
    found = await latest_jobs(Jobs(jobs), wanted_states(states), owner, limit)
    assert [each["id"].rstrip("0") for each in found] == expected


async def test_a_limited_job_list_requests_only_the_jobs_it_shows() -> None:
    client = Jobs([job(f"{number:02}") for number in range(50)], page=1000)
    assert len(await latest_jobs(client, frozenset(), "", 5)) == 5
    assert client.asked == [{"limit": 5}]


def test_an_unknown_job_state_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="'runing' is not a state") as refused:
        wanted_states(["failed", "runing"])
    assert "active, ended" in str(refused.value)


@dataclass
class Logs:
    """Fakes the logs of one job in the REST API.

    Cuts them as :func:`sluice.runtime.node.log_files.read_log` does.
    """

    logs: dict[str, bytes]
    job: dict[str, Any] = field(default_factory=lambda: {"state": "FINISHED", "attempt": 1})
    read: int = 0

    async def get(self, path: str, **query: str | int) -> Any:
        if path == f"/v1/jobs/{JOB}":
            return dict(self.job)
        assert path == f"/v1/jobs/{JOB}/logs"
        content, offset, limit = self.logs.get(str(query["source"]), b""), int(query["offset"]), int(query["limit"])
        data = content[offset : offset + limit]
        if offset + len(data) < len(content):
            data = _whole_characters(data)
        self.read += len(data)
        after = offset + len(data)
        return {"data": data.decode(errors="replace"), "next_offset": after, "end": after >= len(content)}


async def test_a_long_log_is_read_completely() -> None:
    content = "zeile ä\n".encode() * 100_000
    log = JobLog(Logs({"driver.stderr": content}), JOB, "driver.stderr")
    assert "".join([piece async for piece in log.pieces()]).encode() == content


@pytest.mark.parametrize("lines", [0, 1, 2, 100])
@pytest.mark.parametrize("content", [b"", b"a", b"a\n", b"a\nb", b"a\nb\n", b"\n\n\n", "ä\nö\nü".encode()])
async def test_tail_of_a_short_log_has_its_last_lines(content: bytes, lines: int) -> None:
    expected = content.decode().splitlines(keepends=True)[-lines:] if lines else []
    assert await JobLog(Logs({"x": content}), JOB, "x").tail(lines) == ("".join(expected), len(content))


@given(st.lists(st.text(alphabet="aäß€😀", max_size=30000), max_size=12), st.integers(0, 14), st.booleans())
async def test_tail_of_an_arbitrary_log_has_its_last_lines(parts: list[str], lines: int, ends: bool) -> None:
    content = ("\n".join(parts) + "\n" * ends).encode()
    expected = content.decode().splitlines(keepends=True)[-lines:] if lines else []
    assert await JobLog(Logs({"x": content}), JOB, "x").tail(lines) == ("".join(expected), len(content))


async def test_tail_of_a_long_log_reads_only_its_end() -> None:
    content = b"0123456789abcde\n" * (4 << 20)  # 64 MiB
    client = Logs({"x": content})
    text, after = await JobLog(client, JOB, "x").tail(3)
    assert (text, after) == ("0123456789abcde\n" * 3, len(content))
    assert client.read <= 2 * TAIL_BLOCK_BYTES


def followed(client: Logs, *steps: Callable[[], None], source: str = "driver.stderr") -> JobLog:
    """Return a log that is followed; each pause runs the next step."""
    left = list(steps)

    async def pause(_: float) -> None:
        left.pop(0)()

    return JobLog(client, JOB, source, pause)


async def test_a_followed_log_is_read_until_the_job_ends() -> None:
    name = "attempt-1.driver.stderr"
    client = Logs({name: b"one\n"}, {"state": "RUNNING", "attempt": 1})

    def grow() -> None:
        client.logs[name] += b"two\n"

    def end() -> None:
        client.logs[name] += b"three\n"
        client.job["state"] = "FAILED"

    log = followed(client, grow, lambda: None, end)
    assert [piece async for piece in log.follow()] == ["one\n", "two\n", "three\n"]
    assert [piece async for piece in followed(client).follow(4)] == ["two\nthree\n"]


async def test_a_followed_driver_log_continues_with_the_next_attempts() -> None:
    client = Logs({"attempt-1.driver.stderr": b"first\n"}, {"state": "RUNNING", "attempt": 1})

    def again() -> None:
        client.logs["attempt-1.driver.stderr"] += b"its end\n"
        client.logs["attempt-2.driver.stderr"] = b"second\n"
        client.logs["attempt-3.driver.stderr"] = b"third\n"
        client.job.update(attempt=3, state="FINISHED")

    assert [piece async for piece in followed(client, again).follow()] == [
        "first\n",
        "its end\n",
        "second\n",
        "third\n",
    ]


async def test_a_followed_executor_log_does_not_continue_with_another_attempt() -> None:
    client = Logs({"executor-1.stderr": b"one\n"}, {"state": "RUNNING", "attempt": 1})

    def end() -> None:
        client.job.update(attempt=2, state="CANCELED")

    log = followed(client, end, source="executor-1.stderr")
    assert [piece async for piece in log.follow()] == ["one\n"]
