"""Attempts from inside a job's JVMs: other system calls, other libraries, other listeners."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ..attempt import Group, Place, Run, Tried, add, attempt, reached, refused, untried
from ..jvm import in_jvm, mark, remove
from ..world import PATTERNS, World

JVM = Group(
    "JVM",
    severity="critical",
    cwe=(653, 732),
    expected="no such file, process or socket in sight, or no right to it",
    remedy='run jobs with [isolation] level = "sandbox": driver and executor JVMs then see nothing but their own job',
)
_PLACES = (Place.DRIVER_JVM, Place.EXECUTOR_JVM)
_SECONDS = 150.0
"""Timeout: the first attempt in an executor waits for the answers to all."""

Targets = Callable[[World], Sequence[str]]


def _of(*kinds: str) -> Targets:
    return lambda world: [target.place for target in world.of(*kinds)]


def _running(*kinds: str) -> Targets:
    """Processes, each with the time at which it started if that is known."""
    return lambda world: [f"{each.place} @{each.mark}" if each.mark else each.place for each in world.of(*kinds)]


def _sockets(word: str) -> Targets:
    return lambda world: [each.place for each in world.of("unix socket") if word in each.name or word in each.place]


def _other_sockets(world: World) -> list[str]:
    words = ("rest", "auth", "sds", "xds", "admin", "connect")
    return [each.place for each in world.of("unix socket") if not any(word in each.name for word in words)]


def _ports(*words: str) -> Targets:
    def chosen(world: World) -> list[str]:
        return [each.place for each in world.of("port") if not words or any(word in each.name for word in words)]

    return chosen


_mutual = _ports("ca", "auth", "rest-tls", "blob", "data-")
_closed_to_jobs = _ports("ca", "auth", "rest-tls")


def _of_victims_jvms(world: World) -> list[str]:
    return [each.place for each in world.of("port of another job") if "py4j" not in each.name]


def _these(*paths: str) -> Targets:
    return lambda _: paths


def _python(_: World) -> list[str]:
    """The pipeline's Python environment, and its package directories."""
    return [sys.prefix, *(path for path in sys.path if path.endswith("site-packages")), str(Path(os.__file__).parent)]


def _spark_home(_: World) -> list[str]:
    home = os.environ.get("SPARK_HOME", "")
    return [home, f"{home}/jars", f"{home}/bin"] if home else []


def _java_home(world: World) -> list[str]:
    home = world.spark._jvm.java.lang.System.getProperty("java.home")  # noqa: SLF001  the way to the JVM
    return [home, f"{home}/lib", f"{home}/conf/security"]


def _code(world: World) -> list[str]:
    """The jar that is the agent of every JVM, by the arguments of this one."""
    arguments = world.spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()  # noqa: SLF001
    agents = [each.removeprefix("-javaagent:").split("=")[0] for each in arguments if each.startswith("-javaagent:")]
    archives = [each.partition("=")[2] for each in arguments if each.startswith("-XX:SharedArchiveFile=")]
    return agents + archives


def _code_directories(world: World) -> list[str]:
    return _as_outside(world, sorted({str(Path(each).parent) for each in _code(world)}))


def _as_outside(world: World, places: Sequence[str]) -> list[str]:
    """``places`` with device and inode where known: a sandbox creates its own parent directories of what it mounts."""
    marks = {target.place: target.mark for target in world.of("directory") if target.mark}
    return [f"{place} @{marks[place]}" if place in marks else place for place in places]


def _operators_home(world: World) -> list[str]:
    """The parent of the directory of cached code, and the home directory of the current user."""
    code = {Path(each).parent for each in _code(world)}
    caches = [str(path.parent.parent) for path in code if path.parent.name == ".cache"]
    return _as_outside(world, [*caches, "/root"])


def _marked(*kinds: str) -> Targets:
    """Key stores among targets."""
    return lambda world: [target.place for target in world.of(*kinds) if target.place.endswith(".p12")]


_AUTHORITIES = ("internal authority's key", "edge authority's key", "root authority's key")
_PROCESSES = ("JobManager's key", "TaskManager's key", "auth service's key", "gateway's key", "shuffle service's key")
_DIRECTORIES = "cluster directory"
_ALL_PROCESSES = ("process of another job", "process of the cluster")

