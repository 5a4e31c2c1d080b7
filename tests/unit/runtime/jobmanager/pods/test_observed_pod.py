"""Tests of what is read from the pods of the Kubernetes API server."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from sluice.runtime.jobmanager.pods.observed_pod import MAX_REASON_CHARACTERS, Phase, observed_pod

METADATA = {"name": "p", "uid": "u", "resourceVersion": "7", "labels": {"sluice/epoch": "12"}}
NOT_SCHEDULED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    """Return the status of a waiting container."""
    return {"name": "c", "state": {"waiting": {"reason": reason, "message": message}}}


@pytest.mark.parametrize(
    ("status", "obstacle"),
    [
        pytest.param({}, "", id="new"),
        pytest.param({"conditions": [NOT_SCHEDULED]}, "Unschedulable: 0/3 nodes", id="no node"),
        pytest.param({"containerStatuses": [waiting("ContainerCreating")]}, "", id="on its way"),
        pytest.param(
            {"containerStatuses": [waiting("ImagePullBackOff", "Back-off\nimage x")]},
            "ImagePullBackOff: Back-off image x",
            id="image",
        ),
        pytest.param(
            {"initContainerStatuses": [waiting("CreateContainerConfigError")]}, "CreateContainerConfigError", id="init"
        ),
        pytest.param({"containerStatuses": "none", "conditions": 7}, "", id="nonsense"),
    ],
)
def test_the_reason_why_a_pod_does_not_start_is_read_from_its_status(status: dict[str, Any], obstacle: str) -> None:
    pod = observed_pod({"metadata": METADATA, "status": status | {"phase": "Pending"}})
    assert pod is not None
    assert (pod.obstacle, pod.epoch, pod.version) == (obstacle, 12, "7")


@pytest.mark.parametrize(
    ("status", "end"),
    [
        ({"reason": "Evicted", "message": "low on memory"}, "Evicted: low on memory"),
        (
            {"containerStatuses": [{"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]},
            "OOMKilled, exit code 137",
        ),
        ({"containerStatuses": [{"state": {"terminated": {"exitCode": 10, "reason": "Error"}}}]}, ""),
        ({}, "no reason is given"),
    ],
)
def test_the_reason_why_a_pod_has_failed_is_read_from_its_status(status: dict[str, Any], end: str) -> None:
    pod = observed_pod({"metadata": METADATA, "status": status | {"phase": "Failed"}})
    assert pod is not None
    assert (pod.end, pod.ended, pod.alive) == (end, True, False)


def test_a_pod_that_is_being_deleted_is_not_alive() -> None:
    pod = observed_pod({"metadata": METADATA | {"deletionTimestamp": "now"}, "status": {"phase": "Running"}})
    assert pod is not None
    assert (pod.alive, pod.phase) == (False, Phase.RUNNING)


@pytest.mark.parametrize(
    "content", [{}, {"metadata": []}, {"metadata": {"name": 1, "uid": "u", "resourceVersion": "1"}}]
)
def test_something_other_than_a_pod_is_left_out(content: dict[str, Any]) -> None:
    assert observed_pod(content) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(
                ["phase", "conditions", "containerStatuses", "state", "waiting", "terminated", "reason", "message"]
            ),
            inner,
        )
    ),
)


@given(JSON, st.sampled_from([*Phase, "Odd"]))
def test_reasons_are_short_and_on_one_line_whatever_the_status(status: Any, phase: str) -> None:
    content = {"metadata": METADATA, "status": {**(status if isinstance(status, dict) else {}), "phase": phase}}
    pod = observed_pod(content)
    assert pod is not None
    for text in (pod.obstacle, pod.end):
        assert len(text) <= MAX_REASON_CHARACTERS
        assert text.isprintable()
