"""What a job may say about Spark, and what only the launcher may.

A job's own configuration is data from outside. Some keys would let it weaken the mutual TLS of
Spark's channels, open a plaintext listener, or put its own options on the command line of a JVM that
holds an identity; :func:`check_job_conf` refuses those by name. Everything that the launcher decides
instead is :func:`launcher_conf`. Decisions only; no I/O.

The rules are also rendered into the driver JVM (:data:`FORBIDDEN_PATTERNS_PROPERTY`), where the cluster
manager refuses a SparkContext whose *code* set such a key, so there is one list.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass

from sluice.runtime.spark.errors import ForbiddenSparkConf

MAX_CONF_ENTRIES = 500
"""Most Spark settings one job may carry."""

MAX_CONF_VALUE_CHARACTERS = 32_768
"""Longest value of one Spark setting."""

MAX_DYNAMIC_EXECUTORS = 1000
"""Executors that dynamic allocation asks for unless the job says otherwise."""

TLS_PROTOCOL = "SluiceTLSv1.3"
"""The SSLContext algorithm of our security provider (``runtime/spark/plugin``): nothing but TLS 1.3 with client
certificates."""

FORBIDDEN_PATTERNS_PROPERTY = "sluice.forbidden"
"""System property of the driver JVM that holds :func:`forbidden_patterns`, separated by commas."""

SHUFFLE_PACKAGE = "org.apache.spark.shuffle.sluice"
"""Where the plugin's shuffle manager is."""

CHECKPOINT_LOCATION = "spark.sql.streaming.checkpointLocation"

_KEY = re.compile(r"spark(\.[A-Za-z0-9_-]+)+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Rule:
    """Settings matching ``pattern`` (``*`` matches anything, dots included) belong to the launcher, because ``why``."""

    pattern: str
    why: str
    remedy: str = "leave it out"


_TLS = "the channels of a job are mutual TLS and a job cannot change that"
_COMMAND = "the launcher composes every JVM command line and environment itself"
_LISTENER = "it would open or move a listener"
_PLACE = "the launcher decides where a job runs"
_SIZE = "slots decide the size of an executor"
_SHUFFLE = "the cluster decides where shuffles go"
_FETCH = "files of a job travel with its submission, not over connections of Spark's own"

RULES: tuple[Rule, ...] = (
    # 1. Anything that decides how Spark's own channels are secured.
    Rule("spark.ssl", _TLS),
    Rule("spark.ssl.*", _TLS),
    Rule("spark.authenticate", _TLS),
    Rule("spark.authenticate.*", _TLS),
    Rule("spark.network.crypto.*", _TLS),
    Rule("spark.network.sasl.*", _TLS),
    Rule("spark.redaction.*", "it decides which secrets are kept out of logs"),
    Rule("spark.sluice.*", "these names are the launcher's own"),
    # 2. Anything that reaches a JVM's or a worker's command line, class path or environment.
    Rule("spark.*.extrajavaoptions", _COMMAND),
    Rule("spark.*.defaultjavaoptions", _COMMAND),
    Rule("spark.*.extraclasspath", _COMMAND),
    Rule("spark.*.extralibrarypath", _COMMAND),
    Rule("spark.*.userclasspathfirst", _COMMAND),
    Rule("spark.executorenv.*", _COMMAND),
    Rule("spark.plugins", _COMMAND),
    Rule("spark.plugins.*", _COMMAND),
    Rule("spark.extralisteners", _COMMAND),
    Rule("spark.pyspark.*", _COMMAND, "use --python, with a Python of --archives"),
    Rule("spark.python.daemon.module", _COMMAND),
    Rule("spark.python.worker.module", _COMMAND),
    Rule("spark.python.use.daemon", _COMMAND),
    Rule("spark.home", _COMMAND),
    Rule("spark.r.*", "only Python pipelines are run"),
    # 3. Listeners besides the TLS ones.
    Rule("spark.ui", _LISTENER),
    Rule("spark.ui.*", _LISTENER),
    Rule("spark.connect.*", _LISTENER),
    Rule("spark.remote", _LISTENER),
    Rule("spark.remote.*", _LISTENER),
    Rule("spark.local.connect", _LISTENER),
    Rule("spark.api.mode", _LISTENER),
    Rule("spark.metrics.*", _LISTENER),
    Rule("spark.history.*", _LISTENER),
    Rule("spark.sql.hive.thriftserver.*", _LISTENER),
    Rule("spark.shuffle.service.*", _LISTENER),
    Rule("spark.port.*", _LISTENER),
    Rule("spark.*.port", _LISTENER),
    Rule("spark.*.bindaddress", _LISTENER),
    Rule("spark.driver.host", _LISTENER),
    Rule("spark.python.unix.domain.socket.*", "Python workers are reached over private unix sockets only"),
    # 4. Where and how large.
    Rule("spark.master", _PLACE),
    Rule("spark.master.*", _PLACE),
    Rule("spark.worker.*", _PLACE),
    Rule("spark.deploy.*", _PLACE),
    Rule("spark.yarn.*", _PLACE),
    Rule("spark.kubernetes.*", _PLACE),
    Rule("spark.app.id", _PLACE),
    Rule("spark.local.dir", _PLACE),
    Rule("spark.executor.instances", _SIZE, "use --executors"),
    Rule("spark.executor.cores", _SIZE, "use --executor-cores"),
    Rule("spark.executor.memory", _SIZE, "use --executor-memory"),
    Rule("spark.driver.memory", _SIZE, "set driver_memory_mb in [spark]"),
    Rule("spark.driver.cores", _SIZE),
    Rule(CHECKPOINT_LOCATION.lower(), "checkpoints are where the next attempt of the job finds them"),
    # 5. Shuffles go through the service, or not, for the whole job; a map's number must be that of its attempt.
    Rule("spark.shuffle.manager", _SHUFFLE),
    Rule("spark.shuffle.manager.*", _SHUFFLE),
    Rule("spark.shuffle.sort.io.plugin.class", _SHUFFLE),
    Rule("spark.shuffle.useoldfetchprotocol", _SHUFFLE),
    Rule("spark.shuffle.push.*", _SHUFFLE),
    # 6. Artifacts fetched outside the blob server.
    Rule("spark.submit.*", _FETCH, "use --file"),
    Rule("spark.jars", _FETCH, "use --file and SparkContext.addJar"),
    Rule("spark.jars.*", _FETCH, "use --file and SparkContext.addJar"),
    Rule("spark.files", _FETCH, "use --file"),
    Rule("spark.archives", _FETCH, "use --archives"),
)
"""Every setting a job may not make. Matched without regard to case."""


def forbidden_patterns() -> tuple[str, ...]:
    """The patterns of :data:`RULES`, lower case, for the check inside the driver JVM."""
    return tuple(rule.pattern for rule in RULES)


def forbidden_by(key: str) -> Rule | None:
    """The rule that keeps ``key`` from a job, or None when the job may set it."""
    lowered = key.lower()
    return next((rule for rule in RULES if fnmatch.fnmatchcase(lowered, rule.pattern)), None)


def check_job_conf(conf: Mapping[str, str]) -> dict[str, str]:
    """A copy of a job's Spark settings; :class:`ForbiddenSparkConf` names the first that it may not make."""
    if len(conf) > MAX_CONF_ENTRIES:
        raise ForbiddenSparkConf(f"{len(conf)} Spark settings in one job", f"at most {MAX_CONF_ENTRIES} are taken")
    for key, value in conf.items():
        if not _KEY.fullmatch(key):
            raise ForbiddenSparkConf(f"{key[:100]!r} is not a Spark setting", "settings are named spark.something")
        rule = forbidden_by(key)
        if rule is not None:
            raise ForbiddenSparkConf(f"a job may not set {key}: {rule.why}", rule.remedy)
        if len(value) > MAX_CONF_VALUE_CHARACTERS:
            raise ForbiddenSparkConf(f"the value of {key} has {len(value)} characters", "shorten it")
        if _CONTROL.search(value):
            raise ForbiddenSparkConf(f"the value of {key} has control characters", "remove line breaks and the like")
    return dict(conf)


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
    """How large a job is: what its driver asks for and gets."""

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
        # It listens nowhere: see the plugin's SluiceUi. Read-only, and without what looks into processes.
        "spark.ui.enabled": "true",
        "spark.ui.killEnabled": "false",
        "spark.ui.threadDumpsEnabled": "false",
        "spark.ui.heapHistogramEnabled": "false",
        "spark.ui.timelineEnabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.shuffle.service.enabled": "false",
        # Spark's own, for real-time mode, opens listeners without TLS; see the class.
        "spark.shuffle.manager.incremental": f"{SHUFFLE_PACKAGE}.NoPipelinedShuffles",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.executor.instances": str(shape.executors),
        "spark.executor.cores": str(shape.executor_cores),
        "spark.executor.memory": f"{shape.executor_memory_mb}m",
        "spark.driver.memory": f"{shape.driver_memory_mb}m",
    }


