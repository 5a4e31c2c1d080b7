"""Finds what prevents a cluster on this machine, with remedies. Decisions only."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass

from sluice.cli.doctor.machine_facts import Directory, MachineFacts, Port, Program
from sluice.core import EgressMode
from sluice.pki.inspect import Finding, Severity, worst_first

MINIMUM_PYTHON = (3, 11)
MEBIBYTE = 1 << 20
LEAST_FREE_BYTES = 512 * MEBIBYTE
ENOUGH_FREE_BYTES = 4096 * MEBIBYTE
LEAST_FREE_INODES = 10_000
LEAST_OPEN_FILES = 1024
ENOUGH_OPEN_FILES = 4096
PROCESS_MEMORY = 100 * MEBIBYTE
"""One Python process of the cluster, generously."""
JVM_OVERHEAD = 384 * MEBIBYTE
"""A JVM's memory besides its heap (Spark's own ``memoryOverhead`` minimum)."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The most that the configured cluster would use with one job, in bytes and cores."""

    processes: int
    slots: int
    slot_memory: int
    driver_memory: int
    slot_cores: int
    shuffle_memory: int = 0
    """Of ShuffleWorkers, for data on their way to the disks."""

    @property
    def memory(self) -> int:
        """Memory with all slots taken by one job."""
        jvms = self.driver_memory + JVM_OVERHEAD + self.slots * (self.slot_memory + JVM_OVERHEAD)
        return self.processes * PROCESS_MEMORY + jvms + self.shuffle_memory


def machine_findings(facts: MachineFacts, demand: Demand) -> list[Finding]:
    """All findings, the worst first; empty when a cluster can be started."""
    return worst_first(
        [
            *_platform(facts),
            *_program("java", facts.java),
            *_program("spark", facts.spark),
            *_program("envoy", facts.envoy),
            *_program("sandbox", facts.sandbox),
            *_isolation(facts),
            *_egress(facts),
            *_warm(facts),
            *_directory("home", facts.home),
            *_directory("temporary", facts.temporary),
            *_private(facts.home),
            *_executable(facts.temporary),
            *(finding for port in facts.ports for finding in _port(port, running=facts.cluster_running)),
            *_size(facts, demand),
            *_limits(facts),
            *_clock(facts),
            *_names(facts),
        ]
    )


def _platform(facts: MachineFacts) -> list[Finding]:
    found = []
    if facts.system != "Linux":
        found.append(
            Finding.error(
                "platform",
                facts.system,
                "the cluster runs on Linux",
                "its processes die with their parent by means of Linux alone",
                "run it in a container or a virtual machine: make compose-up",
            )
        )
    if facts.python < MINIMUM_PYTHON:
        version = ".".join(map(str, facts.python))
        found.append(
            Finding.error("python", f"Python {version}", "Python is too old", "", "install Python 3.11 or newer")
        )
    return found


def _program(name: str, program: Program) -> list[Finding]:
    return [Finding.error(name, name, program.error, "", program.remedy)] if program.error else []


def _isolation(facts: MachineFacts) -> list[Finding]:
    if facts.isolated:
        return []
    return [
        Finding(
            Severity.WARNING,
            "isolation-none",
            "isolation.level",
            "jobs run without a sandbox",
            "a job can do whatever its TaskManager can: read its keys, and the data of other jobs",
            'set isolation.level = "sandbox"',
        )
    ]


def _egress(facts: MachineFacts) -> list[Finding]:
    if facts.egress is not EgressMode.OFF or not facts.isolated:
        return []
    return [
        Finding(
            Severity.WARNING,
            "egress-off",
            "egress.mode",
            "jobs connect to whatever this machine can reach",
            "no policy decides, and nothing is recorded: a job can send what it reads anywhere",
            'set egress.mode = "enforce"',
        )
    ]


def _warm(facts: MachineFacts) -> list[Finding]:
    if not facts.warm or (facts.root and facts.isolated and facts.egress is not EgressMode.OFF):
        return []
    return [
        Finding(
            Severity.WARNING,
            "warm-jvms",
            "warm.jvms",
            "no JVM can wait for jobs here, which start as without",
            "each waits in a sandbox with a uid and a network of its own, and is given its job's files there later",
            'run TaskManagers as root, with isolation.level = "sandbox", and not egress.mode = "off"; or jvms = 0',
        )
    ]


