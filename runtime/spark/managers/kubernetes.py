"""Renders a submission to Spark on Kubernetes: configuration, pod templates, and the ConfigMap that they refer to.

Nothing here is secret. Each pod authenticates to the online authority with a projected service account token, and keeps
its private key in memory (:mod:`sluice.runtime.spark.managers.job_pod`).
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from sluice.core import PkiError
from sluice.pki.attestation import CRL_KEY, TRUST_KEY, audience, driver_pod_name, executor_pod_prefix
from sluice.pki.ca import parse_cas
from sluice.runtime.spark.errors import SparkError
from sluice.runtime.spark.managers.submission import (
    ForeignJob,
    Rendering,
    common_conf,
    properties,
)

MAX_CONFIG_MAP_BYTES = 900 << 10
"""Maximum size of the pipeline and files of one job. An object has at most 1 MiB (etcd), including base64."""

APP_DIRECTORY = "/run/sluice/job"
KEYS_DIRECTORY = "/run/sluice/keys"
IDENTITY_DIRECTORY = f"{KEYS_DIRECTORY}/identity"
PLUGIN_FILE = f"{KEYS_DIRECTORY}/sluice-spark.jar"
"""A link to the plugin's jar in the image, where its file name contains its version."""
_TOKEN_DIRECTORY = "/run/sluice/token"  # noqa: S105  a path
_TRUST_DIRECTORY = "/run/sluice/trust"
_TOKEN_SECONDS = 3600
_USER = 10001
"""The uid of the user in Sluice's image."""
_CPU = re.compile(r"[1-9][0-9]{0,5}m|[1-9][0-9]{0,3}")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")

_CONFINED = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


class KubernetesConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The target of ``sluice submit --target kubernetes``."""

    api: str = ""
    """``https://host:port`` of the API server."""
    namespace: str = "default"
    image: str = ""
    """The image of this version of Sluice, which also contains Spark and Python, or an image based on it."""
    ca: str = ""
    """Address of the online authority as pods reach it, HOST:PORT[,ENROLMENT_PORT]; separate several by spaces."""
    trust_config_map: str = "sluice-jobs-trust"
    """ConfigMap of the namespace with the authority's trust anchors and CRLs, as in ``[[ca.kubernetes.jobs]]``."""
    service_account: str = ""
    """Service account of the driver, which creates the executors' pods: ``driver`` in ``[[ca.kubernetes.jobs]]``."""
    executor_service_account: str = ""
    """Service account of executors, without any rights: ``executor`` in ``[[ca.kubernetes.jobs]]``."""
    driver_cpu: str = ""
    """CPU request of the driver's pod, such as ``500m`` or ``2``; empty: one core."""
    executor_cpu: str = ""
    """CPU request of each executor's pod; empty: one core for each task that it runs at a time."""


@dataclass(frozen=True, slots=True)
class KubernetesJob:
    """A job and its target.

    Attributes:
        id: from :func:`sluice.pki.attestation.job_pods.new_pod_job_id`; part of the names of its objects.
        job: the job to submit.
        config: the target.
        trust_domain: the trust domain of its identities.
    """

    id: str
    job: ForeignJob
    config: KubernetesConfig
    trust_domain: str

    @property
    def files_name(self) -> str:
        """The ConfigMap with pipeline and files."""
        return f"sluice-{self.id}-files"


def check_kubernetes(config: KubernetesConfig) -> KubernetesConfig:
    """Return ``config`` if it is complete.

    Raises:
        SparkError: a setting is missing or invalid.
    """
    if not config.api.startswith("https://"):
        raise SparkError(f"kubernetes.api is {config.api!r}", "name the API server: https://host:6443")
    if not config.image:
        raise SparkError("kubernetes.image is empty", "name an image with Spark, Python and the plugin's jar")
    for key in ("namespace", "service_account", "executor_service_account", "trust_config_map"):
        if not _NAME.fullmatch(value := getattr(config, key)):
            raise SparkError(
                f"kubernetes.{key} is {value!r}, not the name of an object", "see docs/howto/spark-on-kubernetes.md"
            )
    for key in ("driver_cpu", "executor_cpu"):
        if not _CPU.fullmatch(value := getattr(config, key)) and value:
            raise SparkError(f"kubernetes.{key} is {value!r}", "such as 500m, which is half a core, or 2")
    if config.service_account == config.executor_service_account:
        raise SparkError(
            "drivers and executors share one service account", "executors need a separate one, without any rights"
        )
    try:
        known = parse_cas(config.ca.split())
    except PkiError as error:
        raise SparkError(f"kubernetes.ca: {error.what}", "such as sluice-ca.sluice.svc:8444,8445") from error
    if not known:
        raise SparkError("kubernetes.ca is empty", "name the authority: sluice-ca.sluice.svc:8444,8445")
    return config