def shuffle_conf() -> dict[str, str]:
    """The settings of a driver whose shuffles go through the shuffle service; they win over the job's own.

    Executors hold nothing that others need, so they may go at any time, and it does not matter where a task runs.
    """
    return {
        "spark.shuffle.manager": f"{SHUFFLE_PACKAGE}.SluiceShuffleManager",
        "spark.shuffle.sort.io.plugin.class": f"{SHUFFLE_PACKAGE}.SluiceDataIO",
        "spark.shuffle.reduceLocality.enabled": "false",
        "spark.dynamicAllocation.shuffleTracking.enabled": "false",
        "spark.storage.decommission.shuffleBlocks.enabled": "false",
    }


def connect_conf(host: str, idle_seconds: float) -> dict[str, str]:
    """The settings of a Spark Connect session besides: its listener, whose TLS the plugin's guard decides.

    No shared token: who may connect is decided in the handshake, and a token would be readable to every user.
    """
    return {
        "spark.connect.grpc.binding.address": host,
        "spark.connect.grpc.binding.port": "0",
        "spark.connect.session.manager.defaultSessionTimeout": f"{max(1, int(idle_seconds))}s",
    }


def streaming_conf(checkpoints: str) -> dict[str, str]:
    """The setting that lets the next attempt of a job find the checkpoints of its streaming queries, by their names."""
    return {CHECKPOINT_LOCATION: checkpoints}


def default_conf() -> dict[str, str]:
    """Settings that suit a cluster of slots and that a job may override."""
    return {
        "spark.scheduler.minRegisteredResourcesRatio": "0.8",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "10s",
        # A failed connection to an executor that is gone should not hold up a stage for half a minute.
        "spark.shuffle.io.maxRetries": "2",
        "spark.shuffle.io.retryWait": "1s",
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
        if key.lower().endswith(".port"):
            continue
        wanted[key] = value
    return {**check_job_conf(wanted), **security}
