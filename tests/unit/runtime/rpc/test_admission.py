"""Tables of who may call what, including the calls that must be refused."""

from __future__ import annotations

from typing import Any, Protocol

import pytest

from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.runtime import gateways
from sluice.runtime.jobmanager import gateways as internal
from sluice.runtime.rpc import (
    CallNotPermitted,
    ContractError,
    FencingTokenMismatch,
    MethodNotFound,
    rpc,
)
from sluice.runtime.rpc.admission import check_caller, check_token, find_method
from sluice.runtime.rpc.call import Caller
from sluice.runtime.rpc.contract import Method, gateway_of

TD = "sluice.local"
JOB = "a" * 32
OTHER = "b" * 32
JOBMANAGER = SpiffeId.process(TD, Role.JOBMANAGER, "jm")
TASKMANAGER = SpiffeId.process(TD, Role.TASKMANAGER, "tm")
WORKER = SpiffeId.process(TD, Role.SHUFFLE_WORKER, "w")
OWN_DRIVER = SpiffeId.driver(TD, JOB)
OTHER_DRIVER = SpiffeId.driver(TD, OTHER)
OWN_EXECUTOR = SpiffeId.executor(TD, JOB, 1)
USER = SpiffeId.process(TD, Role.USER, "eve")
EVERYONE = (JOBMANAGER, TASKMANAGER, WORKER, OWN_DRIVER, OTHER_DRIVER, OWN_EXECUTOR, USER)


class Sample(Protocol):
    @rpc(allow={Role.TASKMANAGER})
    async def fenced(self) -> None: ...

    @rpc(allow={Role.TASKMANAGER}, unfenced=True)
    async def unfenced(self) -> None: ...

    @rpc(allow={Role.DRIVER, Role.TASKMANAGER}, own_job=True)
    async def own(self) -> None: ...


SAMPLE = gateway_of(Sample)

OWN_JOB_ONLY = {
    "register_driver",
    "spark_started",
    "set_executor_targets",
    "kill_executors",
    "report_progress",
    "driver_succeeded",
    "driver_finished",
}


@pytest.mark.parametrize(
    ("protocol", "name", "admitted"),
    [
        *((gateways.JobMasterGateway, name, {OWN_DRIVER}) for name in sorted(OWN_JOB_ONLY)),
        (gateways.JobMasterGateway, "offer_slot", {TASKMANAGER}),
        (gateways.JobMasterGateway, "sign_executor_identity", {TASKMANAGER}),
        (gateways.ResourceManagerGateway, "register", {TASKMANAGER}),
        (gateways.ResourceManagerGateway, "heartbeat", {TASKMANAGER}),
        (gateways.TaskExecutorGateway, "launch_executor", {JOBMANAGER}),
        (gateways.DriverGateway, "cancel", {JOBMANAGER}),
    ],
)
def test_exactly_the_listed_identities_may_call_a_method(protocol: type, name: str, admitted: set[SpiffeId]) -> None:
    method = gateway_of(protocol).methods[name]
    assert {caller for caller in EVERYONE if _may_call(method, caller)} == admitted


def _may_call(method: Method, caller: SpiffeId) -> bool:
    try:
        check_caller(method, Caller(caller), endpoint="e", job_id=JOB)
    except CallNotPermitted:
        return False
    return True


@pytest.mark.parametrize(
    ("caller", "job_id", "allowed"),
    [
        pytest.param(OWN_DRIVER, JOB, True, id="own"),
        pytest.param(OTHER_DRIVER, JOB, False, id="other"),
        pytest.param(OWN_DRIVER, "", False, id="endpoint-of-no-job"),
        pytest.param(TASKMANAGER, JOB, False, id="caller-of-no-job"),
        pytest.param(TASKMANAGER, "", False, id="neither-has-a-job"),
    ],
)
def test_a_method_for_the_own_job_refuses_callers_of_another_job(caller: SpiffeId, job_id: str, allowed: bool) -> None:
    method = SAMPLE.methods["own"]
    if allowed:
        check_caller(method, Caller(caller), endpoint="e", job_id=job_id)
    else:
        with pytest.raises(CallNotPermitted, match="another job"):
            check_caller(method, Caller(caller), endpoint="e", job_id=job_id)


INTERNAL = (internal.DispatcherGateway, internal.ResourceManagerInternalGateway, internal.JobMasterInternalGateway)


@pytest.mark.parametrize("protocol", INTERNAL)
def test_internal_methods_of_the_jobmanager_refuse_peers_even_with_its_own_certificate(
    protocol: type,
) -> None:
    """These endpoints serve only TaskManagers, the driver of the job, or this process itself."""
    for name, method in gateway_of(protocol).methods.items():
        assert Role.JOBMANAGER not in method.rules.allow, name
        if method.rules.local:
            assert not any(_may_call(method, caller) for caller in EVERYONE), name
            check_caller(method, Caller(JOBMANAGER, local=True), endpoint="e", job_id=JOB)
        else:
            assert method.rules.allow <= {Role.TASKMANAGER, Role.DRIVER}, name


@pytest.mark.parametrize("rules", [{"allow": {Role.JOBMANAGER}, "local": True}, {"own_job": True, "local": True}, {}])
def test_a_method_is_either_for_peers_or_local(rules: dict[str, Any]) -> None:
    with pytest.raises(ContractError):
        rpc(**rules)


@pytest.mark.parametrize("name", ["", "__init__", "missing", "on_start", "Fenced"])
def test_an_undeclared_method_is_not_found(name: str) -> None:
    with pytest.raises(MethodNotFound):
        find_method(SAMPLE, name, "e")


@pytest.mark.parametrize(
    ("method", "expected", "given", "reason"),
    [
        pytest.param("fenced", b"a", b"a", "", id="current"),
        pytest.param("fenced", b"a", b"b", "another leader", id="stale"),
        pytest.param("fenced", b"a", b"aa", "another leader", id="longer"),
        pytest.param("fenced", b"a", b"", "another leader", id="empty"),
        pytest.param("fenced", b"a", None, "got none", id="missing"),
        pytest.param("fenced", None, b"a", "not the leader", id="no-leader"),
        pytest.param("fenced", None, None, "not the leader", id="no-leader-no-token"),
        pytest.param("unfenced", b"a", None, "", id="unfenced-without"),
        pytest.param("unfenced", b"a", b"b", "", id="unfenced-with-any"),
        pytest.param("unfenced", None, None, "", id="unfenced-no-leader"),
    ],
)
def test_fenced_methods_need_the_current_token_and_unfenced_methods_accept_any(
    method: str, expected: bytes | None, given: bytes | None, reason: str
) -> None:
    if not reason:
        check_token(SAMPLE.methods[method], endpoint="e", expected=expected, given=given)
        return
    with pytest.raises(FencingTokenMismatch, match=reason):
        check_token(SAMPLE.methods[method], endpoint="e", expected=expected, given=given)


def test_a_fencing_refusal_never_shows_a_token() -> None:
    with pytest.raises(FencingTokenMismatch) as caught:
        check_token(SAMPLE.methods["fenced"], endpoint="e", expected=b"expected-token", given=b"given-token")
    assert "-token" not in str(caught.value)
