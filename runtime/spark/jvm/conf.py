"""Which Spark settings the launcher makes, and the defaults that a job may override.

What a job may set is decided in :mod:`sluice.runtime.spark.jvm.job_conf`. Decisions only; no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sluice.runtime.spark.errors import ForbiddenSparkConf
from sluice.runtime.spark.jvm.job_conf import CHECKPOINT_LOCATION, check_unreserved

MAX_DYNAMIC_EXECUTORS = 1000
"""Executors that dynamic allocation asks for unless the job says otherwise."""

TLS_PROTOCOL = "SluiceTLSv1.3"
"""The SSLContext algorithm of our security provider (``runtime/spark/plugin``): nothing but TLS 1.3 with client
certificates."""

SHUFFLE_PACKAGE = "org.apache.spark.shuffle.sluice"
"""Where the plugin's shuffle manager is."""

_STARTUP = ("spark.rpc.", "spark.network.", "spark.auth", "spark.ssl.")
"""What Spark hands to an executor before it asks the driver (``SparkConf.isExecutorStartupConf``), besides ports."""


EXECUTORS_TO_WAIT_FOR = "spark.scheduler.minRegisteredResourcesRatio"


def security_conf() -> dict[str, str]:
    """The settings that make Spark's channels ours, the same on driver and executors; no secret among them.

    AES network crypto stays off: inside TLS 1.3 it would encrypt a second time and protect nothing more.
    ``spark.authenticate`` is on besides TLS, so that a process also has to know the job's secret.
    """
    return {
        "spark.ssl.rpc.enabled": "true",
        "spark.ssl.rpc.protocol": TLS_PROTOCOL,
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "false",
    }


@dataclass(frozen=True, slots=True)
class DriverShape:
    """The size of a job: what its driver requests and gets."""

    executors: int
    executor_cores: int
    executor_memory_mb: int
    driver_memory_mb: int


def launcher_conf(*, job_id: str, name: str, host: str, shape: DriverShape) -> dict[str, str]:
    """The settings of a driver that the launcher decides; they win over the job's own."""
    return {
        **security_conf(),
        "spark.master": f"sluice://{job_id}",
        "spark.app.name": name,
        "spark.driver.host": host,
        "spark.driver.bindAddress": host,
        # It listens nowhere: see the plugin's SluiceUi.
        "spark.ui.enabled": "true",
        **ui_conf(),
        "spark.ui.showConsoleProgress": "false",
        "spark.shuffle.service.enabled": "false",
        # Without the shuffle service; Spark's own, for real-time mode, opens listeners. See the class.
        "spark.shuffle.manager.incremental": f"{SHUFFLE_PACKAGE}.NoPipelinedShuffles",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.executor.instances": str(shape.executors),
        "spark.executor.cores": str(shape.executor_cores),
        "spark.executor.memory": f"{shape.executor_memory_mb}m",
        "spark.driver.memory": f"{shape.driver_memory_mb}m",
    }


def ui_conf() -> dict[str, str]:
    """The settings of Spark's UI, of a running job and of one that has ended.

    Read-only, and without what looks into processes.
    """
    return {
        "spark.ui.killEnabled": "false",
        "spark.ui.threadDumpsEnabled": "false",
        "spark.ui.heapHistogramEnabled": "false",
        "spark.ui.timelineEnabled": "false",
    }


DRIVER_LISTENS = ("rpc", "blocks", "connect")
"""What a driver listens for, where its ports are assigned."""
EXECUTOR_LISTENS = ("blocks",)
_FIXED_PORTS = {"spark.port.maxRetries": "0"}
"""On another port nobody would find it."""
NO_NATIVE_TRANSPORT = "-Dio.netty.transport.noNative=true"
"""Netty's native transport watches a socket before it connects or listens. In a network of the job's own that socket is
replaced by one of the machine's, which nobody would watch; Java's own transport begins afterwards."""


def driver_port_conf(ports: Mapping[str, int]) -> dict[str, str]:
    """The settings of a driver that listens on assigned ports, by :data:`DRIVER_LISTENS`."""
    return {
        **_FIXED_PORTS,
        "spark.driver.port": str(ports["rpc"]),
        "spark.driver.blockManager.port": str(ports["blocks"]),
    }


