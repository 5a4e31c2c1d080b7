"""Composing the command lines of Spark's JVMs. Values in, values out; nothing is started here.

How a TaskManager uses it::

    spark = find_spark_runtime()                                   # once per process; compiles the plugin if needed
    temp_dir = make_temp_dir()                                     # short, private; remove_temp_dir() when it has ended
    place = JvmPlace(identity=…, work=work_dir, temp=temp_dir, reports=…, host=config.host)
    command = executor_command(launch, spark, place)
    command.write_files()                                          # 0600
    child = await ChildProcess.start(command.argv, env=command.env, cwd=work_dir, stdout=…, stderr=…)

The identity directory must be complete, with its ``peers`` file, before the start: a JVM without identity halts
with exit code :data:`IDENTITY_EXIT_CODE`. Nothing secret is in ``argv``; the environment is complete, nothing
of the parent's is inherited.
"""

from __future__ import annotations

import enum
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sluice.core import write_secret
from sluice.runtime.messages import ExecutorLaunch
from sluice.runtime.sandbox import java_paths
from sluice.runtime.spark.errors import ForbiddenSparkConf
from sluice.runtime.spark.java import Java, SparkDistribution, find_spark
from sluice.runtime.spark.jvm.class_archive import (
    archive_options,
    find_class_archive,
    find_spark_java,
    has_aot_caches,
    module_options,
)
from sluice.runtime.spark.jvm.conf import (
    NO_NATIVE_TRANSPORT,
    driver_port_conf,
    executor_port_conf,
    executor_startup_conf,
    ui_conf,
)
from sluice.runtime.spark.jvm.job_conf import rendered
from sluice.runtime.spark.jvm.options import MODULE_OPTIONS, SCALA_BINARY_VERSION, VECTOR_MODULE_OPTION, argument_file
from sluice.runtime.spark.jvm.place import JvmPlace
from sluice.runtime.spark.plugin_build import ensure_plugin

IDENTITY_EXIT_CODE = 97
"""Exit code of a JVM that the security provider stopped: no usable identity, or Spark could not be guarded."""

MINIMUM_EXECUTOR_MEMORY_MB = 450
"""Least heap Spark accepts (1.5 times its reserved memory), in MiB."""

CLASSES_LOG = "classes.log"
"""In the working directory of a JVM: whether it could use the archive of classes, and why not."""

SERIAL_GC_BELOW_MB = 1792
"""Heaps smaller than this, in MiB, are collected by one thread: what Java itself does on machines of this size
(HotSpot's "server-class machine"); it looks at the machine, but slots share one."""


AGENT_OPTION = "-javaagent:"
SPARK_AUTH_SECRET = "_SPARK_AUTH_SECRET"  # noqa: S105  # its name
"""Where Spark's executors look for the job's secret, and ``Agent.scala`` for drivers: it is on no disk."""


class TlsEngine(enum.StrEnum):
    """Which implementation of TLS 1.3 the provider uses; the rules are the same.

    OpenSSL's (BoringSSL in netty-tcnative, among Spark's jars) is the quicker one, above all in the first seconds of
    a JVM, when the JDK's is still interpreted; see ``benchmarks/spark_tls.py``.
    """

    JDK = "jdk"
    OPENSSL = "openssl"


_NATIVE_PLATFORMS = {
    ("Linux", "x86_64"): "linux-x86_64",
    ("Linux", "aarch64"): "linux-aarch_64",
    ("Darwin", "x86_64"): "osx-x86_64",
    ("Darwin", "arm64"): "osx-aarch_64",
}
"""Where netty-tcnative has a native library, by its classifier; on Linux it is linked against glibc."""


def engine_for(system: str, machine: str, libc: str, jars: Iterable[Path]) -> TlsEngine:
    """OpenSSL's engine where its native library is there and will load, else the JDK's."""
    classifier = _NATIVE_PLATFORMS.get((system, machine))
    if classifier is None or (system == "Linux" and libc != "glibc"):
        return TlsEngine.JDK
    found = any(jar.name.startswith("netty-tcnative-boringssl-static-") and classifier in jar.name for jar in jars)
    return TlsEngine.OPENSSL if found else TlsEngine.JDK


@dataclass(frozen=True, slots=True)
class SparkRuntime:
    """What every Spark JVM is started from.

    Attributes:
        class_archive: None where there is none (yet).
        vector_api: whether JVMs have the Vector API also where they can have no AOT cache then.
    """

    java: Java
    distribution: SparkDistribution
    plugin: Path
    engine: TlsEngine
    class_archive: Path | None = None
    vector_api: bool = False

    @property
    def may_use_archive(self) -> bool:
        """Whether JVMs could use an archive of classes."""
        return not (self.vector_api and has_aot_caches(self.java))

    @property
    def module_options(self) -> tuple[str, ...]:
        """The options of each JVM that say which modules it has, and what is open of them."""
        return module_options(self.java) if self.may_use_archive else (*MODULE_OPTIONS, VECTOR_MODULE_OPTION)

    @property
    def read_only(self) -> tuple[Path, ...]:
        """What a process of Spark reads besides its own directories, the system and Python."""
        files = (self.plugin,) if self.class_archive is None else (self.plugin, self.class_archive)
        return (*java_paths(self.java.executable), self.distribution.home, *files)


