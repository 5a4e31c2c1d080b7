"""Two JobManagers, as on two machines, with a real ensemble.

The leader is killed, paused or stopped while a job runs.
"""

from __future__ import annotations

import signal
import time

from tests.system.ha.conftest import SESSION_SECONDS
from tests.system.ha.ensemble import Ensemble
from tests.system.ha.test_embedded import _ran
from tests.system.ha.world import World, eventually

TAKEOVER_SECONDS = 15.0


async def both(machines: World) -> None:
    """Start both; jm-1 leads."""
    machines.start("jm-1")
    await machines.until_up("jm-1")
    machines.start("jm-2")
    await machines.until_up("jm-2")
    await machines.start_taskmanager("tm-1", jobmanagers=machines.rpc_addresses)


async def leader_seen_by(machines: World, name: str) -> str:
    """Return the identity of the JobManager that answers a request sent to ``name``."""
    status, document = await machines.call(name, "GET", "/v1/overview")
    return str(document["jobmanager"]) if status == 200 else ""


async def leads_with(machines: World, name: str, standbys: list[str]) -> bool:
    """Return whether jm-2 reports ``name`` as the leader, with these standbys."""
    status, document = await machines.call("jm-2", "GET", "/v1/leader")
    return status == 200 and (document["name"], document["standbys"]) == (name, standbys)


async def test_a_standby_forwards_to_the_leader_and_takes_over_when_it_is_killed(
    machines: World, ensemble: Ensemble
) -> None:
    await both(machines)
    assert (await leader_seen_by(machines, "jm-2")).endswith("/jm-1")
    job_id = await machines.submit(home="jm-2")
    assert [each["id"] for each in await machines.jobs("jm-1")] == [job_id]
    await eventually(lambda: _ran(machines, [1]), "the pipeline runs")
    await eventually(lambda: leads_with(machines, "jm-1", ["jm-2"]), "the standby is seen")

    killed_at = time.monotonic()
    machines.masters["jm-1"].kill()
    ensemble.kill(1)

    async def taken_over() -> bool:
        return (await leader_seen_by(machines, "jm-2")).endswith("/jm-2")

    await eventually(taken_over, "jm-2 leads")
    assert time.monotonic() - killed_at < TAKEOVER_SECONDS
    await machines.until(job_id, "RUNNING", home="jm-2")
    machines.flag.touch()
    await machines.until(job_id, "FINISHED", home="jm-2")
    assert machines.runs() == [1]
    ensemble.start_server(1)

    machines.start("jm-1")
    await machines.until_up("jm-1")
    job = await machines.until(job_id, "FINISHED", home="jm-1")
    assert job["attempt"] == 1
    assert (await leader_seen_by(machines, "jm-1")).endswith("/jm-2")
    await eventually(lambda: leads_with(machines, "jm-2", ["jm-1"]), "the one that came back stands by")


async def test_a_paused_leader_does_nothing_after_it_wakes_up(machines: World) -> None:
    """Its process is paused for longer than its session: it leads no more; there is one driver at a time. The driver
    continues under the other leader if it finds that one within its lease; otherwise it has ended by then.
    """
    await both(machines)
    job_id = await machines.submit(home="jm-1")
    await eventually(lambda: _ran(machines, [1]), "the pipeline runs")
    machines.masters["jm-1"].kill(signal.SIGSTOP)
    await machines.until(job_id, "RUNNING", home="jm-2")
    machines.masters["jm-1"].kill(signal.SIGCONT)

    async def standing_by() -> bool:
        return (await leader_seen_by(machines, "jm-1")).endswith("/jm-2")

    await eventually(standing_by, "jm-1 stands by", 4 * SESSION_SECONDS)
    machines.flag.touch()
    job = await machines.until(job_id, "FINISHED", home="jm-1")
    assert machines.runs() == list(range(1, job["attempt"] + 1))


async def test_an_orderly_stop_hands_leadership_over_at_once(machines: World) -> None:
    await both(machines)
    job_id = await machines.submit(home="jm-1")
    await eventually(lambda: _ran(machines, [1]), "the pipeline runs")
    process = machines.masters["jm-1"].process
    assert process is not None
    machines.masters["jm-1"].kill(signal.SIGTERM)
    await machines.until(job_id, "RUNNING", home="jm-2")
    machines.flag.touch()
    await machines.until(job_id, "FINISHED", home="jm-2")
    assert machines.runs() == [1]