_ROWS: tuple[tuple[str, str, Targets, str], ...] = (
    # Every secret, by java.nio.
    ("read the keys of the authorities by java.nio", "read-nio", _of(*_AUTHORITIES), "critical"),
    ("read the keys of the cluster's processes by java.nio", "read-nio", _of(*_PROCESSES), "critical"),
    ("read the keys of the gateway's assertions by java.nio", "read-nio", _of("assertion key"), "critical"),
    ("read tokens, users and sessions by java.nio", "read-nio", _of("token file", "users", "API token"), "critical"),
    ("read the audit log and its key by java.nio", "read-nio", _of("audit log's key", "audit log"), "high"),
    ("read the shuffle service's secret by java.nio", "read-nio", _of("shuffle secret"), "critical"),
    ("read the election's files by java.nio", "read-nio", _of("election", "process records"), "medium"),
    ("read logs of the cluster by java.nio", "read-nio", _of("logs of the cluster"), "medium"),
    ("read another job's key by java.nio", "read-nio", _of("job key", "job key store password"), "critical"),
    ("read another job's settings by java.nio", "read-nio", _of("job settings"), "critical"),
    ("read another job's logs by java.nio", "read-nio", _of("job log"), "high"),
    ("read another job's shuffle files, local data and checkpoints by java.nio", "read-nio",
     _of("job shuffle data", "job local data", "job checkpoint"), "high"),
    ("read what others submitted by java.nio", "read-nio", _of("job submission", "blob"), "high"),
    # One secret, by every means that a JVM has.
    ("map an authority's key into memory", "read-map", _of(*_AUTHORITIES), "critical"),
    ("read an authority's key by RandomAccessFile", "read-random", _of(*_AUTHORITIES), "critical"),
    ("read an authority's key by a file: URL", "read-url", _of(*_AUTHORITIES), "critical"),
    ("read an authority's key by Hadoop's file system", "read-hadoop", _of(*_AUTHORITIES), "critical"),
    ("read an authority's key as Hadoop's user root", "read-user", _of(*_AUTHORITIES), "critical"),
    ("read an authority's key by a program", "read-program", _of(*_AUTHORITIES), "critical"),
    ("open another process's key store", "read-keystore", _marked(*_PROCESSES), "critical"),
    ("list the cluster's directories", "read-listing", _of(_DIRECTORIES), "medium"),
    ("list another job's directories", "read-listing", _of("job directory"), "high"),
    ("see that an authority's key exists, and its size", "look-attributes", _of(*_AUTHORITIES), "low"),
    ("watch the cluster's directories for changes", "look-watch", _of(_DIRECTORIES), "medium"),
    ("make a hard link to an authority's key", "look-link", _of(*_AUTHORITIES), "critical"),
    # Writing.
    ("make a file in the cluster's directories", "write-create", _of(_DIRECTORIES), "critical"),
    ("make a file in the cluster's directories by Hadoop", "write-hadoop", _of(_DIRECTORIES), "critical"),
    ("have the JVM write its log into the cluster's directories", "write-jvmlog", _of(_DIRECTORIES), "critical"),
    ("make a file in another job's directory", "write-create", _of("job directory"), "critical"),
    ("make a file among the cached code of all JVMs", "write-create", _code_directories, "critical"),
    ("open the agent of all JVMs, or their classes, for writing", "write-open", _code, "critical"),
    ("open the agent of all JVMs for reading and writing", "write-random", _code, "critical"),
    ("set times of the agent of all JVMs", "write-touch", _code, "critical"),
    ("set the mode of the agent of all JVMs", "write-mode", _code, "critical"),
    ("make a file in the Python environment", "write-create", _python, "critical"),
    ("make a file in Spark's home", "write-create", _spark_home, "critical"),
    ("make a file in Java's home", "write-create", _java_home, "critical"),
    ("make a file in the operator's home", "write-create", _operators_home, "critical"),
    ("make a file among cron's", "write-create", _these("/etc/cron.d", "/var/spool/cron", "/var/spool/cron/crontabs"),
     "critical"),
    ("make a file in the system's directories", "write-create",
     _these("/", "/etc", "/usr/local/bin", "/usr/local/lib", "/opt", "/var/lib", "/var/log", "/run", "/srv", "/home"),
     "critical"),
    ("open an authority's key for writing", "write-open", _of(*_AUTHORITIES), "critical"),
    ("open the keys that REST believes for writing", "write-open", _of("policy and keys of REST"), "critical"),
    ("open the audit log for writing", "write-open", _of("audit log"), "critical"),
    ("set the mode of an authority's key", "write-mode", _of(*_AUTHORITIES), "critical"),
    # Processes.
    ("see command lines of others", "process-command", _running(*_ALL_PROCESSES), "medium"),
    ("get a ProcessHandle of a process of others", "process-handle", _running(*_ALL_PROCESSES), "medium"),
    ("read the environment of a process of others", "process-environ", _running(*_ALL_PROCESSES), "critical"),
    ("read the memory map of a process of others", "process-maps", _running(*_ALL_PROCESSES), "high"),
    ("open the memory of a process of others", "process-memory", _running(*_ALL_PROCESSES), "critical"),
    ("open the memory of a process of others for writing", "process-poke", _running(*_ALL_PROCESSES), "critical"),
    ("list descriptors of a process of others", "process-descriptors", _running(*_ALL_PROCESSES), "high"),
    ("read the auxiliary vector of a process of others", "process-auxv", _running(*_ALL_PROCESSES), "medium"),
    ("read the input and output counters of a process of others", "process-io", _running(*_ALL_PROCESSES), "low"),
    ("look through the root directory of a process of others", "process-root", _running(*_ALL_PROCESSES), "critical"),
    ("look through the working directory of a process of others", "process-cwd", _running(*_ALL_PROCESSES), "critical"),
    ("make others die first when memory is short", "process-score", _running(*_ALL_PROCESSES), "high"),
    ("prepare a JVM of others for an attaching agent", "process-attach", _running("process of another job"),
     "critical"),
    ("send signals to a process of others", "process-signal", _running(*_ALL_PROCESSES), "critical"),
    ("read or set resource limits of a process of others", "process-limits", _running(*_ALL_PROCESSES), "high"),
    ("enter namespaces of a process of others", "process-enter", _running(*_ALL_PROCESSES), "critical"),
    # Rights of the JVM itself.
    ("have capabilities in a JVM", "self-capabilities", _these("CapEff", "CapPrm", "CapInh", "CapAmb"), "critical"),
    ("have capabilities within the bounds of a JVM", "self-capabilities", _these("CapBnd"), "high"),
    ("gain privileges from a JVM by setuid programs", "self-zero", _these("NoNewPrivs"), "high"),
    ("make every system call from a JVM", "self-zero", _these("Seccomp"), "high"),
    ("make namespaces from a JVM", "self-program",
     _these("/usr/bin/unshare --user --map-root-user /bin/true", "/usr/bin/unshare --mount /bin/true"), "critical"),
    ("change the root directory from a JVM", "self-program", _these("/usr/sbin/chroot / /bin/true"), "critical"),
    ("make a device node from a JVM", "self-node", _these("self"), "critical"),
    ("leave its view by an open directory", "self-descriptors", _these("self"), "critical"),
    ("set the kernel's core pattern and the like", "write-open",
     _these("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/sys/kernel/uevent_helper"), "critical"),
    ("read the kernel's messages", "look-open", _these("/dev/kmsg"), "medium"),
    # Sockets.
    ("connect to REST's socket from a JVM", "unix-http", _sockets("rest"), "critical"),
    ("connect to the auth service's socket from a JVM", "unix-http", _sockets("auth"), "critical"),
    ("connect to the sockets that give Envoy its keys from a JVM", "unix-raw", _sockets("ds.sock"), "critical"),
    ("connect to Envoy's admin socket from a JVM", "unix-http", _sockets("admin"), "critical"),
    ("connect to the Spark Connect relay's socket from a JVM", "unix-raw", _sockets("connect"), "high"),
    ("connect to sockets of metrics, or of other kinds, from a JVM", "unix-http", _other_sockets, "medium"),
    ("connect to the socket of another job's agent from a JVM", "unix-raw", _of("socket of another job"),
     "critical"),
    ("connect to the system's sockets from a JVM", "unix-raw",
     _these("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/systemd/private",
            "/run/dbus/system_bus_socket"), "critical"),
    # Listeners.
    ("talk to a listener of the cluster without TLS from a JVM", "tcp-plain", _ports(), "critical"),
    ("talk to a listener of another job without TLS from a JVM", "tcp-plain", _of("port of another job"), "critical"),
    ("call another driver's JVM by py4j without its secret", "tcp-py4j", _of("port of another job"), "critical"),
    ("talk to the cluster's mutual TLS listeners without a certificate", "tcp-anonymous", _mutual, "critical"),
    ("talk to the cluster's RPC listeners without a certificate", "tcp-anonymous2", _ports("rpc"), "critical"),
    ("talk to the JVMs of another job without a certificate", "tcp-anonymous", _of_victims_jvms, "critical"),
    ("talk to the CA, REST or the auth service with a job's certificate", "tcp-own", _closed_to_jobs, "critical"),
    ("talk to the JVMs of another job with its own certificate", "tcp-own", _of_victims_jvms, "critical"),
    ("find the scheduler of another job by Spark's RPC", "spark-endpoint", _of_victims_jvms, "critical"),
    ("fetch a block of another job by Spark's block service", "spark-block", _of_victims_jvms, "critical"),
)  # fmt: skip


