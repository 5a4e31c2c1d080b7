"""A submission for Spark on Kubernetes: configuration, pod templates, and the manifests that they refer to.

The identity of a pod comes from a Secret that is named, not contained. Kubernetes cannot mount a key that its owner
alone can read (fsGroup adds a group), and our agent refuses any other; so an init container copies it into memory.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from sluice.runtime.spark.errors import SparkError
from sluice.runtime.spark.managers.submission import (
    ForeignJob,
    Rendering,
    common_conf,
    properties,
)

MAX_CONFIG_MAP_BYTES = 900 << 10
"""Pipeline and files of one job: an object has at most 1 MiB (etcd), base64 included."""

APP_DIRECTORY = "/opt/sluice/app"
IDENTITY_DIRECTORY = "/run/sluice/identity"
_SECRET_DIRECTORY = "/run/sluice/secret"  # noqa: S105  a path
_SPARK_USER = 185
"""The user of Spark's own images."""
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

_COPY = f"umask 077 && cp -L {_SECRET_DIRECTORY}/* {IDENTITY_DIRECTORY}/"
_CONFINED = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


class KubernetesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where ``sluice submit --target kubernetes`` submits to."""

    api: str = ""
    """``https://host:port`` of the API server."""
    namespace: str = "default"
    image: str = ""
    """With Spark, Python, and the plugin's jar."""
    plugin: str = "/opt/sluice/sluice-spark.jar"
    """Path of the plugin's jar in the image."""
    service_account: str = ""
    """Of the driver, which makes the executors' pods."""
    driver_secret: str = ""
    """Secret with the driver's identity: ``key.pem``, ``chain.pem``, ``ca.pem``, ``peers``."""
    executor_secret: str = ""
    """The same for the executors."""


@dataclass(frozen=True, slots=True)
class KubernetesJob:
    """A job and where it goes; ``id`` makes the names of its objects, in lower-case letters and digits."""

    id: str
    job: ForeignJob
    config: KubernetesConfig

    @property
    def files_name(self) -> str:
        """The ConfigMap with pipeline and files."""
        return f"sluice-{self.id}-files"


def check_kubernetes(config: KubernetesConfig) -> KubernetesConfig:
    """``config`` when a job can be submitted with it; :class:`SparkError` names what is missing."""
    if not config.api.startswith("https://"):
        raise SparkError(f"kubernetes.api is {config.api!r}", "name the API server: https://host:6443")
    if not config.image:
        raise SparkError("kubernetes.image is empty", "name an image with Spark, Python and the plugin's jar")
    for key in ("namespace", "driver_secret", "executor_secret", "service_account"):
        value = getattr(config, key)
        if not _NAME.fullmatch(value) and (value or key != "service_account"):
            raise SparkError(
                f"kubernetes.{key} is {value!r}, not the name of an object",
                "name it, or have Secrets rendered with --render DIR --with-secrets",
            )
    return config


def render_kubernetes(submitted: KubernetesJob, directory: Path) -> Rendering:
    """What is submitted, with paths in ``directory``.

    Raises:
        SparkError: the files do not fit into a ConfigMap, or the configuration is not complete.
        ForbiddenSparkConf: the job sets what it may not.
    """
    job, config = submitted.job, check_kubernetes(submitted.config)
    conf = {
        **common_conf(job, agent=config.plugin, identity=IDENTITY_DIRECTORY),
        "spark.master": f"k8s://{config.api}",
        "spark.kubernetes.namespace": config.namespace,
        "spark.kubernetes.container.image": config.image,
        "spark.kubernetes.driver.podTemplateFile": str(directory / "driver-pod.json"),
        "spark.kubernetes.executor.podTemplateFile": str(directory / "executor-pod.json"),
        "spark.kubernetes.driver.podTemplateContainerName": "driver",
        "spark.kubernetes.executor.podTemplateContainerName": "executor",
        "spark.kubernetes.driver.service.label.sluice/job": submitted.id,
    }
    if config.service_account:
        conf["spark.kubernetes.authenticate.driver.serviceAccountName"] = config.service_account
    files = {
        "spark.properties": properties(conf),
        "driver-pod.json": _json(pod_template("driver", submitted, config.driver_secret)),
        "executor-pod.json": _json(pod_template("executor", submitted, config.executor_secret)),
        "files.json": _json(config_map(submitted)),
    }
    program = f"local://{APP_DIRECTORY}/{job.pipeline.name}"
    return Rendering(files, ("--properties-file", str(directory / "spark.properties"), program, *job.args))


def pod_template(container: str, submitted: KubernetesJob, secret: str) -> dict[str, Any]:
    """The pod of the driver or of an executor, as far as it is ours; Spark adds its own."""
    identity = {"name": "sluice-identity", "mountPath": IDENTITY_DIRECTORY}
    from_secret = {"name": "sluice-secret", "mountPath": _SECRET_DIRECTORY, "readOnly": True}
    app = {"name": "sluice-app", "mountPath": APP_DIRECTORY, "readOnly": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"labels": {"app.kubernetes.io/part-of": "sluice", "sluice/job": submitted.id}},
        "spec": {
            "automountServiceAccountToken": container == "driver",
            "securityContext": {"runAsUser": _SPARK_USER, "runAsGroup": _SPARK_USER, "fsGroup": _SPARK_USER},
            "initContainers": [
                {
                    "name": "sluice-identity",
                    "image": submitted.config.image,
                    "command": ["/bin/sh", "-c", _COPY],
                    "volumeMounts": [identity, from_secret],
                    "securityContext": _CONFINED,
                }
            ],
            "containers": [
                {"name": container, "volumeMounts": [identity, app], "securityContext": _CONFINED},
            ],
            "volumes": [
                {"name": "sluice-identity", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}},
                {"name": "sluice-secret", "secret": {"secretName": secret, "defaultMode": 0o440}},
                {"name": "sluice-app", "configMap": {"name": submitted.files_name}},
            ],
        },
    }


def config_map(submitted: KubernetesJob) -> dict[str, Any]:
    """Pipeline and files of the job; raises :class:`SparkError` when they are too large for one object."""
    data = {path.name: path.read_bytes() for path in (submitted.job.pipeline, *submitted.job.files)}
    encoded = {name: base64.b64encode(content).decode() for name, content in data.items()}
    if sum(map(len, encoded.values())) > MAX_CONFIG_MAP_BYTES:
        raise SparkError(
            f"pipeline and files have more than {MAX_CONFIG_MAP_BYTES >> 10} KiB in base64",
            "put large ones into the image",
        )
    return _object("ConfigMap", submitted, submitted.files_name, binaryData=encoded, immutable=True)


def secret_manifests(submitted: KubernetesJob, identities: Mapping[str, Mapping[str, bytes]]) -> bytes:
    """Secrets with ``identities`` (name of the Secret -> file name -> content). Private keys: keep it 0600."""
    items = [
        _object(
            "Secret",
            submitted,
            name,
            type="Opaque",
            immutable=True,
            data={file: base64.b64encode(content).decode() for file, content in files.items()},
        )
        for name, files in identities.items()
    ]
    return _json({"apiVersion": "v1", "kind": "List", "items": items})


def _object(kind: str, submitted: KubernetesJob, name: str, **fields: object) -> dict[str, Any]:
    metadata = {"name": name, "namespace": submitted.config.namespace, "labels": {"sluice/job": submitted.id}}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **fields}


def _json(document: object) -> bytes:
    return json.dumps(document, indent=2).encode() + b"\n"
