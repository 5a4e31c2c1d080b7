"""The pod of a TaskManager, made from the operator's template. No I/O except reading the template file.

A template is a PodTemplateSpec. Missing security settings default to those of the Pod Security level "restricted"
(https://kubernetes.io/docs/concepts/security/pod-security-standards/). Settings that break the isolation of the pod are
refused.
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
    """The owner of all pods: the controller of the JobManager's own pod, else that pod. They are deleted with it."""

    api_version: str
    kind: str
    name: str
    uid: str


def read_template(path: Path) -> Object:
    """Read and check a template in a JSON file.

    Raises:
        PodsMisconfigured: the file cannot be read, or the template is not allowed; the message names the field.
    """
    try:
        template = msgspec.json.decode(read_bounded(path, MAX_TEMPLATE_BYTES), type=dict[str, Any])
    except (StoreError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PodsMisconfigured(
            f"the pod template in {path} cannot be read", "pods.template must be a PodTemplateSpec in JSON"
        ) from error
    check_template(template)
    return template


def check_template(template: Object) -> None:
    """Raise :class:`PodsMisconfigured` when the template is not valid, or breaks the isolation of its pods."""
    spec = template.get("spec")
    if not isinstance(spec, dict) or not isinstance(template.get("metadata", {}), dict):
        raise PodsMisconfigured("the pod template has no spec", "it must be a PodTemplateSpec: metadata and spec")
    containers = [*_dicts(spec, "initContainers"), *_dicts(spec, "containers")]
    if CONTAINER not in {each.get("name") for each in _dicts(spec, "containers")}:
        raise PodsMisconfigured(
            f"the pod template has no container {CONTAINER!r}", f"name the TaskManager's container {CONTAINER!r}"
        )
    for field in _HOST_NAMESPACES:
        if spec.get(field):
            raise PodsMisconfigured(f"the pod template has spec.{field}", "remove it: a TaskManager runs code of users")
    for volume in _dicts(spec, "volumes"):
        if "hostPath" in volume:
            raise PodsMisconfigured("the pod template has a hostPath volume", "use an emptyDir or a volume claim")
    for container in containers:
        context = container.get("securityContext") or {}
        added = (context.get("capabilities") or {}).get("add")
        if context.get("privileged") or context.get("allowPrivilegeEscalation") or added:
            raise PodsMisconfigured(
                f"container {str(container.get('name'))[:63]!r} in the pod template is privileged",
                "remove privileged, allowPrivilegeEscalation and added capabilities",
            )


def pod_of(template: Object, *, name: str, cluster: str, epoch: int, owner: Owner | None) -> Object:
    """Make the pod with this name in this term from a checked template."""
    wanted = copy.deepcopy(template)
    given, spec = wanted.get("metadata") or {}, wanted["spec"]
    metadata: Object = {
        "name": name,
        "labels": (given.get("labels") or {}) | labels_of(cluster, epoch),
        "annotations": given.get("annotations") or {},
    }
    if owner is not None:
        # Not as its controller: a StatefulSet releases pods that its selector does not match.
        reference = {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid}
        metadata["ownerReferences"] = [reference | {"controller": False, "blockOwnerDeletion": False}]
    # An ended TaskManager is replaced by another pod with a new name, if one is needed.
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
    """The owner of all pods, from the JobManager's ``own_pod``: its controller, which outlives it, else the pod."""
    metadata = own_pod["metadata"]
    for each in metadata.get("ownerReferences") or ():
        if each.get("controller"):
            return Owner(each["apiVersion"], each["kind"], each["name"], each["uid"])
    return Owner("v1", "Pod", metadata["name"], metadata["uid"])


def _dicts(spec: Object, key: str) -> list[Object]:
    found = spec.get(key) or []
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise PodsMisconfigured(f"spec.{key} in the pod template is not a list of objects")
    return found