def find_spark_runtime(
    *,
    java: Java | None = None,
    spark: SparkDistribution | None = None,
    archive: bool = True,
    vector_api: bool = False,
) -> SparkRuntime:
    """Java, the installed Spark and the plugin (compiled if needed); raises what is missing.

    Args:
        java: default: the one that Spark's JVMs are to have here.
        spark: default: the installed one.
        archive: use an archive of classes, if there is one.
        vector_api: see :class:`SparkRuntime`.
    """
    distribution = spark or find_spark()
    java = java or find_spark_java(distribution)
    engine = engine_for(platform.system(), platform.machine(), platform.libc_ver()[0], distribution.jars)
    plugin = ensure_plugin(java=java, spark=distribution)
    runtime = SparkRuntime(java, distribution, plugin, engine, vector_api=vector_api)
    if not archive or not runtime.may_use_archive:
        return runtime
    return replace(runtime, class_archive=find_class_archive(java, distribution))


@dataclass(frozen=True, slots=True)
class JvmProgram:
    """What runs in a JVM, apart from what it is started with.

    ``options`` cannot be changed once it runs; everything else a JVM that waits can be told later
    (:mod:`sluice.runtime.spark.jvm.waiting`).
    """

    options: tuple[str, ...]
    main: str
    arguments: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    def command(self, spark: SparkRuntime, env: Mapping[str, str], argfile: Path) -> Command:
        """The command that starts it, with its options and properties in ``argfile``."""
        properties = (f"-D{key}={value}" for key, value in sorted(self.properties.items()))
        content = argument_file([*self.options, *properties, "-cp", spark.distribution.class_path])
        argv = (str(spark.java.executable), f"@{argfile}", self.main, *self.arguments)
        return Command(argv, env, {argfile: content}, spark.read_only, self)


@dataclass(frozen=True, slots=True)
class Command:
    """A process to start: ``files`` must be written (0600) first, and may hold secrets, as may ``env``.

    ``read_only`` is what it needs to read besides its directories, the system and Python. ``jvm`` says what it is,
    if it is a JVM.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    files: Mapping[Path, bytes] = field(repr=False)
    read_only: tuple[Path, ...] = ()
    jvm: JvmProgram | None = None

    def write_files(self) -> None:
        """Write :attr:`files`, each readable by its owner alone."""
        for path, content in self.files.items():
            write_secret(path, content)


def executor_command(launch: ExecutorLaunch, spark: SparkRuntime, place: JvmPlace) -> Command:
    """The command of one executor.

    Args:
        launch: what the JobMaster asks for; settings that come from the driver are vetted again.
        spark: see :func:`find_spark_runtime`.
        place: where it runs.

    Raises:
        ForbiddenSparkConf: the driver wants something that the launcher decides.
    """
    _check_java_options(launch.java_options)
    ports = {} if place.ports is None else executor_port_conf(place.ports)
    program = JvmProgram(
        jvm_options(spark, place, launch.memory_mb),
        "org.apache.spark.executor.CoarseGrainedExecutorBackend",
        (
            *("--driver-url", launch.driver_url),
            *("--executor-id", str(launch.executor_id)),
            *("--bind-address", place.host),
            *("--hostname", place.host),
            *("--cores", str(launch.cores)),
            *("--app-id", launch.app_id),
            *("--resourceProfileId", str(launch.resource_profile_id)),
        ),
        {**executor_startup_conf(launch.startup_conf), **ports},
    )
    env = {
        **jvm_environment(spark, place.work, place.temp, place.host),
        "SPARK_EXECUTOR_DIRS": str(place.work / "local"),
        "PYSPARK_PYTHON": launch.python,
        "OMP_NUM_THREADS": str(launch.cores),
        SPARK_AUTH_SECRET: launch.spark_auth_secret,
    }
    return program.command(spark, env, place.work / "executor.args")


def driver_jvm_command(
    conf: Mapping[str, str],
    spark: SparkRuntime,
    place: JvmPlace,
    *,
    memory_mb: int,
    bridge: Path,
    connection_info: Path,
    job_id: str,
    attempt: int,
    allow_conf: Sequence[str] = (),
) -> Command:
    """The command of a driver's JVM: a py4j gateway on loopback that ends at the end of its standard input.

    Args:
        conf: the complete Spark configuration, with ``spark.authenticate.secret``; it goes into an argument
            file that only the owner can read, but for the secret, which our agent finds in the environment.
        spark: see :func:`find_spark_runtime`.
        place: where it runs.
        memory_mb: its heap.
        bridge: unix socket of the driver agent, see :mod:`sluice.runtime.spark.driver.bridge`.
        connection_info: where the gateway writes its port and token.
        job_id: of the job.
        attempt: of the job, from 1.
        allow_conf: settings that the operator allows the job's code in addition.
    """
    settings = dict(conf)
    secret = settings.pop("spark.authenticate.secret", None)
    program = JvmProgram(
        jvm_options(spark, place, memory_mb),
        "org.apache.spark.api.python.PythonGatewayServer",
        (),
        {**rendered(allow_conf), **settings, **({} if place.ports is None else driver_port_conf(place.ports))},
    )
    env = {
        **jvm_environment(spark, place.work, place.temp, place.host),
        **({} if secret is None else {SPARK_AUTH_SECRET: secret}),
        "SPARK_LOCAL_DIRS": str(place.work / "local"),
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(connection_info),
        "SPARK_SCALA_VERSION": SCALA_BINARY_VERSION,
        # The Python of executors for the functions of Spark Connect's clients.
        "PYSPARK_PYTHON": sys.executable,
        "SLUICE_BRIDGE": str(bridge),
        "SLUICE_JOB_ID": job_id,
        "SLUICE_ATTEMPT": str(attempt),
    }
    return program.command(spark, env, place.work / "driver-jvm.args")


HISTORY_UI_CLASS = "org.apache.spark.ui.HistoryUi"
"""Spark's UI of a job that has ended (``runtime/spark/plugin/ui/HistoryUi.scala``)."""


