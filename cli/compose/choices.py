"""The options of a cluster of containers."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from sluice.cli.compose.ha_services import MAX_JOBMANAGERS
from sluice.cli.errors import UsageError

MAX_TASKMANAGERS = 64
ENVOY_IMAGE = "envoyproxy/envoy:v1.40.0"
"""The official image, in the version that the tests run (see ``requirements/run.txt``)."""
JVM_OVERHEAD_MB = 384
"""A JVM's memory besides its heap, as Spark assumes it: 10 %, at least this."""
LEAST_PYTHON_MB = 384
SHUFFLE_MANAGERS = ("shuffle-manager-1", "shuffle-manager-2")

_PROJECT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_HOST = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")
_DIRECTORY = re.compile(r"/[A-Za-z0-9._/-]{1,200}")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,255}")


@dataclass(frozen=True, slots=True)
class ComposeSet:
    """The chosen options of a cluster.

    Attributes:
        name: of the compose project; containers, networks and volumes begin with it.
        taskmanagers: how many.
        jobmanagers: how many; of several one leads, elected by three ZooKeeper servers.
        shuffle_workers: how many; 0: Spark's own shuffle is used.
        slots: of each TaskManager.
        slot_memory_mb: heap of an executor.
        driver_slots: drivers that a TaskManager runs at a time.
        address: on which address of this machine the gateway's port is published.
        port: the one port that is published.
        host: the name that clients use for the gateway, besides localhost.
        image: of all services but Envoy.
        envoy_image: of Envoy.
        certificate: directory of this machine with ``fullchain.pem`` and ``privkey.pem`` for ``host``; empty: none.
    """

    name: str = "sluice"
    taskmanagers: int = 3
    slots: int = 2
    slot_memory_mb: int = 768
    address: str = "127.0.0.1"
    port: int = 8443
    host: str = "localhost"
    image: str = "sluice:local"
    envoy_image: str = ENVOY_IMAGE
    shuffle_workers: int = 2
    jobmanagers: int = 2
    driver_slots: int = 2
    certificate: str = ""

    def __post_init__(self) -> None:
        """Refuse values that have another meaning in YAML, TOML or an environment file."""
        _check(bool(_PROJECT.fullmatch(self.name)), "--name", self.name, "lower-case letters, digits, '-' and '_'")
        _check(bool(_HOST.fullmatch(self.host)), "--host", self.host, "a DNS name in lower case")
        for option, image in (("--image", self.image), ("--envoy-image", self.envoy_image)):
            _check(bool(_IMAGE.fullmatch(image)), option, image, "as in registry.example.org/sluice:1.0")
        _check(1 <= self.taskmanagers <= MAX_TASKMANAGERS, "--taskmanagers", self.taskmanagers, "1 to 64")
        _check(1 <= self.jobmanagers <= MAX_JOBMANAGERS, "--jobmanagers", self.jobmanagers, f"1 to {MAX_JOBMANAGERS}")
        _check(0 <= self.shuffle_workers <= MAX_TASKMANAGERS, "--shuffle-workers", self.shuffle_workers, "0 to 64")
        _check(1 <= self.slots <= 256, "--slots", self.slots, "1 to 256")
        _check(1 <= self.driver_slots <= 256, "--driver-slots", self.driver_slots, "1 to 256")
        _check(450 <= self.slot_memory_mb <= 1 << 20, "--slot-memory", self.slot_memory_mb, "at least 450 MiB")
        _check(1 <= self.port <= 65535, "--port", self.port, "1 to 65535")
        place = _DIRECTORY.fullmatch(self.certificate) or not self.certificate
        _check(bool(place), "--certificate", self.certificate, "an absolute path of letters, digits and . _ / -")
        if self.certificate and self.host == "localhost":
            raise UsageError("--certificate without --host", "name the host that the certificate is for")
        try:
            ipaddress.ip_address(self.address)
        except ValueError as error:
            raise UsageError(f"--address {self.address[:100]!r} is not an address", "as in 127.0.0.1") from error

    @property
    def boxes(self) -> int:
        """Sandboxes that a TaskManager may run at a time: one for an executor, two for a driver."""
        return self.slots + 2 * self.driver_slots

    @property
    def python_memory_mb(self) -> int:
        """Memory for the Python workers of an executor: as much as its heap, minus Spark's overhead."""
        return max(LEAST_PYTHON_MB, self.slot_memory_mb - JVM_OVERHEAD_MB)

    @property
    def taskmanager_names(self) -> tuple[str, ...]:
        """Service and process names."""
        return tuple(f"taskmanager-{number}" for number in range(1, self.taskmanagers + 1))

    @property
    def shuffle_names(self) -> tuple[str, ...]:
        """Service and process names of ShuffleManagers and ShuffleWorkers."""
        if not self.shuffle_workers:
            return ()
        return (*SHUFFLE_MANAGERS, *(f"shuffle-worker-{number}" for number in range(1, self.shuffle_workers + 1)))

    @property
    def public_hosts(self) -> tuple[str, ...]:
        """The names of the edge certificate; the same in the invitation and in Envoy's own options."""
        return tuple(dict.fromkeys(("localhost", self.host)))

    @property
    def server_names(self) -> tuple[str, ...]:
        """Hosts that the gateway serves; without localhost if it has a certificate of another authority."""
        return (self.host,) if self.certificate else self.public_hosts


def _check(good: bool, option: str, value: object, remedy: str) -> None:
    if not good:
        raise UsageError(f"{option} {str(value)[:100]!r} is not possible", remedy)
