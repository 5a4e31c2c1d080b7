"""Which processes of a home are standbys: those that wait, not the leader or dead processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from sluice.runtime.ha.embedded import EmbeddedElection
from sluice.runtime.ha.standbys import StandbyFiles

STANDING_BY = """
import sys
from pathlib import Path
from sluice.runtime.ha.standbys import StandbyFiles

mark = StandbyFiles(Path(sys.argv[1])).add_mark("jm-9")
print(mark is not None, flush=True)
sys.stdin.read()
"""


async def test_a_waiting_process_is_listed_as_a_standby_until_it_leads_or_leaves(tmp_path: Path) -> None:
    one, two, three = (EmbeddedElection(tmp_path, name) for name in ("jm-1", "jm-2", "jm-3"))
    first = await one.elect(lambda: None)
    assert await one.standbys() == ()
    waiting = []
    for election in (three, two):
        standing_by = asyncio.Event()
        waiting.append(asyncio.create_task(election.elect(standing_by.set)))
        await asyncio.wait_for(standing_by.wait(), 10)
    assert await one.standbys() == ("jm-2", "jm-3")
    waiting[0].cancel()
    await asyncio.wait(waiting[:1])
    assert await one.standbys() == ("jm-2",)
    await first.resign()
    second = await asyncio.wait_for(waiting[1], 10)
    assert await two.standbys() == ()
    await second.resign()


def test_a_process_that_was_killed_does_not_stand_by(tmp_path: Path) -> None:
    files = StandbyFiles(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-c", STANDING_BY, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        assert files.names() == ("jm-9",)
        assert files.add_mark("jm-9") is None
        process.kill()
    assert files.names() == ()
    mark = files.add_mark("jm-9")
    assert mark is not None
    assert files.names() == ("jm-9",)
    mark.remove()
    assert list(tmp_path.iterdir()) == []