def history_ui_command(
    spark: SparkRuntime, *, event_log: Path, work_dir: Path, temp_dir: Path, bridge: Path, memory_mb: int
) -> Command:
    """The command of a JVM that shows Spark's UI of a job that has ended. It ends with its standard input.

    It has neither an identity nor anything to connect to, so nothing of the plugin guards it: its box does.

    Args:
        event_log: compressed, of whoever.
        bridge: beside it the JVM makes the socket ``ui``, in a private directory.
        memory_mb: its heap.
    """
    archive = archive_options(spark.class_archive, work_dir / CLASSES_LOG) if spark.class_archive is not None else []
    options = (
        *spark.module_options,
        "--add-modules=java.instrument",  # an archive of classes fits only JVMs with the same modules; an agent adds it
        f"-Xmx{memory_mb}m",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:+DisableAttachMechanism",
        "-XX:-UsePerfData",
        "-XX:+UseSerialGC",
        *archive,
        f"-Djava.io.tmpdir={temp_dir}",
        *(f"-D{key}={value}" for key, value in ui_conf().items()),
        *("-cp", f"{spark.distribution.class_path}:{spark.plugin}"),
    )
    argfile = work_dir / "history.args"
    env = {**jvm_environment(spark, work_dir, temp_dir, "127.0.0.1"), "SLUICE_BRIDGE": str(bridge)}
    argv = (str(spark.java.executable), f"@{argfile}", HISTORY_UI_CLASS, str(event_log))
    return Command(argv, env, {argfile: argument_file(options)}, spark.read_only)


def jvm_options(spark: SparkRuntime, place: JvmPlace, memory_mb: int) -> tuple[str, ...]:
    """What a JVM of Spark is started with, whatever it becomes; nothing of it is secret."""
    return (
        *spark.module_options,
        f"-Xmx{memory_mb}m",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:+DisableAttachMechanism",
        "-XX:-UsePerfData",
        *(["-XX:+UseSerialGC"] if memory_mb < SERIAL_GC_BELOW_MB else []),
        *(archive_options(spark.class_archive, place.work / CLASSES_LOG) if spark.class_archive is not None else []),
        f"-Djava.io.tmpdir={place.temp}",
        f"-Dsluice.tls.engine={spark.engine}",
        f"-Dsluice.reports={place.reports}",
        *([NO_NATIVE_TRANSPORT] if place.ports is not None else []),
        f"{AGENT_OPTION}{spark.plugin}={place.identity}",
    )


def jvm_environment(spark: SparkRuntime, work_dir: Path, temp_dir: Path, host: str) -> dict[str, str]:
    """The environment of a JVM of Spark, whatever it becomes."""
    return {
        "PATH": f"{spark.java.executable.parent}:/usr/bin:/bin",
        "HOME": str(work_dir),
        "LANG": "C.UTF-8",
        "TMPDIR": str(temp_dir),
        "SPARK_HOME": str(spark.distribution.home),
        "SPARK_LOCAL_IP": host,
        "SPARK_CONF_DIR": str(work_dir),
    }


def _check_java_options(options: Iterable[str]) -> None:
    """Refuse any JVM option of the driver's but the ones Spark adds by itself: an executor has those that it needs."""
    for option in options:
        if option not in {*MODULE_OPTIONS, VECTOR_MODULE_OPTION}:
            raise ForbiddenSparkConf(f"the driver wants executors with the JVM option {option[:200]!r}")