def executor_port_conf(ports: Mapping[str, int]) -> dict[str, str]:
    """The settings of an executor's ports, by :data:`EXECUTOR_LISTENS`; the driver's do not reach it."""
    return {**_FIXED_PORTS, "spark.blockManager.port": str(ports["blocks"])}


def shuffle_conf(*, sealed: bool = False) -> dict[str, str]:
    """The settings of a driver whose shuffles go through the shuffle service; they win over the job's own.

    Executors hold nothing that others need, so they may go at any time, and it does not matter where a task runs.

    Args:
        sealed: whether workers get nothing that they could read or change.
    """
    return {
        "spark.shuffle.manager": f"{SHUFFLE_PACKAGE}.SluiceShuffleManager",
        "spark.shuffle.manager.incremental": f"{SHUFFLE_PACKAGE}.SluicePipelinedManager",
        "spark.shuffle.sort.io.plugin.class": f"{SHUFFLE_PACKAGE}.SluiceDataIO",
        "spark.shuffle.reduceLocality.enabled": "false",
        "spark.dynamicAllocation.shuffleTracking.enabled": "false",
        "spark.storage.decommission.shuffleBlocks.enabled": "false",
        "spark.sluice.shuffle.seal": str(sealed).lower(),
    }


def connect_conf(host: str, idle_seconds: float, port: int = 0) -> dict[str, str]:
    """The settings of a Spark Connect session besides: its listener, whose TLS the plugin's guard decides.

    No shared token: who may connect is decided in the handshake, and a token would be readable to every user.
    """
    return {
        "spark.connect.grpc.binding.address": host,
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.session.manager.defaultSessionTimeout": f"{max(1, int(idle_seconds))}s",
    }


def streaming_conf(checkpoints: str) -> dict[str, str]:
    """The setting that lets the next attempt of a job find the checkpoints of its streaming queries, by their names."""
    return {CHECKPOINT_LOCATION: checkpoints}


def begin_conf(job_conf: Mapping[str, str]) -> dict[str, str]:
    """The setting that lets tasks begin on the first executor, unless the job says for how many they wait.

    The others have a moment to follow. Where they do not, the machine is busy, and tasks wait for nothing on it.
    """
    return {"spark.sluice.scheduler.beginWithFirst": str(EXECUTORS_TO_WAIT_FOR not in job_conf).lower()}


def default_conf() -> dict[str, str]:
    """Settings that suit a cluster of slots and that a job may override."""
    return {
        EXECUTORS_TO_WAIT_FOR: "0.8",  # see also begin_conf
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "10s",
        # A failed connection to an executor that is gone should not hold up a stage for half a minute.
        "spark.shuffle.io.maxRetries": "2",
        "spark.shuffle.io.retryWait": "1s",
        # Executors do not see each other's files.
        "spark.shuffle.readHostLocalDisk": "false",
        "spark.sql.shuffle.partitions": "8",
        # An executor that is to go (dynamic allocation, a TaskManager that is drained) hands its blocks on first.
        "spark.decommission.enabled": "true",
        "spark.storage.decommission.enabled": "true",
        "spark.storage.decommission.shuffleBlocks.enabled": "true",
        "spark.storage.decommission.rddBlocks.enabled": "true",
        # With Spark's 30 s the executor outlives most jobs.
        "spark.storage.decommission.replicationReattemptInterval": "1s",
        # Spark's own bound is none; it asks for as many executors as there are tasks.
        "spark.dynamicAllocation.maxExecutors": str(MAX_DYNAMIC_EXECUTORS),
    }


def executor_startup_conf(offered: Mapping[str, str]) -> dict[str, str]:
    """Vet what a driver wants its executors to be started with, and complete it.

    A driver runs the job's code, so its word is not enough: the security settings are ours, ports are
    Spark's to choose, and any other forbidden key is refused.
    """
    wanted: dict[str, str] = {}
    security = security_conf()
    for key, value in offered.items():
        if key in security:
            if value != security[key]:
                raise ForbiddenSparkConf(f"the driver wants executors with {key}={value}, not {security[key]}")
            continue
        if key.lower().endswith(".port") or key.startswith("spark.port."):
            continue
        if not key.startswith(_STARTUP):
            raise ForbiddenSparkConf(f"the driver wants executors started with {key[:100]!r}", "Spark sends it later")
        wanted[key] = value
    return {**check_unreserved(wanted), **security}