def render_kubernetes(submitted: KubernetesJob, directory: Path) -> Rendering:
    """Render the submission, with paths in ``directory``.

    Raises:
        SparkError: the files do not fit into a ConfigMap, or the configuration is incomplete.
        ForbiddenSparkConf: the job sets a reserved setting.
    """
    job, config = submitted.job, check_kubernetes(submitted.config)
    conf = {
        **common_conf(job, agent=PLUGIN_FILE, identity=IDENTITY_DIRECTORY),
        "spark.master": f"k8s://{config.api}",
        "spark.kubernetes.namespace": config.namespace,
        "spark.kubernetes.container.image": config.image,
        "spark.kubernetes.driver.podTemplateFile": str(directory / "driver-pod.json"),
        "spark.kubernetes.executor.podTemplateFile": str(directory / "executor-pod.json"),
        "spark.kubernetes.driver.podTemplateContainerName": "driver",
        "spark.kubernetes.executor.podTemplateContainerName": "executor",
        "spark.kubernetes.driver.pod.name": driver_pod_name(submitted.id),
        "spark.kubernetes.executor.podNamePrefix": executor_pod_prefix(submitted.id),
        "spark.kubernetes.driver.service.label.sluice/job": submitted.id,
        "spark.kubernetes.authenticate.driver.serviceAccountName": config.service_account,
        "spark.kubernetes.authenticate.executor.serviceAccountName": config.executor_service_account,
    }
    for end, cpu in (("driver", config.driver_cpu), ("executor", config.executor_cpu)):
        if cpu:
            conf[f"spark.kubernetes.{end}.request.cores"] = cpu
    files = {
        "spark.properties": properties(conf),
        "driver-pod.json": _json(pod_template("driver", submitted)),
        "executor-pod.json": _json(pod_template("executor", submitted)),
        "files.json": _json(config_map(submitted)),
    }
    program = f"local://{APP_DIRECTORY}/{job.pipeline.name}"
    return Rendering(files, ("--properties-file", str(directory / "spark.properties"), program, *job.args))


def pod_template(container: str, submitted: KubernetesJob) -> dict[str, Any]:
    """The template of the driver's or an executor's pod, which Spark completes."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"labels": {"app.kubernetes.io/part-of": "sluice", "sluice/job": submitted.id}},
        "spec": {
            "automountServiceAccountToken": container == "driver",
            "securityContext": {"runAsUser": _USER, "runAsGroup": _USER, "fsGroup": _USER},
            "containers": [
                {
                    "name": container,
                    "command": _command(submitted),
                    "env": [_from_field("SLUICE_POD_NAME", "name"), _from_field("SLUICE_POD_NAMESPACE", "namespace")],
                    "volumeMounts": [
                        {"name": "sluice-keys", "mountPath": KEYS_DIRECTORY},
                        {"name": "sluice-token", "mountPath": _TOKEN_DIRECTORY, "readOnly": True},
                        {"name": "sluice-trust", "mountPath": _TRUST_DIRECTORY, "readOnly": True},
                        {"name": "sluice-app", "mountPath": APP_DIRECTORY, "readOnly": True},
                    ],
                    "securityContext": _CONFINED,
                },
            ],
            "volumes": [
                {"name": "sluice-keys", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}},
                {"name": "sluice-token", "projected": {"sources": [{"serviceAccountToken": _token(submitted)}]}},
                {"name": "sluice-trust", "configMap": {"name": submitted.config.trust_config_map, "optional": True}},
                {"name": "sluice-app", "configMap": {"name": submitted.files_name}},
            ],
        },
    }


def _command(submitted: KubernetesJob) -> list[str]:
    """The command that replaces the image's entry point. Spark appends ``driver`` or ``executor``, and arguments."""
    return [
        *("sluice", "run", "job-pod", "--trust-domain", submitted.trust_domain),
        *("--pod-token-file", f"{_TOKEN_DIRECTORY}/token", "--ca-anchors", f"{_TRUST_DIRECTORY}/{TRUST_KEY}"),
        *("--ca-crls", f"{_TRUST_DIRECTORY}/{CRL_KEY}", "--identity-dir", IDENTITY_DIRECTORY, "--plugin", PLUGIN_FILE),
        *(part for address in submitted.config.ca.split() for part in ("--ca", address)),
        "--",
    ]


def _from_field(variable: str, field: str) -> dict[str, Any]:
    return {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.{field}"}}}


def _token(submitted: KubernetesJob) -> dict[str, Any]:
    return {"path": "token", "audience": audience(submitted.trust_domain), "expirationSeconds": _TOKEN_SECONDS}


def config_map(submitted: KubernetesJob) -> dict[str, Any]:
    """The ConfigMap with the pipeline and files of the job.

    Raises:
        SparkError: they are too large for one object.
    """
    data = {path.name: path.read_bytes() for path in (submitted.job.pipeline, *submitted.job.files)}
    encoded = {name: base64.b64encode(content).decode() for name, content in data.items()}
    if sum(map(len, encoded.values())) > MAX_CONFIG_MAP_BYTES:
        raise SparkError(
            f"pipeline and files have more than {MAX_CONFIG_MAP_BYTES >> 10} KiB in base64",
            "put large ones into the image",
        )
    return _object("ConfigMap", submitted, submitted.files_name, binaryData=encoded, immutable=True)


def _object(kind: str, submitted: KubernetesJob, name: str, **fields: object) -> dict[str, Any]:
    metadata = {"name": name, "namespace": submitted.config.namespace, "labels": {"sluice/job": submitted.id}}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **fields}


def _json(document: object) -> bytes:
    return json.dumps(document, indent=2).encode() + b"\n"
