"""Builds the command lines of Spark's JVMs. Starts nothing.

Usage in a TaskManager::

    spark = find_spark_runtime()                                   # once per process; compiles the plugin if needed
    temp_dir = make_temp_dir()                                     # short, private; remove_temp_dir() when it has ended
    place = JvmPlace(identity=…, work=work_dir, temp=temp_dir, reports=…, host=config.host)
    command = executor_command(launch, spark, place)
    command.write_files()                                          # 0600
    child = await ChildProcess.start(command.argv, env=command.env, cwd=work_dir, stdout=…, stderr=…)

The identity directory must be complete, including its ``peers`` file, before the start: a JVM without an identity halts
with exit code :data:`IDENTITY_EXIT_CODE`. ``argv`` contains no secrets. The environment is complete: nothing is
inherited from the parent.
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
"""Exit code of a JVM that the security provider stopped: it has no usable identity, or Spark could not be guarded."""

MINIMUM_EXECUTOR_MEMORY_MB = 450
"""The smallest heap that Spark accepts (1.5 times its reserved memory), in MiB."""

CLASSES_LOG = "classes.log"
"""The file in the working directory of a JVM that says whether it could use the class archive, and why not."""

SERIAL_GC_BELOW_MB = 1792
"""Heaps below this size, in MiB, use the serial garbage collector. Java itself does so on machines of this size
(HotSpot's "server-class machine"), but it looks at the whole machine, which several slots share."""


AGENT_OPTION = "-javaagent:"
SPARK_AUTH_SECRET = "_SPARK_AUTH_SECRET"  # noqa: S105  # its name
"""The environment variable from which Spark's executors, and ``Agent.scala`` in drivers, read the job's secret, so that
it is never on disk."""


class TlsEngine(enum.StrEnum):
    """The TLS 1.3 implementation that the provider uses; both follow the same rules.

    OpenSSL (BoringSSL in netty-tcnative, among Spark's jars) is faster, above all in the first seconds of a JVM, while
    the JDK's implementation is still interpreted; see ``benchmarks/spark_tls.py``.
    """

    JDK = "jdk"
    OPENSSL = "openssl"


_NATIVE_PLATFORMS = {
    ("Linux", "x86_64"): "linux-x86_64",
    ("Linux", "aarch64"): "linux-aarch_64",
    ("Darwin", "x86_64"): "osx-x86_64",
    ("Darwin", "arm64"): "osx-aarch_64",
}
"""The classifiers of netty-tcnative's native libraries by platform. On Linux they are linked against glibc."""


def engine_for(system: str, machine: str, libc: str, jars: Iterable[Path]) -> TlsEngine:
    """The OpenSSL engine if its native library exists and can be loaded, or else the JDK's."""
    classifier = _NATIVE_PLATFORMS.get((system, machine))
    if classifier is None or (system == "Linux" and libc != "glibc"):
        return TlsEngine.JDK
    found = any(jar.name.startswith("netty-tcnative-boringssl-static-") and classifier in jar.name for jar in jars)
    return TlsEngine.OPENSSL if found else TlsEngine.JDK


@dataclass(frozen=True, slots=True)
class SparkRuntime:
    """The installation from which every Spark JVM is started.

    Attributes:
        class_archive: the class archive; None: there is none (yet).
        vector_api: whether JVMs have the Vector API even if that prevents the use of an AOT cache.
    """

    java: Java
    distribution: SparkDistribution
    plugin: Path
    engine: TlsEngine
    class_archive: Path | None = None
    vector_api: bool = False

    @property
    def may_use_archive(self) -> bool:
        """Whether JVMs could use a class archive."""
        return not (self.vector_api and has_aot_caches(self.java))

    @property
    def module_options(self) -> tuple[str, ...]:
        """The options of each JVM for its modules and their opened packages."""
        return module_options(self.java) if self.may_use_archive else (*MODULE_OPTIONS, VECTOR_MODULE_OPTION)

    @property
    def read_only(self) -> tuple[Path, ...]:
        """The paths that a Spark process reads in addition to its own directories, the system and Python."""
        files = (self.plugin,) if self.class_archive is None else (self.plugin, self.class_archive)
        return (*java_paths(self.java.executable), self.distribution.home, *files)


def find_spark_runtime(
    *,
    java: Java | None = None,
    spark: SparkDistribution | None = None,
    archive: bool = True,
    vector_api: bool = False,
) -> SparkRuntime:
    """Find Java, the installed Spark and the plugin, which is compiled if needed.

    Args:
        java: default: the result of :func:`find_spark_java`.
        spark: default: the installed one.
        archive: use a class archive if there is one.
        vector_api: see :class:`SparkRuntime`.

    Raises:
        SparkError: one of them is missing.
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
    """The program of a JVM, with its options.

    ``options`` are fixed once the JVM runs. A waiting JVM receives everything else later
    (:mod:`sluice.runtime.spark.jvm.waiting`).
    """

    options: tuple[str, ...]
    main: str
    arguments: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    def command(self, spark: SparkRuntime, env: Mapping[str, str], argfile: Path) -> Command:
        """The command that starts the program, with its options and properties in ``argfile``."""
        properties = (f"-D{key}={value}" for key, value in sorted(self.properties.items()))
        content = argument_file([*self.options, *properties, "-cp", spark.distribution.class_path])
        argv = (str(spark.java.executable), f"@{argfile}", self.main, *self.arguments)
        return Command(argv, env, {argfile: content}, spark.read_only, self)


@dataclass(frozen=True, slots=True)
class Command:
    """A process to start. ``files`` must be written (0600) before; like ``env``, they may contain secrets.

    ``read_only`` are the paths that it reads in addition to its directories, the system and Python. ``jvm`` is its
    program if it is a JVM.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    files: Mapping[Path, bytes] = field(repr=False)
    read_only: tuple[Path, ...] = ()
    jvm: JvmProgram | None = None

    def write_files(self) -> None:
        """Write :attr:`files`, readable only by their owner."""
        for path, content in self.files.items():
            write_secret(path, content)


def executor_command(launch: ExecutorLaunch, spark: SparkRuntime, place: JvmPlace) -> Command:
    """The command of one executor.

    Args:
        launch: the JobMaster's request. Settings that come from the driver are checked again.
        spark: see :func:`find_spark_runtime`.
        place: its directories and address.

    Raises:
        ForbiddenSparkConf: the driver requests a setting or option that only the launcher may set.
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
    """The command of a driver's JVM: a py4j gateway on loopback that ends when its standard input is closed.

    Args:
        conf: the complete Spark configuration, with ``spark.authenticate.secret``. It is written to an argument file
            that only the owner can read, except for the secret, which the Java agent reads from the environment.
        spark: see :func:`find_spark_runtime`.
        place: its directories and address.
        memory_mb: its heap in MiB.
        bridge: unix socket of the driver agent, see :mod:`sluice.runtime.spark.driver.bridge`.
        connection_info: the file to which the gateway writes its port and token.
        job_id: the id of the job.
        attempt: the number of the attempt, from 1.
        allow_conf: settings that the operator additionally allows in the job's code.
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
        # The Python with which executors run functions from Spark Connect clients.
        "PYSPARK_PYTHON": sys.executable,
        "SLUICE_BRIDGE": str(bridge),
        "SLUICE_JOB_ID": job_id,
        "SLUICE_ATTEMPT": str(attempt),
    }
    return program.command(spark, env, place.work / "driver-jvm.args")


