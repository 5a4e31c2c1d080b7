"""The pod that is made from a template, and the templates that are rejected."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from sluice.runtime.jobmanager.pods.errors import PodsMisconfigured
from sluice.runtime.jobmanager.pods.names import is_of_term, pod_name
from sluice.runtime.jobmanager.pods.pod_template import Owner, check_template, owner_of, pod_of, read_template

TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"app": "x", "sluice/epoch": "99"}},
    "spec": {
        "nodeSelector": {"disk": "fast"},
        "restartPolicy": "Always",
        "automountServiceAccountToken": True,
        "initContainers": [{"name": "prepare", "image": "i"}],
        "containers": [{"name": "taskmanager", "image": "i", "args": ["run", "taskmanager"]}],
    },
}
STATEFUL_SET = Owner("apps/v1", "StatefulSet", "sluice-jobmanager", "uid-1")


def made(template: dict[str, Any] = TEMPLATE, owner: Owner | None = STATEFUL_SET) -> dict[str, Any]:
    """Return a pod made from the template."""
    check_template(template)
    return pod_of(template, name="default-tm-3-abc", cluster="default", epoch=3, owner=owner)


def changed(*path: str | int, value: object) -> dict[str, Any]:
    """The template with another value at a path."""
    template = copy.deepcopy(TEMPLATE)
    place: Any = template
    for each in path[:-1]:
        place = place.setdefault(each, {}) if isinstance(place, dict) else place[each]
    place[path[-1]] = value
    return template


def test_a_pod_is_restricted_where_the_template_says_nothing() -> None:
    spec = made()["spec"]
    assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    for container in (*spec["initContainers"], *spec["containers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }
    assert (spec["automountServiceAccountToken"], spec["enableServiceLinks"]) == (False, False)
    assert spec["nodeSelector"] == {"disk": "fast"}


def test_a_seccomp_profile_of_the_template_is_kept() -> None:
    profile = {"type": "Localhost", "localhostProfile": "sluice/taskmanager.json"}
    pod = made(changed("spec", "containers", 0, "securityContext", value={"seccompProfile": profile}))
    context = pod["spec"]["containers"][0]["securityContext"]
    assert context["seccompProfile"] == profile
    assert context["capabilities"] == {"drop": ["ALL"]}


def test_a_pod_never_restarts_has_its_labels_and_is_owned_by_the_jobmanagers() -> None:
    pod = made()
    assert pod["spec"]["restartPolicy"] == "Never"
    assert (pod["metadata"]["name"], pod["spec"]["hostname"]) == ("default-tm-3-abc", "default-tm-3-abc")
    assert pod["metadata"]["labels"] == {
        "app": "x",
        "sluice/cluster": "default",
        "sluice/managed-by": "resource-manager",
        "sluice/epoch": "3",
    }
    (owner,) = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("StatefulSet", "uid-1", False)
    assert "ownerReferences" not in made(owner=None)["metadata"]


def test_making_a_pod_does_not_change_the_template() -> None:
    before = copy.deepcopy(TEMPLATE)
    made()
    assert before == TEMPLATE


@pytest.mark.parametrize(
    ("template", "why"),
    [
        pytest.param({}, "no spec", id="empty"),
        pytest.param({"spec": []}, "no spec", id="spec is a list"),
        pytest.param(changed("spec", "containers", 0, "name", value="main"), "taskmanager", id="other name"),
        pytest.param(changed("spec", "containers", value="taskmanager"), "list of objects", id="no list"),
        pytest.param(changed("spec", "hostNetwork", value=True), "hostNetwork", id="host network"),
        pytest.param(changed("spec", "hostPID", value=True), "hostPID", id="host processes"),
        pytest.param(
            changed("spec", "volumes", value=[{"name": "v", "hostPath": {"path": "/"}}]), "hostPath", id="path"
        ),
        pytest.param(
            changed("spec", "containers", 0, "securityContext", value={"privileged": True}),
            "privileged",
            id="privileged",
        ),
        pytest.param(
            changed("spec", "initContainers", 0, "securityContext", value={"capabilities": {"add": ["SYS_ADMIN"]}}),
            "privileged",
            id="capability",
        ),
        pytest.param(
            changed("spec", "containers", 0, "securityContext", value={"allowPrivilegeEscalation": True}),
            "privileged",
            id="escalation",
        ),
    ],
)
def test_a_malformed_or_privileged_template_is_refused(template: dict[str, Any], why: str) -> None:
    with pytest.raises(PodsMisconfigured, match=why):
        check_template(template)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"spec": {}}', '"x"'])
def test_a_file_without_a_valid_template_is_refused(content: str, tmp_path: Path) -> None:
    file = tmp_path / "pod.json"
    file.write_text(content)
    with pytest.raises(PodsMisconfigured):
        read_template(file)
    with pytest.raises(PodsMisconfigured):
        read_template(tmp_path / "none.json")
    file.write_text(json.dumps(TEMPLATE))
    assert read_template(file) == TEMPLATE


def test_pods_belong_to_the_controller_of_the_jobmanagers_pod_or_to_that_pod() -> None:
    own: dict[str, Any] = {"metadata": {"name": "jm-0", "uid": "u0", "ownerReferences": []}}
    assert owner_of(own) == Owner("v1", "Pod", "jm-0", "u0")
    reference = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "jm", "uid": "u1", "controller": True}
    own["metadata"]["ownerReferences"] = [reference]
    assert owner_of(own) == Owner("apps/v1", "StatefulSet", "jm", "u1")


def test_pod_names_contain_the_term_and_are_valid_host_names() -> None:
    longest = pod_name("c" * 40, (1 << 31) - 1, "0123456789")
    assert len(longest) <= 63
    assert is_of_term(longest, "c" * 40, (1 << 31) - 1)
    assert not is_of_term(pod_name("a", 17, "x"), "a", 1)
    assert not is_of_term(pod_name("a", 1, "x"), "b", 1)
