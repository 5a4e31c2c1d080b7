"""Jobs from submission to end on a cluster in this process.

Every connection is real; a small process takes the place of Spark.
"""

from __future__ import annotations

import os
import signal
import stat
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from sluice.gateway.config import AUTH_NAME
from sluice.pki.attestations.dsse import canonical
from sluice.pki.identities.directory import read_certificates
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.runtime.jobmanager.attempt.decisions import state_machine
from sluice.runtime.receipts.document import Predicate
from sluice.runtime.receipts.verification import verify_receipt
from sluice.runtime.rpc.errors import MethodNotFound
from sluice.runtime.spark.driver.spec import DriverSpec
from sluice.runtime.taskmanager.processes import executor as executor_process
from sluice.runtime.taskmanager.task_executor import TaskExecutor
from tests.assertions import AssertingGateway
from tests.hostile import TRUST_DOMAIN
from tests.integration.runtime.conftest import Cluster, eventually, until_gone
from tests.live_files import paths_below
from tests.processes import command_line, descendants


def left_of(cluster: Cluster, job_id: str) -> list[str]:
    """Names of everything kept of a job, logs included."""
    places = (cluster.home.blobs / job_id, *cluster.home.root.glob(f"work/*/jobs/{job_id}"))
    return sorted({path.name for place in places for path in paths_below(place) if path.is_file()})


async def test_a_job_runs_and_leaves_only_its_logs(cluster: Cluster) -> None:
    await cluster.start_taskmanager("tm-1")
    await cluster.start_taskmanager("tm-2")
    job_id = await cluster.submit(args=["--x", "y"])
    running = await cluster.until_running(job_id, 2)
    assert {each["taskmanager"] for each in running} == {"tm-1", "tm-2"}
    job = await cluster.until(job_id, "RUNNING")
    assert job["progress"]["tasks_finished"] == 3
    slots = [s for each in (await cluster.get("/v1/taskmanagers"))["taskmanagers"] for s in each["slots"]]
    assert sorted(slot["job_id"] for slot in slots) == ["", "", job_id, job_id]
    pids = [await cluster.pid(job_id, each) for each in running]

    cluster.flag.touch()
    job = await cluster.until(job_id, "FINISHED")
    assert job["failure"] is None
    assert list(job["timestamps"]) == ["INITIALIZING", "CREATED", "RUNNING", "FINISHED"]
    for pid in pids:
        await until_gone(pid)

    async def all_free() -> bool:
        overview = await cluster.get("/v1/overview")
        return bool(overview["slots_available"] == 4 and overview["jobs_finished"] == 1)

    await eventually(all_free, "all slots are free again")

    async def cleaned() -> bool:
        expected = ["driver.agent.log", "driver.stdout", "stderr", "stdout"]
        return left_of(cluster, job_id) == expected

    await eventually(cleaned, "only logs are left")
    logs = await cluster.get(f"/v1/jobs/{job_id}/logs?source=driver.stdout")
    assert "args ['--x', 'y']" in logs["data"]
    assert "executor-2.stderr" in (await cluster.get(f"/v1/jobs/{job_id}/logs"))["logs"]


async def test_executors_that_start_together_yield_the_cpu_to_the_first_for_a_while(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_process, "GIVE_WAY_SECONDS", 3.0)
    await cluster.start_taskmanager("tm-1")
    await cluster.start_taskmanager("tm-2")
    job_id = await cluster.submit()
    first, second = sorted(await cluster.until_running(job_id, 2), key=lambda each: int(each["id"]))
    pids = [await cluster.pid(job_id, each, silent=True) for each in (first, second)]

    async def yields() -> bool:
        return [os.sched_getscheduler(each) for each in pids] == [os.SCHED_OTHER, os.SCHED_IDLE]

    await eventually(yields, "the second one yields to the first")

    async def alike() -> bool:
        return os.sched_getscheduler(pids[1]) == os.SCHED_OTHER

    await eventually(alike, "the second one has its usual share")
    cluster.flag.touch()
    await cluster.until(job_id, "FINISHED")


