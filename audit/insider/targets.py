"""Real targets outside of the job for its attempts: a home's files, processes and sockets.

The job gets only names and numbers, never content of files.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from sluice.audit.insider.live_targets import live_targets
from sluice.audit.insider.payload import ABSENT, FAMILIES, FAMILY, KERNEL_PATH, KERNEL_PATHS, PATTERNS, Target, load
from sluice.audit.insider.surroundings import Surroundings
from sluice.core import Home, paths_matching

MAX_TARGETS_OF_A_KIND = 16
MAX_TARGETS = 800
WRITABLE = "directory"
_SYSTEM = (
    ("cron", "/etc/cron.d"),
    ("cron", "/var/spool/cron"),
    ("system configuration", "/etc"),
    ("systemd", "/etc/systemd/system"),
    ("programs", "/usr/local/bin"),
    ("programs", "/usr/bin"),
    ("service directory", "/var/lib"),
    ("service directory", "/opt"),
    ("temporary directory of the machine", "/var/tmp"),  # noqa: S108  only named
    ("log directory", "/var/log"),
)
_SOCKETS = (
    "/run/docker.sock",
    "/run/dbus/system_bus_socket",
    "/run/systemd/private",
    "/run/containerd/containerd.sock",
)


def targets_of(home: Home, victim: str) -> tuple[Target, ...]:
    """All targets of the cluster in ``home`` that a job must not reach; ``victim`` is the other job, or empty."""
    load()
    around = Surroundings.of_home(home)
    found = [*files(around, victim), *live_targets(home, victim), *directories(around), *machine(around)]
    return tuple(found[:MAX_TARGETS])


def files(around: Surroundings, victim: str) -> Iterator[Target]:
    """Files of the cluster and of other jobs."""
    for kind, patterns in PATTERNS.items():
        paths: dict[Path, None] = {}
        for pattern in patterns:
            paths |= dict.fromkeys(paths_matching(around.home.root, pattern))
        # The victim's first, because they exist the whole time.
        ordered = sorted(paths, key=lambda path: not victim or victim not in path.parts)
        for path in ordered[:MAX_TARGETS_OF_A_KIND]:
            yield Target(kind, around.inside(path), mark=_mark(path))


def _mark(path: Path) -> str:
    """The mark of a directory, because a mount point inside may have its path and be another one. Empty for a file."""
    with contextlib.suppress(OSError):
        if path.is_dir():
            status = path.stat()
            return f"{status.st_dev}:{status.st_ino}"
    return ""


def directories(around: Surroundings) -> Iterator[Target]:
    """Directories where an intruder would leave files that others run, load or trust."""
    home, cache = around.home, Path(os.environ.get("XDG_CACHE_HOME", around.user / ".cache"))
    of_home = [
        ("home of the cluster", home.root),
        ("keys", home.pki),
        ("gateway", home.gateway),
        ("blobs", home.blobs),
        ("logs", home.logs),
        ("registry", home.run),
        ("sockets", home.sockets),
        ("checkpoints", home.root / "checkpoints"),
        ("election", home.root / "ha"),
    ]
    named = [
        ("home of the operator", around.user),
        ("ssh", around.user / ".ssh"),
        ("plugin cache", cache / "sluice"),
        ("Python environment", around.prefix / "bin"),
        ("Python modules", around.prefix / "lib"),
        ("Python installation", around.base / "lib"),
        *((name, Path(path)) for name, path in _SYSTEM),
    ]
    spark = sorted(around.seen(around.prefix).glob("lib/python3*/site-packages/pyspark/jars"))[:1]
    seen = [*of_home, *((name, around.seen(path)) for name, path in named), *(("Spark", path) for path in spark)]
    for name, path in seen:
        with contextlib.suppress(OSError):
            status = path.stat()
            yield Target(WRITABLE, around.inside(path), name, f"{status.st_dev}:{status.st_ino}")


def machine(around: Surroundings) -> Iterator[Target]:
    """Namespaces, files of the kernel, sockets of services, and families of sockets."""
    for kind in ("pid", "mnt", "ipc", "uts"):
        with contextlib.suppress(OSError):
            namespace = Path(f"/proc/{around.process}/ns/{kind}")
            yield Target("namespace", str(namespace), kind, str(namespace.stat().st_ino))
    for pattern in dict.fromkeys(KERNEL_PATHS):
        for path in sorted(around.seen("/").glob(pattern.lstrip("/"))):
            yield Target(KERNEL_PATH, around.inside(path))
    for service in map(around.seen, _SOCKETS):
        with contextlib.suppress(OSError):
            if service.is_socket():
                yield Target("socket of the machine", around.inside(service), service.name)
    for each in FAMILIES:
        if _has(*each):
            yield Target(FAMILY, "/".join(map(str, each)))


def _has(family: int, kind: int, protocol: int) -> bool:
    """Whether the kernel has sockets of this family, though this user may not open them."""
    try:
        socket.socket(family, kind, protocol).close()
    except OSError as error:
        return error.errno not in ABSENT
    return True
