"""Which job a pod belongs to, judged by its name and its namespace."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, strategies as st

from sluice.pki.attestation.config import PodAttestationConfig, PodIdentity, PodJobs
from sluice.pki.attestation.job_pods import driver_pod_name, executor_pod_prefix, job_pod_identity, new_pod_job_id
from sluice.pki.attestation.pods import Pod, attested
from sluice.pki.errors import EnrolmentRefused
from sluice.pki.spiffe_id import SpiffeId

UID = "00000000-0000-4000-8000-000000000001"
JOBS = PodJobs(namespace="spark", driver="spark", executor="spark-executor")
NAMESPACE = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)


def identity(account: str, name: str, *, namespace: str = "spark", jobs: tuple[PodJobs, ...] = (JOBS,)) -> SpiffeId:
    """Return the identity that a pod gets."""
    (grant,) = attested(Pod(namespace, account, name, UID), (), "td", jobs).grants
    return grant.names.spiffe_id


def test_a_pod_gets_the_job_identity_of_its_name() -> None:
    job = new_pod_job_id("spark")
    assert identity("spark", driver_pod_name(job)) == SpiffeId.driver("td", job)
    for number in (0, 1, 17):
        name = f"{executor_pod_prefix(job)}-exec-{number}"
        assert identity("spark-executor", name) == SpiffeId.executor("td", job, number)


@given(NAMESPACE, NAMESPACE)
def test_a_driver_pod_name_is_valid_only_in_its_own_namespace(ours: str, theirs: str) -> None:
    name = driver_pod_name(new_pod_job_id(ours))
    assert (job_pod_identity("td", theirs, name) is None) is (ours != theirs)


def test_ids_of_jobs_are_not_repeated() -> None:
    made = {new_pod_job_id("spark") for _ in range(200)}
    assert len(made) == 200
    assert all(len(each) == 32 for each in made)


@pytest.mark.parametrize("account", ["spark", "spark-executor", "default"])
@pytest.mark.parametrize(
    "name",
    ["{job}", "sluice-{job}", "sluice-{job}-exec-", "sluice-{job}-exec-01", "sluice-{job}-exec-1-x",
     "x-sluice-{job}-driver", "sluice-{job}-driver-svc", "sluice-{job}-driver\n",
     "sluice-0123456789abcdef0123456789abcdef-driver"],
)  # fmt: skip
def test_a_pod_with_another_name_gets_no_job_identity(account: str, name: str) -> None:
    with pytest.raises(EnrolmentRefused):
        identity(account, name.format(job=new_pod_job_id("spark")))


def test_a_service_account_gets_only_driver_or_only_executor_identities() -> None:
    job = new_pod_job_id("spark")
    with pytest.raises(EnrolmentRefused, match="is no executor"):
        identity("spark-executor", driver_pod_name(job))
    with pytest.raises(EnrolmentRefused, match="is no driver"):
        identity("spark", f"{executor_pod_prefix(job)}-exec-1")
    with pytest.raises(EnrolmentRefused, match="has no identity"):
        identity("default", driver_pod_name(job))
    with pytest.raises(EnrolmentRefused, match="has no identity"):
        identity("spark", driver_pod_name(job), namespace="other")


def convert(**content: object) -> PodAttestationConfig:
    return msgspec.convert(content, PodAttestationConfig)


@pytest.mark.parametrize(
    ("jobs", "match"),
    [
        pytest.param([{"namespace": "*", "driver": "d", "executor": "e"}], "name of a namespace", id="everywhere"),
        pytest.param([{"namespace": "n", "driver": "*", "executor": "e"}], "service account", id="everybody"),
        pytest.param([{"namespace": "n", "driver": "d", "executor": "d"}], "one service account", id="one-account"),
        pytest.param([{"namespace": "n", "driver": "d", "executor": "e"}] * 2, "given twice", id="twice"),
        pytest.param(
            [{"namespace": "n", "driver": "d", "executor": "e", "trust_config_map": "A"}], "ConfigMap", id="no-object"
        ),
    ],
)
def test_unsafe_job_configurations_are_refused(jobs: list[dict[str, str]], match: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=match):
        convert(jobs=jobs)


@pytest.mark.parametrize(("namespace", "account"), [("n", "e"), ("n", "d"), ("n", "*"), ("*", "e")])
def test_a_service_account_of_jobs_cannot_have_a_process_identity(namespace: str, account: str) -> None:
    rule = PodIdentity(namespace=namespace, service_account=account, role="taskmanager", name="{namespace}.{pod}")
    with pytest.raises(ValueError, match="runs the code of jobs"):
        PodAttestationConfig(identities=(rule,), jobs=(PodJobs(namespace="n", driver="d", executor="e"),))
