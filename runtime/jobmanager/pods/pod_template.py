"""The pod of a TaskManager, made from the template of the operator: a value, without asking anybody.

A template is a PodTemplateSpec. What it does not say about security is as Pod Security's level "restricted" demands it
(https://kubernetes.io/docs/concepts/security/pod-security-standards/); what would take the pod out of its walls is
refused, whoever wrote it.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from sluice.core import StoreError, read_bounded
from sluice.runtime.jobmanager.pods.errors import PodsMisconfigured
from sluice.runtime.jobmanager.pods.names import labels_of

MAX_TEMPLATE_BYTES = 256 << 10
CONTAINER = "taskmanager"
"""The container in which the TaskManager runs."""

Object = dict[str, Any]
_HOST_NAMESPACES = ("hostNetwork", "hostPID", "hostIPC")


@dataclass(frozen=True, slots=True)
class Owner:
    """The object with which all pods go: the one that the JobManager's own pod belongs to, or that pod."""

    api_version: str
    kind: str
    name: str
    uid: str


def read_template(path: Path) -> Object:
    """The template in a file of JSON.

    Raises:
        PodsMisconfigured: it cannot be read, or no pod should be made of it; the message names the field.
    """
    try:
        template = msgspec.json.decode(read_bounded(path, MAX_TEMPLATE_BYTES), type=dict[str, Any])
    except (StoreError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PodsMisconfigured(
            f"the template of pods in {path} cannot be read", "pods.template: a PodTemplateSpec in JSON"
        ) from error
    check_template(template)
    return template


def check_template(template: Object) -> None:
    """Raises :class:`PodsMisconfigured` when the template is none, or lets a pod out of its walls."""
    spec = template.get("spec")
    if not isinstance(spec, dict) or not isinstance(template.get("metadata", {}), dict):
        raise PodsMisconfigured("the template of pods has no spec", "it is a PodTemplateSpec: metadata and spec")
    containers = [*_dicts(spec, "initContainers"), *_dicts(spec, "containers")]
    if CONTAINER not in {each.get("name") for each in _dicts(spec, "containers")}:
        raise PodsMisconfigured(
            f"the template of pods has no container {CONTAINER!r}", f"call the TaskManager's container {CONTAINER!r}"
        )
    for field in _HOST_NAMESPACES:
        if spec.get(field):
            raise PodsMisconfigured(f"the template of pods has spec.{field}", "a TaskManager runs the code of users")
    for volume in _dicts(spec, "volumes"):
        if "hostPath" in volume:
            raise PodsMisconfigured("the template of pods has a hostPath volume", "use an emptyDir or a claim")
    for container in containers:
        context = container.get("securityContext") or {}
        added = (context.get("capabilities") or {}).get("add")
        if context.get("privileged") or context.get("allowPrivilegeEscalation") or added:
            raise PodsMisconfigured(
                f"container {str(container.get('name'))[:63]!r} in the template of pods is privileged",
                "neither privileged, allowPrivilegeEscalation nor added capabilities",
            )


def pod_of(template: Object, *, name: str, cluster: str, epoch: int, owner: Owner | None) -> Object:
    """The pod of this name in this term, from a template that was checked."""
    wanted = copy.deepcopy(template)
    given, spec = wanted.get("metadata") or {}, wanted["spec"]
    metadata: Object = {
        "name": name,
        "labels": (given.get("labels") or {}) | labels_of(cluster, epoch),
        "annotations": given.get("annotations") or {},
    }
    if owner is not None:
        # Not as its controller: a StatefulSet lets pods go that its selector does not match.
        reference = {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid}
        metadata["ownerReferences"] = [reference | {"controller": False, "blockOwnerDeletion": False}]
    # A TaskManager that has ended is replaced by another pod, if it is needed: with a name that nobody had.
    spec |= {
        "restartPolicy": "Never",
        "hostname": name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
    }
    spec["securityContext"] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}} | (
        spec.get("securityContext") or {}
    )
    for container in (*_dicts(spec, "initContainers"), *_dicts(spec, "containers")):
        container["securityContext"] = {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        } | (container.get("securityContext") or {})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def owner_of(own_pod: Object) -> Owner:
    """Whom the pods of the JobManager in ``own_pod`` belong to: its controller, which outlives it, else the pod."""
    metadata = own_pod["metadata"]
    for each in metadata.get("ownerReferences") or ():
        if each.get("controller"):
            return Owner(each["apiVersion"], each["kind"], each["name"], each["uid"])
    return Owner("v1", "Pod", metadata["name"], metadata["uid"])


def _dicts(spec: Object, key: str) -> list[Object]:
    found = spec.get(key) or []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise PodsMisconfigured(f"spec.{key} in the template of pods is no list of objects")
    return found
