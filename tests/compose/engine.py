"""Controls the containers of one compose project with the commands that a person would use."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
IMAGE = os.environ.get("SLUICE_IMAGE", "sluice:local")
ENVOY_IMAGE = os.environ.get("SLUICE_ENVOY_IMAGE", "sluice-envoy:local")
COMMAND_SECONDS = 180
HEALTHY_SECONDS = 240
JOB_SECONDS = 600
REQUEST_SECONDS = 30
KILLED = "killed"
CUT_OFF = "cut off"


def run(
    *argv: str | Path,
    timeout: float = COMMAND_SECONDS,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; if it fails, the error shows its output."""
    done = subprocess.run(
        [str(each) for each in argv],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        check=False,
    )
    assert not check or done.returncode == 0, f"{argv[0]} {argv[1:]}: {done.stdout}\n{done.stderr}"
    return done


def eventually(check: Callable[[], Any], what: str, seconds: float = HEALTHY_SECONDS) -> Any:
    """Poll ``check`` until it returns a true value; returns that value."""
    return wait_until(check, f"waited in vain until {what}", seconds, pause=0.3)


def sluice(*arguments: str | Path, check: bool = True, timeout: float = COMMAND_SECONDS) -> Any:
    """Run the ``sluice`` command on the host."""
    return run(sys.executable, "-m", "sluice.cli.main", *arguments, check=check, timeout=timeout)