async def test_a_taskmanager_without_the_give_way_method_still_runs_the_job(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of the previous release, which answers that it has no such method."""

    async def unknown(self: TaskExecutor, job_id: str, executor_id: int) -> None:
        raise MethodNotFound(f"{type(self).__name__} has no give_way for executor {executor_id} of {job_id}")

    monkeypatch.setattr(TaskExecutor, "give_way", unknown)
    await cluster.start_taskmanager("tm-1")
    await cluster.start_taskmanager("tm-2")
    job_id = await cluster.submit()
    await cluster.until_running(job_id, 2)
    cluster.flag.touch()
    assert (await cluster.until(job_id, "FINISHED"))["failure"] is None


async def test_the_connections_of_a_job_are_shown_with_both_identities_also_after_its_end(cluster: Cluster) -> None:
    await cluster.start_taskmanager("tm-1")
    job_id = await cluster.submit()
    for executor in await cluster.until_running(job_id, 2):
        await cluster.pid(job_id, executor)  # it has left its evidence
    cluster.flag.touch()
    await cluster.until(job_id, "FINISHED")
    connections = (await cluster.get(f"/v1/jobs/{job_id}/connections"))["connections"]
    driver = f"spiffe://sluice.local/job/{job_id}/driver"
    seen = {(each["channel"], each["peer"], each["direction"]) for each in connections}
    assert {("rpc", driver, "accepted"), ("blob", driver, "accepted")} <= seen
    assert {each["local"] for each in connections if each["channel"] == "data"} == {f"{job_id}/1", f"{job_id}/2"}
    assert {each["protocol"] for each in connections} == {"TLSv1.3"}
    everything = (await cluster.get("/v1/connections"))["connections"]
    assert ("spiffe://sluice.local/taskmanager/tm-1", "accepted") in {(c["peer"], c["direction"]) for c in everything}
    assert ("spiffe://sluice.local/jobmanager/jm-1", "dialed") in {(c["peer"], c["direction"]) for c in everything}
    await check_receipts(cluster, job_id, driver)


async def check_receipts(cluster: Cluster, job_id: str, driver: str) -> None:
    """Check the receipts of an ended job, before and after a change of leader.

    They must verify and contain what the JobManager observed.
    """
    directory = cluster.home.identity(Role.AUTH, AUTH_NAME)
    cluster.pki.issuer.issue_to(directory, SpiffeId.process(TRUST_DOMAIN, Role.AUTH, AUTH_NAME))
    anchors = read_certificates(directory / "ca.pem")

    async def issued() -> Predicate:
        status, document = await cluster.call("POST", f"/v1/jobs/{job_id}/receipts", json={})
        assert status == 200, document
        return verify_receipt(canonical(document), anchors).statement.predicate

    first = await issued()
    executors = [f"{driver.removesuffix('driver')}executor/{number}" for number in (1, 2)]
    assert sorted(each.identity for each in first.processes.listed) == [driver, *executors]
    assert {(each.taskmanager, each.certificates, each.attempt) for each in first.processes.listed} == {("tm-1", 1, 1)}
    assert {each.isolation for each in first.processes.listed} == {cluster.config.isolation.level.value}
    assert {(each.channel, each.dialer) for each in first.connections.listed} == {("rpc", driver), ("blob", driver)}
    # What an executor has written into its own file is nobody's word but its own.
    claimed = {each.dialer for each in first.reported_by_job.connections.listed}
    assert claimed == {f"{job_id}/1", f"{job_id}/2"}
    assert first.submission.decision is not None
    assert (first.submission.principal, first.submission.decision.request_id) == ("ada", "request-1")
    await cluster.master.aclose()
    cluster.master = AsyncExitStack()
    await cluster.start_jobmanager()
    await cluster.until(job_id, "FINISHED")
    second = await issued()
    assert (second.processes, second.connections) == (first.processes, first.connections)
    assert not second.egress.complete, "it was told of nothing while another one led"


async def test_a_killed_executor_is_replaced_and_reported_to_the_driver_and_the_job_finishes(cluster: Cluster) -> None:
    await cluster.start_taskmanager("tm-1")
    job_id = await cluster.submit()
    victim, survivor = await cluster.until_running(job_id, 2)
    os.kill(await cluster.pid(job_id, victim), signal.SIGKILL)
    both = await cluster.until_running(job_id, 2, excluding=[victim["id"]])
    assert {each["id"] for each in both} == {survivor["id"], 3}
    job = await cluster.job(job_id)
    assert [each["exit_reason"] for each in job["executors"] if each["id"] == victim["id"]] == ["killed by SIGKILL"]

    async def told() -> bool:
        log = await cluster.get(f"/v1/jobs/{job_id}/logs?source=driver.stdout")
        return f"executor {victim['id']} exited: killed by SIGKILL" in log["data"]

    await eventually(told, "the driver was told")
    cluster.flag.touch()
    await cluster.until(job_id, "FINISHED")


async def test_executors_of_a_lost_taskmanager_are_replaced_on_another_one(cluster: Cluster) -> None:
    await cluster.start_driver_host()
    await cluster.start_taskmanager("tm-1", driver_slots=0)
    job_id = await cluster.submit()
    first = await cluster.until_running(job_id, 2)
    await cluster.start_taskmanager("tm-2", driver_slots=0)
    await cluster.stop_taskmanager("tm-1")
    both = await cluster.until_running(job_id, 2, excluding=[each["id"] for each in first])
    assert {each["taskmanager"] for each in both} == {"tm-2"}
    cluster.flag.touch()
    job = await cluster.until(job_id, "FINISHED")
    assert {e["exit_reason"] for e in job["executors"] if e["taskmanager"] == "tm-1"} == {"TaskManager tm-1 is lost"}


async def test_a_job_without_slots_shows_the_reason_and_runs_once_there_are_slots(cluster: Cluster) -> None:
    job_id = await cluster.submit()

    async def reason() -> str:
        return str((await cluster.job(job_id))["pending_reason"])

    assert await eventually(reason, "a reason is shown") == "no slot for its driver: no TaskManager is registered"
    await cluster.start_driver_host()

    async def without_executors() -> bool:
        return (await reason()).startswith("0 of 2 slots: no TaskManager has 1 cores and 768 MiB")

    await eventually(without_executors, "it has its driver, and wants executors")
    await cluster.start_taskmanager("tm-1", driver_slots=0)
    await cluster.until_running(job_id, 2)

    async def no_reason() -> bool:
        return not await reason()

    await eventually(no_reason, "the reason is gone")


async def test_two_jobs_share_the_slots_and_the_second_waits(cluster: Cluster) -> None:
    await cluster.start_taskmanager("tm-1")
    first = await cluster.submit()
    await cluster.until_running(first, 2)
    second = await cluster.submit()
    await cluster.until(second, "RUNNING")

    async def waits() -> bool:
        return "in use" in (await cluster.job(second))["pending_reason"]

    await eventually(waits, "the second job says what it waits for")
    await cluster.call("PATCH", f"/v1/jobs/{first}?mode=cancel")
    await cluster.until_running(second, 2)


async def test_cancel_ends_driver_and_executors(cluster: Cluster) -> None:
    await cluster.start_taskmanager("tm-1")
    job_id = await cluster.submit()
    pids = [await cluster.pid(job_id, each) for each in await cluster.until_running(job_id, 2)]
    assert await cluster.call("PATCH", f"/v1/jobs/{job_id}?mode=cancel") == (202, {})
    job = await cluster.until(job_id, "CANCELED")
    assert job["failure"] is None
    for pid in pids:
        await until_gone(pid)
    status, problem = await cluster.call("PATCH", f"/v1/jobs/{job_id}?mode=cancel")
    assert (status, problem["title"]) == (409, "Conflict")


async def test_a_driver_that_ignores_cancel_is_killed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_machine, "CANCEL_MARGIN_SECONDS", 0.2)
    monkeypatch.setattr(state_machine, "KILL_GRACE_SECONDS", 0.2)
    job_id = await cluster.submit(end="ignore-cancel", executors=0)

    async def deaf() -> bool:
        return "deaf" in (await cluster.get(f"/v1/jobs/{job_id}/logs?source=driver.stdout"))["data"]

    await eventually(deaf, "the driver does not listen any more")
    await cluster.call("PATCH", f"/v1/jobs/{job_id}?mode=cancel")
    await cluster.until(job_id, "CANCELED")


async def test_a_job_is_cancelled_before_its_driver_is_up(cluster: Cluster) -> None:
    job_id = await cluster.submit()
    await cluster.call("PATCH", f"/v1/jobs/{job_id}?mode=cancel")
    await cluster.until(job_id, "CANCELED")


async def test_a_failing_pipeline_fails_the_job_with_its_traceback(cluster: Cluster) -> None:
    job_id = await cluster.submit(end="fail", executors=0)
    job = await cluster.until(job_id, "FAILED")
    assert job["failure"] == {"error": "KeyError: 'x'", "traceback": "Traceback …\nKeyError: 'x'"}


async def test_a_driver_that_dies_without_reporting_its_result_fails_the_job(cluster: Cluster) -> None:
    await cluster.start_taskmanager("tm-1")
    job_id = await cluster.submit(end="crash")
    job = await cluster.until(job_id, "FAILED")
    assert "without reporting its result: killed by SIGKILL" in job["failure"]["error"]


async def test_executors_that_cannot_start_exhaust_the_budget_and_fail_the_job(cluster: Cluster) -> None:
    await cluster.start_taskmanager("tm-1", behaviour="fail")
    job_id = await cluster.submit()
    job = await cluster.until(job_id, "FAILED")
    assert "executors ended by themselves within an hour, the last one: exit code 7" in job["failure"]["error"]
    entries = (await cluster.get(f"/v1/jobs/{job_id}/exceptions"))["exceptions"]
    assert [entry["ended_attempt"] for entry in entries][-1:] == [True]
    assert {entry["recovered"] for entry in entries} == {False}, "the job got over none of them"


async def test_a_submission_with_a_forbidden_setting_is_refused_by_name(cluster: Cluster) -> None:
    form = aiohttp.FormData()
    form.add_field("request", '{"spark_conf": {"spark.executor.extraJavaOptions": "-Dx"}}')
    form.add_field("pipeline", b"{}", filename="p.json")
    status, problem = await cluster.call("POST", "/v1/jobs", data=form)
    assert status == 400
    assert "spark.executor.extraJavaOptions" in problem["detail"]
    assert not [path for path in cluster.home.blobs.rglob("*") if path.is_file()]
    assert [path.name for path in cluster.home.blobs.iterdir()] == ["shared"]


async def test_a_job_trimmed_from_the_list_stays_in_the_history_with_its_log_under_the_next_leader(
    cluster: Cluster,
) -> None:
    jobs = []
    for _ in range(4):
        jobs.append(await cluster.submit(end="fail", executors=0))
        await cluster.until(jobs[-1], "FAILED")

    async def trimmed() -> bool:
        return [each["id"] for each in (await cluster.get("/v1/jobs"))["jobs"]] == jobs[:0:-1]

    async def all_kept() -> bool:
        return [each["id"] for each in (await cluster.get("/v1/history"))["jobs"]] == jobs[::-1]

    await eventually(trimmed, "the oldest job is not in the list any more")
    await eventually(all_kept, "all are in the history")
    job_id, path = jobs[0], f"/v1/jobs/{jobs[0]}"
    shown = [await cluster.get(path + each) for each in ("", "/logs", "/stages", "/exceptions", "/connections")]
    log = await cluster.get(f"{path}/logs?source=driver.stdout")
    assert "args" in log["data"]
    assert shown[0]["failure"] is not None
    assert (await cluster.call("PATCH", f"{path}?mode=cancel"))[0] == 409
    page = f"/ui/jobs/{job_id}"
    connector = aiohttp.UnixConnector(str(cluster.home.sockets / "rest.sock"))
    headers = AssertingGateway(cluster.home).headers("GET", page)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get(f"http://rest{page}", headers=headers) as answer,
    ):
        assert (answer.status, job_id in await answer.text()) == (200, True)

    await cluster.master.aclose()
    await cluster.stop_taskmanager("tm-drivers")  # and all that it had of their logs
    cluster.master = AsyncExitStack()
    await cluster.start_jobmanager()
    assert await cluster.get(path) == shown[0]
    assert (await cluster.get(f"{path}/stages"), await cluster.get(f"{path}/exceptions")) == (shown[2], shown[3])
    for each in (job_id, jobs[3]):  # of the history alone, and of the list
        assert "args" in (await cluster.get(f"/v1/jobs/{each}/logs?source=driver.stdout"))["data"]
    assert await all_kept()


@pytest.mark.parametrize(
    "source", ["driver.stdout/../../../../etc/passwd", "executor-99.stdout", "executor-1.core", "x"]
)
async def test_a_log_source_outside_of_the_job_is_not_found(cluster: Cluster, source: str) -> None:
    job_id = await cluster.submit(end="fail", executors=0)
    status, _ = await cluster.call("GET", f"/v1/jobs/{job_id}/logs?source={source}")
    assert status == 404
    await cluster.until(job_id, "FAILED")


async def test_secrets_are_private_while_a_job_runs(cluster: Cluster) -> None:
    await cluster.start_taskmanager("tm-1")
    job_id = await cluster.submit()
    running = await cluster.until_running(job_id, 2)
    for executor in running:
        await cluster.pid(job_id, executor)
    spec = cluster.driver_directory(job_id) / "driver.json"
    token = DriverSpec.read(spec).jobmaster_token
    secrets = [spec, *cluster.home.root.glob(f"work/*/jobs/{job_id}/*/work/settings"), *_keys(cluster.home.root)]
    assert len(secrets) >= 6
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}
    for process in descendants(os.getpid()):
        assert token not in " ".join(command_line(process))


def _keys(root: Path) -> list[Path]:
    return [*root.glob("work/*/jobs/*/*/identity/key.pem")]
