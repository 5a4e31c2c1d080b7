"""What exists outside of the job, so that attempts aim at something real: a home's files, processes and sockets.

Only names and numbers are told to the job, never what is in a file.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from sluice.audit.insider.live_targets import live_targets
from sluice.audit.insider.payload import KERNEL_PATH, KERNEL_PATHS, PATTERNS, Target, load
from sluice.core import Home

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
    """Everything of the cluster in ``home`` that a job must not reach; ``victim`` is the other job, or empty."""
    load()
    found = [*_files(home, victim), *live_targets(home, victim), *_directories(home), *_machine()]
    return tuple(found[:MAX_TARGETS])


def _files(home: Home, victim: str) -> Iterator[Target]:
    for kind, patterns in PATTERNS.items():
        paths: dict[Path, None] = {}
        for pattern in patterns:
            with contextlib.suppress(OSError):
                paths |= dict.fromkeys(sorted(home.root.glob(pattern)))
        # Those of the victim first: they are there for the whole time.
        ordered = sorted(paths, key=lambda path: not victim or victim not in path.parts)
        for path in ordered[:MAX_TARGETS_OF_A_KIND]:
            yield Target(kind, str(path))


def _directories(home: Home) -> Iterator[Target]:
    """Where an intruder would leave something that others run, load or believe."""
    user = Path.home()
    named = [
        ("home of the cluster", home.root),
        ("keys", home.pki),
        ("gateway", home.gateway),
        ("blobs", home.blobs),
        ("logs", home.logs),
        ("registry", home.run),
        ("sockets", home.sockets),
        ("checkpoints", home.root / "checkpoints"),
        ("election", home.root / "ha"),
        ("home of the operator", user),
        ("ssh", user / ".ssh"),
        ("plugin cache", Path(os.environ.get("XDG_CACHE_HOME", user / ".cache")) / "sluice"),
        ("Python environment", Path(sys.prefix) / "bin"),
        ("Python modules", Path(sys.prefix) / "lib"),
        ("Python installation", Path(sys.base_prefix) / "lib"),
        *((name, Path(path)) for name, path in _SYSTEM),
    ]
    spark = next(iter(sorted(Path(sys.prefix).glob("lib/python3*/site-packages/pyspark/jars"))), None)
    for name, path in [*named, *([] if spark is None else [("Spark", spark)])]:
        with contextlib.suppress(OSError):
            status = path.stat()
            yield Target(WRITABLE, str(path), name, f"{status.st_dev}:{status.st_ino}")


def _machine() -> Iterator[Target]:
    for kind in ("pid", "mnt", "ipc", "uts"):
        with contextlib.suppress(OSError):
            yield Target("namespace", f"/proc/self/ns/{kind}", kind, str(Path(f"/proc/self/ns/{kind}").stat().st_ino))
    for pattern in dict.fromkeys(KERNEL_PATHS):
        for path in sorted(Path("/").glob(pattern.lstrip("/"))) if "*" in pattern else [Path(pattern)]:
            if os.path.lexists(path):
                yield Target(KERNEL_PATH, str(path))
    for socket in map(Path, _SOCKETS):
        with contextlib.suppress(OSError):
            if socket.is_socket():
                yield Target("socket of the machine", str(socket), socket.name)
