"""The Spark settings that the launcher sets, and the defaults that a job may override. No I/O.

:mod:`sluice.runtime.spark.jvm.job_conf` decides what a job may set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sluice.runtime.spark.errors import ForbiddenSparkConf
from sluice.runtime.spark.jvm.job_conf import CHECKPOINT_LOCATION, check_unreserved

MAX_DYNAMIC_EXECUTORS = 1000
"""Default maximum number of executors with dynamic allocation."""

TLS_PROTOCOL = "SluiceTLSv1.3"
"""The SSLContext algorithm of Sluice's security provider (``runtime/spark/plugin``): only TLS 1.3 with client
certificates."""

SHUFFLE_PACKAGE = "org.apache.spark.shuffle.sluice"
"""The package of the plugin's shuffle manager."""

_STARTUP = ("spark.rpc.", "spark.network.", "spark.auth", "spark.ssl.")
"""The settings, besides ports, that an executor needs before it connects to the driver
(``SparkConf.isExecutorStartupConf``)."""


EXECUTORS_TO_WAIT_FOR = "spark.scheduler.minRegisteredResourcesRatio"


def security_conf() -> dict[str, str]:
    """The settings that secure Spark's channels, the same on driver and executors. They contain no secrets.

    AES network crypto stays off: inside TLS 1.3 it would encrypt twice without more protection.
    ``spark.authenticate`` is on in addition to TLS, so that a process must also know the job's secret.
    """
    return {
        "spark.ssl.rpc.enabled": "true",
        "spark.ssl.rpc.protocol": TLS_PROTOCOL,
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "false",
    }


@dataclass(frozen=True, slots=True)
class DriverShape:
    """The size of a job: the resources that its driver requests and gets."""

    executors: int
    executor_cores: int
    executor_memory_mb: int
    driver_memory_mb: int


def launcher_conf(*, job_id: str, name: str, host: str, shape: DriverShape) -> dict[str, str]:
    """The settings of a driver that the launcher decides. They override the job's own."""
    return {
        **security_conf(),
        "spark.master": f"sluice://{job_id}",
        "spark.app.name": name,
        "spark.driver.host": host,
        "spark.driver.bindAddress": host,
        # The UI opens no TCP port: see the plugin's SluiceUi.
        "spark.ui.enabled": "true",
        **ui_conf(),
        "spark.ui.showConsoleProgress": "false",
        "spark.shuffle.service.enabled": "false",
        # Used without the shuffle service. Spark's own class, for real-time mode, opens listeners; see the class.
        "spark.shuffle.manager.incremental": f"{SHUFFLE_PACKAGE}.NoPipelinedShuffles",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.executor.instances": str(shape.executors),
        "spark.executor.cores": str(shape.executor_cores),
        "spark.executor.memory": f"{shape.executor_memory_mb}m",
        "spark.driver.memory": f"{shape.driver_memory_mb}m",
    }


def ui_conf() -> dict[str, str]:
    """The settings of Spark's UI for running and ended jobs: read-only, and without inspection of processes."""
    return {
        "spark.ui.killEnabled": "false",
        "spark.ui.threadDumpsEnabled": "false",
        "spark.ui.heapHistogramEnabled": "false",
        "spark.ui.timelineEnabled": "false",
    }


DRIVER_LISTENS = ("rpc", "blocks", "connect")
"""The names of a driver's listeners, if its ports are assigned."""
EXECUTOR_LISTENS = ("blocks",)
_FIXED_PORTS = {"spark.port.maxRetries": "0"}
"""Without retries: peers expect the assigned port."""
NO_NATIVE_TRANSPORT = "-Dio.netty.transport.noNative=true"
"""Netty's native transport polls a socket before it connects or listens. In a private network one of the machine's
sockets replaces that socket and would not be polled. Java's own transport starts polling afterwards."""