@dataclass
class Stack:
    """A running compose project, and a client outside of it."""

    name: str
    directory: Path
    port: int

    @property
    def taskmanagers(self) -> tuple[str, ...]:
        """The services of the TaskManagers."""
        return tuple(f"taskmanager-{number}" for number in (1, 2, 3))

    @property
    def jobmanagers(self) -> tuple[str, ...]:
        """The services of the JobManagers.

        Each process has the name of its service, except the first, which is named ``jobmanager-1``.
        """
        return ("jobmanager", "jobmanager-2")

    @property
    def zookeepers(self) -> tuple[str, ...]:
        """The services of the ZooKeeper ensemble."""
        return ("zookeeper-1", "zookeeper-2", "zookeeper-3")

    @property
    def shuffle(self) -> tuple[str, ...]:
        """The services of the shuffle service."""
        return ("shuffle-manager-1", "shuffle-manager-2", "shuffle-worker-1", "shuffle-worker-2")

    @property
    def services(self) -> tuple[str, ...]:
        """All services of the project."""
        return (
            "ca",
            *self.jobmanagers,
            *self.zookeepers,
            *self.taskmanagers,
            *self.shuffle,
            "auth",
            "envoy-agent",
            "envoy",
        )

    def compose(
        self, *arguments: str, check: bool = True, timeout: float = COMMAND_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """Run the compose command for this project."""
        place = ("--project-directory", str(self.directory), "--file", str(self.directory / "compose.yaml"))
        command = (str(ROOT / "scripts" / "compose"), *place, "--project-name", self.name, *arguments)
        return run(*command, check=check, timeout=timeout)

    def container(self, service: str) -> str:
        """Return the id of a service's container."""
        labels = (f"com.docker.compose.project={self.name}", f"com.docker.compose.service={service}")
        filters = [word for label in labels for word in ("--filter", f"label={label}")]
        return run("docker", "ps", "--all", "--quiet", "--no-trunc", *filters).stdout.strip()

    def inspect(self, service: str) -> Any:
        """Return the output of ``docker inspect`` for a service's container."""
        return json.loads(run("docker", "inspect", self.container(service)).stdout)[0]

    def inside(self, service: str, *argv: str, check: bool = True) -> str:
        """Run a command in a container; returns its output."""
        return run("docker", "exec", self.container(service), *argv, check=check).stdout

    def proc(self, service: str) -> Path:
        """Return the host's ``/proc`` directory of the container's first process.

        Some images contain no program that could inspect the process from inside.
        """
        return Path("/proc", str(self.inspect(service)["State"]["Pid"]))

    def network(self, name: str) -> str:
        """Return the full name of one of the project's networks."""
        return f"{self.name}_{name}"

    def address(self, service: str, network: str) -> str:
        """Return the address of a container in a network."""
        return str(self.inspect(service)["NetworkSettings"]["Networks"][self.network(network)]["IPAddress"])

    def listening(self, service: str) -> dict[int, str]:
        """Return the ports on which a container listens and their addresses, from the kernel's tables.

        Loopback is left out: the container's own resolver and py4j listen there.
        """
        proc = self.proc(service)
        table = [line for name in ("tcp", "tcp6") for line in (proc / "net" / name).read_text().splitlines()]
        bound = [line.split()[1].rsplit(":", 1) for line in table if " 0A " in line]
        # 127.x.x.x is written with its bytes turned round; ::1 ends in 01000000.
        inner = [(address, port) for address, port in bound if len(address) == 8 and address.endswith("7F")]
        assert all(len(address) == 8 for address, _ in bound), bound
        return {
            int(port, 16): socket.inet_ntoa(bytes.fromhex(address)[::-1])
            for address, port in bound
            if (address, port) not in inner
        }

    def healthy(self, service: str) -> bool:
        """Whether the container runs and its health check passes."""
        state = self.inspect(service)["State"]
        return bool(state["Running"]) and state["Health"]["Status"] == "healthy"

    def up(self) -> None:
        """Start the project, and wait until all services are healthy."""
        self.compose("up", "-d", timeout=HEALTHY_SECONDS)
        for service in self.services:
            eventually(partial(self.healthy, service), f"{service} is healthy")

    def prepare_client(self) -> None:
        """Write a token and the gateway's CA certificate to files for a client outside the project."""
        token = self.compose("exec", "-T", "auth", "sluice", "token", "create", "test", "--role", "submitter")
        file = self.directory / "token"
        file.touch(0o600)
        file.write_text(token.stdout)
        bundle = self.compose("exec", "-T", "ca", "cat", "/var/lib/sluice/pki/trust/edge.pem")
        (self.directory / "edge.pem").write_text(bundle.stdout)

    def client(self, *arguments: str | Path, check: bool = True, timeout: float = COMMAND_SECONDS) -> Any:
        """Run the ``sluice`` command as a client outside the project."""
        verb, rest = arguments[0], arguments[1:]
        options = (
            *("--server", f"https://localhost:{self.port}", "--ca", self.directory / "edge.pem"),
            *("--token-file", self.directory / "token"),
        )
        if verb == "jobs":
            return sluice(verb, rest[0], *options, *rest[1:], check=check, timeout=timeout)
        return sluice(verb, *options, *rest, check=check, timeout=timeout)

    def submit(self, pipeline: Path, *arguments: str) -> str:
        """Submit a pipeline without waiting for it; returns the job id."""
        done = self.client("submit", "--json", "--executors", "3", pipeline, "--", *arguments)
        return str(json.loads(done.stdout)["job_id"])

    def request(self, path: str, *, token: bool = True) -> tuple[int, Any]:
        """Send GET ``path`` as a client outside the project; returns status and body.

        This starts no process. It is polled often, and on a small machine a new process each time would leave the
        containers too few resources.
        """
        headers = {"authorization": f"Bearer {(self.directory / 'token').read_text().strip()}"} if token else {}
        context = ssl.create_default_context(cafile=str(self.directory / "edge.pem"))
        # The edge authority is an anchor by itself; it is not signed by itself.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        connection = HTTPSConnection("localhost", self.port, timeout=REQUEST_SECONDS, context=context)
        with closing(connection):
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, json.load(answer)

    def answered(self, path: str) -> Any:
        """Repeat GET ``path`` until the gateway answers; returns the body."""

        def good() -> Any:
            status, body = self.request(path)
            assert status in {200, 503}, (status, body)
            return {"body": body} if status == 200 else None

        return eventually(good, f"{path} is answered")["body"]

    def job(self, job_id: str) -> Any:
        """Return the job's details from the cluster."""
        return self.answered(f"/v1/jobs/{job_id}")

    def until_finished(self, job_id: str) -> str:
        """Wait until a job ends; fails unless it is FINISHED. Returns its standard output."""

        def ended() -> Any:
            job = self.job(job_id)
            return job if job["state"] in {"FINISHED", "FAILED", "CANCELED"} else None

        job = eventually(ended, "the job ends", JOB_SECONDS)
        assert job["state"] == "FINISHED", job
        return str(self.client("jobs", "logs", job_id, "--source", "driver.stdout").stdout)

    def starts(self, *without: str) -> dict[str, tuple[str, int]]:
        """Return each container's start time and number of restarts, to compare with later values."""
        found = {}
        for service in self.services:
            if service not in without:
                inspected = self.inspect(service)
                found[service] = inspected["State"]["StartedAt"], inspected["RestartCount"]
        return found

    def said(self, service: str, lines: int = 40) -> str:
        """Return the last lines of a service's log."""
        log = run("docker", "logs", "--tail", str(lines), self.container(service))
        return log.stdout + log.stderr

    def kill(self, service: str) -> None:
        """Send SIGKILL to everything in the container from outside, as the kernel does when memory is short."""
        os.kill(int(self.inspect(service)["State"]["Pid"]), signal.SIGKILL)

    @contextmanager
    def cut_off(self, service: str) -> Iterator[None]:
        """Disconnect the container from all of its networks within the block; it keeps running."""
        container = self.container(service)
        aliases = {
            name: settings["Aliases"] or ()
            for name, settings in self.inspect(service)["NetworkSettings"]["Networks"].items()
        }
        for network in aliases:
            run("docker", "network", "disconnect", network, container)
        try:
            yield
        finally:
            for network, names in aliases.items():
                again = [word for name in names for word in ("--alias", name)]
                run("docker", "network", "connect", *again, network, container)

    @contextmanager
    def away(self, service: str, how: str) -> Iterator[None]:
        """Kill the service or cut it off until the end of the block, depending on ``how``.

        Afterwards, start or reconnect it and wait until it is healthy again.
        """
        if how == KILLED:
            container = self.container(service)
            run("docker", "kill", container)
            try:
                yield
            finally:
                run("docker", "start", container)
        else:
            with self.cut_off(service):
                yield
        eventually(partial(self.healthy, service), f"{service} is healthy again")