def _directory(name: str, directory: Directory) -> list[Finding]:
    path = str(directory.path)
    if not directory.writable:
        return [
            Finding.error(
                f"{name}-not-writable",
                path,
                "it cannot be written to",
                "",
                "choose another, or correct its permissions",
            )
        ]
    found = []
    why = "artifacts, logs and what Spark spills go there; a full disk ends jobs"
    remedy = "free some space" + (", or choose another home with --home" if name == "home" else ", or set TMPDIR")
    if directory.free_bytes < ENOUGH_FREE_BYTES:
        severity = Severity.ERROR if directory.free_bytes < LEAST_FREE_BYTES else Severity.WARNING
        what = f"{directory.free_bytes // MEBIBYTE} MiB are free, {ENOUGH_FREE_BYTES // MEBIBYTE} MiB are advisable"
        found.append(Finding(severity, f"{name}-disk", path, what, why, remedy))
    if directory.free_inodes < LEAST_FREE_INODES:
        what = f"{directory.free_inodes} inodes are free"
        found.append(Finding(Severity.WARNING, f"{name}-inodes", path, what, why, "remove small files"))
    return found


def _private(home: Directory) -> list[Finding]:
    if not home.mode & 0o077:
        return []
    return [
        Finding(
            Severity.WARNING,
            "home-permissions",
            str(home.path),
            f"its mode is {home.mode:04o}: others can look into it",
            "keys below it are 0600 by themselves, names of jobs and sizes of logs are not",
            f"chmod 0700 {home.path}",
        )
    ]


def _executable(temporary: Directory) -> list[Finding]:
    if not temporary.noexec:
        return []
    return [
        Finding(
            Severity.WARNING,
            "temporary-noexec",
            str(temporary.path),
            "it is mounted noexec",
            "native libraries of Spark's (compression) are unpacked there and cannot be loaded",
            "set TMPDIR to a directory from which programs may be run",
        )
    ]


def _port(port: Port, *, running: bool) -> list[Finding]:
    if not port.error or running:  # our own cluster uses it
        return []
    place = f"{port.host}:{port.port}"
    remedy = f"end what listens there (ss -ltnp 'sport = :{port.port}'), or set {port.setting} (0: any free port)"
    return [Finding.error("port", place, f"{port.setting} cannot be listened on: {port.error}", "", remedy)]


def _size(facts: MachineFacts, demand: Demand) -> list[Finding]:
    found = []
    if not facts.cluster_running and facts.memory_available < demand.memory:
        severity = Severity.WARNING if facts.memory >= demand.memory else Severity.ERROR
        found.append(
            Finding(
                severity,
                "memory",
                f"{facts.memory_available // MEBIBYTE} MiB available",
                f"a job that takes all {demand.slots} slots needs about {demand.memory // MEBIBYTE} MiB",
                "the kernel ends processes when memory is short, executors first",
                "lower taskmanager.slots, taskmanager.count or taskmanager.slot_memory_mb",
            )
        )
    wanted = demand.slots * demand.slot_cores
    if facts.cores < wanted:
        found.append(
            Finding(
                Severity.NOTE,
                "cores",
                f"{facts.cores} cores",
                f"the slots promise {wanted} cores",
                "tasks share what there is: slower, not wrong",
                "lower taskmanager.slots or taskmanager.count",
            )
        )
    return found


def _limits(facts: MachineFacts) -> list[Finding]:
    if facts.open_files_soft >= ENOUGH_OPEN_FILES:
        return []
    severity = Severity.ERROR if facts.open_files_hard < LEAST_OPEN_FILES else Severity.WARNING
    return [
        Finding(
            severity,
            "open-files",
            f"ulimit -n {facts.open_files_soft}",
            f"a process may open {facts.open_files_soft} files, {ENOUGH_OPEN_FILES} are advisable",
            "each connection and each shuffle file counts",
            f"ulimit -n {ENOUGH_OPEN_FILES}",
        )
    ]


def _clock(facts: MachineFacts) -> list[Finding]:
    now = dt.datetime.fromtimestamp(facts.now, dt.UTC)
    if facts.now < facts.newest_source - 300:  # certificates are backdated by five minutes
        return [
            Finding.error(
                "clock-behind",
                f"{now:%Y-%m-%d %H:%M} UTC",
                "the clock is before the time when this installation was written",
                "certificates would be refused elsewhere as not yet valid",
                "set the clock: timedatectl set-ntp true, or chronyd",
            )
        ]
    if facts.clock_synchronized is False:
        return [
            Finding(
                Severity.NOTE,
                "clock-unsynchronized",
                f"{now:%Y-%m-%d %H:%M} UTC",
                "the kernel does not know of a time service that keeps this clock right",
                "on one machine that does no harm; between machines more than five minutes of difference refuse peers",
                "run a time service (chronyd, systemd-timesyncd); in a container or virtual machine its host may do it",
            )
        ]
    return []


def _names(facts: MachineFacts) -> list[Finding]:
    if facts.localhost and all(ipaddress.ip_address(each.partition("%")[0]).is_loopback for each in facts.localhost):
        return []
    found = ", ".join(facts.localhost) or "nothing"
    return [
        Finding.error(
            "localhost",
            "localhost",
            f"it resolves to {found}",
            "the gateway's certificate names it",
            "correct /etc/hosts",
        )
    ]