def driver_port_conf(ports: Mapping[str, int]) -> dict[str, str]:
    """The settings of a driver that listens on assigned ports; ``ports`` by the names in :data:`DRIVER_LISTENS`."""
    return {
        **_FIXED_PORTS,
        "spark.driver.port": str(ports["rpc"]),
        "spark.driver.blockManager.port": str(ports["blocks"]),
    }


def executor_port_conf(ports: Mapping[str, int]) -> dict[str, str]:
    """The settings of an executor's ports; ``ports`` by the names in :data:`EXECUTOR_LISTENS`."""
    return {**_FIXED_PORTS, "spark.blockManager.port": str(ports["blocks"])}


def shuffle_conf(*, sealed: bool = False) -> dict[str, str]:
    """The settings of a driver that uses the shuffle service. They override the job's own.

    Executors hold no data that others need, so they may end at any time, and task locality does not matter.

    Args:
        sealed: whether to encrypt shuffle data, so that workers can neither read nor change it.
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
    """The additional settings of a Spark Connect session: its listener, whose TLS the plugin's guard configures.

    There is no shared token: the TLS handshake decides who may connect, and every user could read a token.
    """
    return {
        "spark.connect.grpc.binding.address": host,
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.session.manager.defaultSessionTimeout": f"{max(1, int(idle_seconds))}s",
    }


def streaming_conf(checkpoints: str) -> dict[str, str]:
    """The setting with which the next attempt of a job finds the checkpoints of its streaming queries by query name."""
    return {CHECKPOINT_LOCATION: checkpoints}


def begin_conf(job_conf: Mapping[str, str]) -> dict[str, str]:
    """The setting that starts tasks on the first executor, unless the job sets how many executors they wait for.

    The other executors get a moment to follow. If they do not, the machine is busy, and waiting would not help.
    """
    return {"spark.sluice.scheduler.beginWithFirst": str(EXECUTORS_TO_WAIT_FOR not in job_conf).lower()}


def default_conf() -> dict[str, str]:
    """Default settings for a cluster with slots, which a job may override."""
    return {
        EXECUTORS_TO_WAIT_FOR: "0.8",  # see also begin_conf
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "10s",
        # A failed connection to a lost executor must not delay a stage for half a minute.
        "spark.shuffle.io.maxRetries": "2",
        "spark.shuffle.io.retryWait": "1s",
        # Executors do not see each other's files.
        "spark.shuffle.readHostLocalDisk": "false",
        "spark.sql.shuffle.partitions": "8",
        # An executor that must end (dynamic allocation, a draining TaskManager) migrates its blocks first.
        "spark.decommission.enabled": "true",
        "spark.storage.decommission.enabled": "true",
        "spark.storage.decommission.shuffleBlocks.enabled": "true",
        "spark.storage.decommission.rddBlocks.enabled": "true",
        # With Spark's default of 30 s the executor would outlive most jobs.
        "spark.storage.decommission.replicationReattemptInterval": "1s",
        # Spark has no limit by default and requests as many executors as there are tasks.
        "spark.dynamicAllocation.maxExecutors": str(MAX_DYNAMIC_EXECUTORS),
    }


def executor_startup_conf(offered: Mapping[str, str]) -> dict[str, str]:
    """Check and complete the settings with which a driver wants its executors to start.

    A driver runs the job's code, so it is not trusted: the launcher sets the security settings, Spark chooses ports,
    and other reserved settings are refused.

    Raises:
        ForbiddenSparkConf: the driver changes a security setting, or requests a setting that it may not.
    """
    wanted: dict[str, str] = {}
    security = security_conf()
    for key, value in offered.items():
        if key in security:
            if value != security[key]:
                raise ForbiddenSparkConf(f"the driver requests executors with {key}={value}, not {security[key]}")
            continue
        if key.lower().endswith(".port") or key.startswith("spark.port."):
            continue
        if not key.startswith(_STARTUP):
            raise ForbiddenSparkConf(f"the driver starts executors with {key[:100]!r}", "Spark sends it later")
        wanted[key] = value
    return {**check_unreserved(wanted), **security}
