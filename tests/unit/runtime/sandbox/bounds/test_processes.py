"""Reading the process table, whatever names the processes give themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.runtime.sandbox.bounds.processes import Process, ProcessTable, has_swap, memory_bytes

PAGES = 10
MIB = 1 << 20


def put(proc: Path, pid: int, parent: int, *, name: str = "python", tasks: int = 1, rollup: str = "") -> None:
    """Add a process in the form the kernel shows it; fields as in proc_pid_stat(5)."""
    directory = proc / str(pid)
    directory.mkdir(parents=True)
    fields = ["S", str(parent), *["0"] * 15, str(tasks), "0", "77", "0", str(PAGES), "18446744073709551615"]
    (directory / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
    (directory / "status").write_text(
        f"Name:\t{name}\nRssAnon:\t    4096 kB\nRssFile:\t    900 kB\nRssShmem:\t   1024 kB\nVmSwap:\t    1024 kB\n"
    )
    if rollup:
        (directory / "smaps_rollup").write_text(rollup)


ROLLUP = (
    "5d1a-7ffd ---p 00000000 00:00 0    [rollup]\nRss:   9000 kB\nPss:   3000 kB\nPss_Anon:   2048 kB\n"
    "Pss_File:   700 kB\nPss_Shmem:   1024 kB\nSwap:    9 kB\nSwapPss:    1024 kB\n"
)


def test_the_process_table_finds_all_descendants_of_a_process(tmp_path: Path) -> None:
    for pid, parent in ((1, 0), (10, 1), (11, 10), (12, 11), (20, 1), (21, 20)):
        put(tmp_path, pid, parent, tasks=2)
    (tmp_path / "self").mkdir()
    (tmp_path / "meminfo").write_text("SwapTotal:             0 kB\n")
    table = ProcessTable.read(tmp_path)
    assert {each.pid for each in table.below(10)} == {10, 11, 12}
    assert sum(each.tasks for each in table.below(10)) == 6
    assert table.below(999) == []
    assert not has_swap(tmp_path)


@pytest.mark.parametrize("name", ["a b c", ") S 1 1 1", "x) R 7 (y", "\N{SNOWMAN}", "((("])
def test_unusual_process_names_do_not_break_the_process_table(tmp_path: Path, name: str) -> None:
    put(tmp_path, 10, 1)
    put(tmp_path, 11, 10, name=name, tasks=5)
    assert sum(each.tasks for each in ProcessTable.read(tmp_path).below(10)) == 6


def test_a_process_that_ended_during_the_read_is_left_out(tmp_path: Path) -> None:
    put(tmp_path, 10, 1)
    (tmp_path / "11").mkdir()
    assert [each.pid for each in ProcessTable.read(tmp_path).below(10)] == [10]


def test_exact_memory_is_read_only_when_resident_memory_may_exceed_the_limit(tmp_path: Path) -> None:
    put(tmp_path, 10, 1, rollup=ROLLUP)
    processes = [Process(10, 1, 1, 9 * MIB)]
    assert memory_bytes(processes, 9 * MIB, swaps=False, proc=tmp_path) == 9 * MIB
    assert memory_bytes(processes, 8 * MIB, swaps=False, proc=tmp_path) == 4 * MIB
    assert memory_bytes(processes, 9 * MIB, swaps=True, proc=tmp_path) == 4 * MIB


def test_a_process_with_an_unreadable_memory_map_is_charged_with_all_shared_memory(tmp_path: Path) -> None:
    put(tmp_path, 10, 1)
    assert memory_bytes([Process(10, 1, 1, 9 * MIB)], 1, swaps=False, proc=tmp_path) == 6 * MIB
