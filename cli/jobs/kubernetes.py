"""Submits a rendered job to Kubernetes: first the ConfigMap of its files, then spark-submit; cleans up afterwards.

The driver's pod owns the ConfigMap as soon as it exists, so that Kubernetes removes both together. If there is no pod
at the end, because spark-submit failed or deleted it, the ConfigMap and the job's Services are removed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sluice.cli.errors import EXIT_NO, CommandError

POLL_SECONDS = 1.0
"""How often to check whether there is a driver."""
KUBECTL_SECONDS = 60.0
"""Timeout of one request."""


class _Metadata(msgspec.Struct):
    name: str
    uid: str


class _Pod(msgspec.Struct):
    metadata: _Metadata


class _Pods(msgspec.Struct):
    items: list[_Pod] = []


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl, with the user's own configuration.

    Attributes:
        program: its path.
        namespace: of the job.
        environment: its whole environment.
    """

    program: str
    namespace: str
    environment: Mapping[str, str]

    @classmethod
    def find(cls, namespace: str, environment: Mapping[str, str]) -> Kubectl:
        """Find kubectl in the path; raises :class:`CommandError`."""
        program = shutil.which("kubectl", path=environment.get("PATH"))
        if program is None:
            raise CommandError("there is no kubectl", "install it, or use --render DIR and run what it prints yourself")
        return cls(program, namespace, environment)

    def run(self, *arguments: str) -> bytes:
        """Run kubectl; returns its output, raises :class:`CommandError` with its message."""
        command = [self.program, "--namespace", self.namespace, *arguments]
        try:
            done = subprocess.run(
                command, env=dict(self.environment), check=False, capture_output=True, timeout=KUBECTL_SECONDS
            )
        except subprocess.TimeoutExpired:
            raise CommandError(f"kubectl {arguments[0]} gave no answer in {KUBECTL_SECONDS:g} s") from None
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip()[-500:]
            raise CommandError(
                f"kubectl {arguments[0]} failed: {said}", "see docs/howto/deployment.md for the rights it needs"
            )
        return done.stdout


def submit_with_files(kubectl: Kubectl, job_id: str, config_map: str, manifest: Path, submit: Sequence[str]) -> None:
    """Apply ``manifest``, which makes ``config_map``, and run ``submit`` to its end.

    Raises:
        CommandError: one of them failed; nothing of the job is left, or the error names it.
    """
    kubectl.run("apply", "--filename", str(manifest))
    owned = False
    try:
        with subprocess.Popen(submit, env=dict(kubectl.environment)) as process:
            while process.poll() is None:
                owned = owned or _own(kubectl, job_id, config_map)
                try:
                    process.wait(POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    continue
    finally:
        _settle(kubectl, job_id, config_map, owned=owned)
    if process.returncode != 0:
        error = CommandError(
            f"{Path(submit[0]).name} ended with exit code {process.returncode}",
            "its output says why",
            exit_code=EXIT_NO,
        )
        raise error


def _own(kubectl: Kubectl, job_id: str, config_map: str) -> bool:
    """Make the driver the owner of the ConfigMap; returns whether it is."""
    try:
        driver = _driver(kubectl, job_id)
        if driver is None:
            return False
        owner = {"apiVersion": "v1", "kind": "Pod", "name": driver.name, "uid": driver.uid}
        patch = json.dumps({"metadata": {"ownerReferences": [owner]}})
        kubectl.run("patch", "configmap", config_map, "--type", "merge", "--patch", patch)
    except CommandError:
        return False  # retried, and reported at the end
    return True


def _driver(kubectl: Kubectl, job_id: str) -> _Metadata | None:
    selector = f"sluice/job={job_id},spark-role=driver"
    try:
        pods = msgspec.json.decode(kubectl.run("get", "pods", "--selector", selector, "--output", "json"), type=_Pods)
    except msgspec.DecodeError as error:
        raise CommandError("what kubectl says of the driver's pod cannot be read") from error
    return pods.items[0].metadata if pods.items else None


def _settle(kubectl: Kubectl, job_id: str, config_map: str, *, owned: bool) -> None:
    """Afterwards, remove the files if there is no driver; otherwise report them unless its pod owns them."""
    try:
        if _driver(kubectl, job_id) is None:
            kubectl.run("delete", "configmap,service", "--selector", f"sluice/job={job_id}", "--ignore-not-found")
            return
        if owned or _own(kubectl, job_id, config_map):
            return
        why = "it could not be given to the driver's pod"
    except CommandError as error:
        if owned:
            return
        why = str(error)
    by_hand = f"kubectl --namespace {kubectl.namespace} delete configmap {config_map}"
    print(f"sluice: the ConfigMap {config_map} is left: {why}; when the job is over: {by_hand}", file=sys.stderr)