PATTERNS[_DIRECTORIES] = ("gateway", "pki/identities", "pki/ca/tokens", "ha/pointers/jobs", "blobs", "log", "run/sock")


def _trying(operation: str, targets: Targets) -> Run:
    return lambda world: in_jvm(world, operation, targets(world), lambda: _questions(world))


def _questions(world: World) -> list[tuple[str, Sequence[str]]]:
    """All questions for an executor's JVM."""
    return [(operation, places) for _, operation, targets, _ in _ROWS if (places := targets(world))]


for _number, (_what, _operation, _targets, _severity) in enumerate(_ROWS, 1):
    add(
        f"JVM-{_number:02}",
        _what,
        JVM,
        _trying(_operation, _targets),
        severity=_severity,
        places=_PLACES,
        seconds=_SECONDS,
        forked=False,
    )


@attempt(
    "JVM-97",
    "read a key of the cluster as a table of Spark",
    JVM,
    places=(Place.EXECUTOR_JVM,),
    forked=False,
    seconds=60,
)
def _as_table(world: World) -> Tried:
    return _each(world, _of(*_AUTHORITIES)(world), _read_table)


@attempt(
    "JVM-98",
    "write a table of Spark into the cluster's directories",
    JVM,
    places=(Place.EXECUTOR_JVM,),
    forked=False,
    seconds=60,
)
def _table_written(world: World) -> Tried:
    return _each(world, _of(_DIRECTORIES)(world)[:3], _write_table)


def _each(world: World, places: Sequence[str], run: Callable[[World, str], str]) -> Tried:
    if not places:
        return untried("no such place is known from outside, and none can be found from inside")
    refusals = []
    for place in places:
        try:
            return reached(f"asked Spark for file://{place}", run(world, place))
        except Exception as error:
            text = str(error)
            known = [word for word in _REFUSALS if word in text]
            if not known:
                raise
            refusals.append(known[0])
    return refused(f"asked Spark for file:// of {', '.join(places)}", ", ".join(refusals))


_REFUSALS = (
    "PATH_NOT_FOUND",
    "Permission denied",
    "Mkdirs failed",
    "No such file",
    "Read-only file system",
    "FileNotFoundException",
    "AccessDenied",
    "AccessControlException",
)


def _read_table(world: World, place: str) -> str:
    rows = world.spark.read.format("binaryFile").load(f"file://{place}").select("length").collect()
    return f"{rows[0][0]} bytes"


def _write_table(world: World, place: str) -> str:
    if not remove(world, place, exists_only=True):
        raise FileNotFoundError("No such file")
    made = mark(place)
    try:
        world.spark.range(1).selectExpr("string(id)").write.text(f"file://{made}")
    finally:
        remove(world, made)
    return "a table was written"