HISTORY_UI_CLASS = "org.apache.spark.ui.HistoryUi"
"""The main class that serves Spark's UI for an ended job (``runtime/spark/plugin/ui/HistoryUi.scala``)."""


def history_ui_command(
    spark: SparkRuntime, *, event_log: Path, work_dir: Path, temp_dir: Path, bridge: Path, memory_mb: int
) -> Command:
    """The command of a JVM that serves Spark's UI for an ended job. It ends when its standard input is closed.

    The JVM has no identity and connects to nothing, so the plugin does not guard it; its box does.

    Args:
        spark: see :func:`find_spark_runtime`.
        event_log: a compressed event log, which is not trusted.
        work_dir: its working directory.
        temp_dir: its temporary directory.
        bridge: a path in a private directory, in which the JVM creates the socket ``ui``.
        memory_mb: its heap in MiB.
    """
    archive = archive_options(spark.class_archive, work_dir / CLASSES_LOG) if spark.class_archive is not None else []
    options = (
        *spark.module_options,
        "--add-modules=java.instrument",  # as an agent would: a class archive fits only JVMs with the same modules
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
    """The start options of a Spark JVM, independent of its job's settings. They contain no secrets."""
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
    """The environment of a Spark JVM, independent of its job's settings."""
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
    """Refuse any JVM option from the driver except those that Spark adds itself; executors have these already."""
    for option in options:
        if option not in {*MODULE_OPTIONS, VECTOR_MODULE_OPTION}:
            raise ForbiddenSparkConf(f"the driver requests executors with the JVM option {option[:200]!r}")
