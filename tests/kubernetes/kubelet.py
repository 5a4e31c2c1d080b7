"""A fake scheduler, kubelet and container runtime: runs the pods of a real API server as processes.

It does what a pod says, as far as processes of one machine can. It runs the init containers and then the
container, each with its arguments and environment. It mounts ConfigMaps, empty directories and projected
tokens (requested from the API server, bound to the pod) below a directory of the pod's own. It reports
the result to the API server. It implements no image, user, network, probe, limit or security context.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.kubernetes.api_server import ApiServer

LOOK_SECONDS = 0.2
STOP_SECONDS = 60.0
ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "sluice.cli.main"]
"""What the image's entry point is."""
Object = dict[str, Any]


@dataclass
class RunningPod:
    """A pod whose container is running."""

    name: str
    uid: str
    root: Path
    process: subprocess.Popen[bytes]
    config_maps: list[tuple[Path, str]]
    stopping: bool = False


@dataclass
class Kubelet:
    """Runs the pods in a namespace that a label selects.

    Args:
        environment: for each container, added to its own; it replaces names that only a cluster's DNS has.
    """

    server: ApiServer
    namespace: str
    selector: str
    root: Path
    environment: Mapping[str, str]
    started: dict[str, Object] = field(default_factory=dict)
    """Every pod that ever ran, as it was when it was started."""
    broken: list[BaseException] = field(default_factory=list)
    _running: dict[str, RunningPod] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, name="kubelet")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join()
        for pod in self._running.values():
            pod.process.kill()
            pod.process.wait()
        assert not self.broken, self.broken

    @property
    def path(self) -> str:
        """The API path of the namespace's pods."""
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def pods(self) -> list[Object]:
        """All selected pods."""
        status, answer = self.server.call("GET", f"{self.path}?labelSelector={self.selector}")
        assert status == 200, answer
        return list(answer["items"])

    def _run(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            try:
                self._look()
            except OSError:
                continue  # the API server is busy
            except BaseException as error:
                self.broken.append(error)
                raise

    def _look(self) -> None:
        for pod in self.pods():
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            running = self._running.get(uid)
            if running is None and uid not in self.started and "deletionTimestamp" not in pod["metadata"]:
                self._start(name, uid, pod)
            elif running is not None and "deletionTimestamp" in pod["metadata"] and not running.stopping:
                running.stopping = True
                running.process.send_signal(signal.SIGTERM)
            elif running is None and "deletionTimestamp" in pod["metadata"]:
                self.server.call("DELETE", f"{self.path}/{name}?gracePeriodSeconds=0")
        for running in list(self._running.values()):
            for directory, config_map in running.config_maps:
                self._mount(directory, config_map)
            if (code := running.process.poll()) is not None:
                del self._running[running.uid]
                state = {"terminated": {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}}
                self._tell(running.name, "Succeeded" if code == 0 else "Failed", state)

    def _start(self, name: str, uid: str, pod: Object) -> None:
        self.started[uid] = pod
        binding = {"metadata": {"name": name}, "target": {"kind": "Node", "apiVersion": "v1", "name": "here"}}
        status, answer = self.server.call("POST", f"{self.path}/{name}/binding", binding)
        assert status == 201, answer
        spec, root = pod["spec"], self.root / name[-4:]  # paths of sockets are short
        volumes = {each["name"]: each for each in spec["volumes"]}
        (container,) = spec["containers"]
        config_maps = []
        for mount in container["volumeMounts"]:
            directory, volume = Path(f"{root}{mount['mountPath']}"), volumes[mount["name"]]
            directory.mkdir(parents=True, exist_ok=True)
            if "configMap" in volume:
                config_maps.append((directory, volume["configMap"]["name"]))
                self._mount(directory, volume["configMap"]["name"])
            for source in volume.get("projected", {}).get("sources", ()):
                wanted = source["serviceAccountToken"]
                token = self._token(spec["serviceAccountName"], name, uid, wanted)
                (directory / wanted["path"]).write_text(token)
                (directory / wanted["path"]).chmod(0o440)
        environment = self._environment(name, container, root)
        with (self.root / f"{name}.log").open("wb") as log:
            for init in spec.get("initContainers", ()):
                command = [self._below(each, root) for each in init["command"]]
                subprocess.run(command, check=True, stdout=log, stderr=log, env=environment)
            arguments = [self._expanded(each, environment) for each in container["args"]]
            process = subprocess.Popen(
                [*COMMAND, *arguments], cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        self._running[uid] = RunningPod(name, uid, root, process, config_maps)
        self._tell(name, "Running", {"running": {}})

    def _environment(self, name: str, container: Object, root: Path) -> dict[str, str]:
        made = {key: os.environ[key] for key in ("PATH", "HOME", "JAVA_HOME", "XDG_CACHE_HOME") if key in os.environ}
        for each in container["env"]:
            value = each.get("value")
            if value is None:
                assert each["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
                value = name
            made[each["name"]] = self._below(self._expanded(value, made), root)
        return {**made, **self.environment}

    @staticmethod
    def _expanded(text: str, environment: Mapping[str, str]) -> str:
        return re.sub(r"\$\(([A-Z_]+)\)", lambda match: environment[match[1]], text)

    @staticmethod
    def _below(text: str, root: Path) -> str:
        return re.sub(r"(?<![\w/.])/(?=var/lib/sluice|run/sluice|etc/sluice)", f"{root}/", text)

    def _mount(self, directory: Path, name: str) -> None:
        status, content = self.server.call("GET", f"/api/v1/namespaces/{self.namespace}/configmaps/{name}")
        for key, value in ((content.get("data") or {}) if status == 200 else {}).items():
            file = directory / key
            if not file.exists() or file.read_text() != value:
                new = file.with_name(f".{key}")
                new.write_text(value)
                new.rename(file)

    def _token(self, account: str, pod: str, uid: str, wanted: Object) -> str:
        spec = {
            "audiences": [wanted["audience"]],
            "expirationSeconds": wanted["expirationSeconds"],
            "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": pod, "uid": uid},
        }
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{account}/token"
        status, made = self.server.call("POST", path, {"spec": spec})
        assert status == 201, made
        return str(made["status"]["token"])

    def _tell(self, name: str, phase: str, state: Object) -> None:
        container = {
            "name": "taskmanager",
            "image": "i",
            "imageID": "i",
            "ready": True,
            "restartCount": 0,
            "state": state,
        }
        content = {"status": {"phase": phase, "containerStatuses": [container]}}
        with contextlib.suppress(OSError):
            self.server.call("PATCH", f"{self.path}/{name}/status", content, kind="merge-patch+json")
