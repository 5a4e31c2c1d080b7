"""Containers are killed and networks are cut while a job runs.

Each service that has a spare, or that may be absent for a while, fails in turn.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from sluice.runtime.processes.zookeeper import QUORUM_PORT
from tests.compose.engine import CUT_OFF, KILLED, ROOT, Stack, eventually
from tests.compose.jobs import (
    ONE_FAULT_SECONDS,
    TOTAL,
    TWO_FAULTS_SECONDS,
    driver_place,
    finished_tasks,
    goes_on,
    under_way,
)

pytestmark = pytest.mark.timeout(1500)


def all_registered(stack: Stack) -> bool:
    """Whether all TaskManagers are healthy; they are healthy once they are registered."""
    return all(stack.healthy(service) for service in stack.taskmanagers)


def test_a_job_submitted_through_the_gateway_reports_the_certificates_in_the_container(stack: Stack) -> None:
    job_id = stack.submit(ROOT / "pipelines" / "cert_inventory.py", "--format", "json")
    report = json.loads(stack.until_finished(job_id))
    assert report["certificates"] > 50
    assert report["bad_inputs"] == 0


@pytest.mark.parametrize("with_driver", [False, True], ids=["executors only", "driver too"])
def test_a_job_finishes_with_the_right_result_after_a_taskmanager_is_killed(
    stack: Stack, slow_sum: Path, with_driver: bool
) -> None:
    others = stack.starts()
    job_id = under_way(stack, slow_sum, "taskmanager-2", ONE_FAULT_SECONDS)
    place = driver_place(stack, job_id)
    killed = place if with_driver else next(each for each in stack.taskmanagers if each != place)
    before = stack.inspect(killed)["RestartCount"]

    stack.kill(killed)

    assert TOTAL in stack.until_finished(job_id)
    eventually(lambda: stack.inspect(killed)["RestartCount"] > before, "the engine has started it again")
    eventually(lambda: all_registered(stack), "it is registered again, with the identity it had")
    if with_driver:
        assert stack.job(job_id)["attempt"] == 2
    else:
        assert stack.job(job_id)["attempt"] == 1
        assert stack.job(job_id)["progress"]["executors_removed"] >= 1
    others.pop(killed)
    assert stack.starts(killed) == others


def test_a_job_finishes_with_the_right_result_after_shuffle_processes_are_killed(stack: Stack, slow_sum: Path) -> None:
    leader = stack.answered("/v1/shuffle")["service"]["manager"].rpartition("/")[2]
    killed = (leader, "shuffle-worker-1")
    others = stack.starts(*killed)
    job_id = under_way(stack, slow_sum, "taskmanager-1", ONE_FAULT_SECONDS)

    for service in killed:
        stack.kill(service)

    assert TOTAL in stack.until_finished(job_id)
    eventually(lambda: all(stack.healthy(service) for service in stack.shuffle), "all are there again")
    assert stack.starts(*killed) == others

    def settled() -> bool:
        service = stack.answered("/v1/shuffle")["service"]
        active = {worker["name"] for worker in service["workers"] if worker["state"] == "ACTIVE"}
        return active == {"shuffle-worker-1", "shuffle-worker-2"} and not service["jobs"]

    eventually(settled, "both workers take shuffles, and nothing of the job is left")


def test_a_job_finishes_with_the_right_result_after_the_leader_and_a_zookeeper_are_killed(
    stack: Stack, slow_sum: Path
) -> None:
    """The job continues under the other JobManager: its lease outlasts two successive elections."""
    before = leader(stack)
    zookeeper = leading_zookeeper(stack)
    others = stack.starts(before, zookeeper)
    job_id = under_way(stack, slow_sum, "taskmanager-1", ONE_FAULT_SECONDS)

    with stack.away(zookeeper, KILLED), stack.away(before, KILLED):
        after = eventually(lambda: {leader(stack)} - {before}, "the other JobManager leads").pop()
        assert TOTAL in stack.until_finished(job_id)

    assert leader(stack) == after
    job = stack.job(job_id)
    assert (job["state"], job["attempt"]) == ("FINISHED", 1)
    assert stack.starts(before, zookeeper) == others


def leader(stack: Stack) -> str:
    """Return the service of the leading JobManager."""
    name = str(stack.answered("/v1/leader")["name"])
    return "jobmanager" if name == "jobmanager-1" else name


def leading_zookeeper(stack: Stack) -> str:
    """Return the service of the leading ZooKeeper server: only the leader listens on the quorum port."""
    (found,) = (service for service in stack.zookeepers if QUORUM_PORT in stack.listening(service))
    return found


def test_a_job_finishes_with_the_right_result_after_a_taskmanager_is_cut_off(stack: Stack, slow_sum: Path) -> None:
    others = stack.starts()
    job_id = under_way(stack, slow_sum, "taskmanager-3", ONE_FAULT_SECONDS)
    place = driver_place(stack, job_id)

    with stack.cut_off(next(each for each in stack.taskmanagers if each != place)):
        assert TOTAL in stack.until_finished(job_id)

    assert stack.job(job_id)["progress"]["executors_removed"] >= 1
    eventually(lambda: all_registered(stack), "it is registered again")
    assert stack.starts() == others


def test_without_the_auth_service_requests_are_refused_and_everything_else_continues(
    stack: Stack, slow_sum: Path
) -> None:
    others = stack.starts("auth")
    job_id = under_way(stack, slow_sum, "taskmanager-1", TWO_FAULTS_SECONDS)
    jobs = stack.answered("/v1/jobs")

    for how in (KILLED, CUT_OFF):
        done = finished_tasks(stack, job_id)
        with stack.away("auth", how):
            for path in ("/v1/jobs", f"/v1/jobs/{job_id}", "/v1/overview"):
                for token in (True, False):
                    status, body = stack.request(path, token=token)
                    assert status == 503, (how, path, token, body)
            refused = stack.client("submit", slow_sum, "--", "0", check=False)
            assert refused.returncode != 0
            assert "cannot answer now" in refused.stderr
            for service in (*stack.jobmanagers, *stack.taskmanagers, "envoy", "envoy-agent", "ca"):
                assert stack.healthy(service), (how, service)
        # What was refused has left nothing behind, and the job did not notice.
        assert {job["id"] for job in stack.answered("/v1/jobs")["jobs"]} == {job["id"] for job in jobs["jobs"]}
        assert stack.job(job_id)["progress"]["tasks_finished"] > done  # it may have finished by now

    assert TOTAL in stack.until_finished(job_id)
    assert stack.job(job_id)["progress"]["executors_removed"] == 0
    assert stack.starts("auth") == others


@pytest.mark.parametrize("service", ["ca", "envoy-agent"])
def test_a_running_job_is_unaffected_while_the_ca_or_the_agent_is_away(
    stack: Stack, slow_sum: Path, service: str
) -> None:
    others = stack.starts(service)
    job_id = under_way(stack, slow_sum, "taskmanager-1", TWO_FAULTS_SECONDS)

    for how in (KILLED, CUT_OFF):
        with stack.away(service, how):
            done = finished_tasks(stack, job_id)
            eventually(partial(goes_on, stack, job_id, done), "the job goes on")

    assert TOTAL in stack.until_finished(job_id)
    assert stack.job(job_id)["progress"]["executors_removed"] == 0
    assert stack.starts(service) == others
