"""Leaving files behind: in caches, environments and directories that others load, run or trust."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

from ..attempt import Group, Run, Tried, add, attempt, reached, refused, untried
from ..reading import error_of, names
from ..world import Target, World

WRITING = Group(
    "WRT",
    severity="critical",
    cwe=(732, 276),
    expected="no such directory in sight (ENOENT), or no right to write (EROFS, EACCES)",
    remedy='run jobs with [isolation] level = "sandbox": everything but a job\'s own directory is then read-only',
)
_PLACES = {
    "cron": ("/etc/cron.d", "/var/spool/cron"),
    "system configuration": ("/etc",),
    "systemd": ("/etc/systemd/system",),
    "programs": ("/usr/local/bin", "/usr/bin"),
    "Python environment": (str(Path(sys.executable).parent),),
    "Python modules": (str(Path(os.__file__).parent),),
    "Spark": (os.environ.get("SPARK_HOME", "") + "/jars",) if "SPARK_HOME" in os.environ else (),
}
"""Directories to try when none are known from outside."""


def _is_it(target: Target) -> bool:
    """Whether the directory here is the one outside; a bind keeps device and inode, a private one has its own."""
    status = target.path.stat()
    return not target.mark or target.mark == f"{status.st_dev}:{status.st_ino}"


def make_file(directory: Path, nonce: str) -> str:
    """Make an unnamed file, or where that is unsupported one that is removed at once; says which."""
    try:
        os.close(os.open(directory, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except OSError as error:
        if error.errno not in {errno.EOPNOTSUPP, errno.EISDIR}:
            raise
    else:
        return "made without a name, so that nothing stays"
    marker = directory / f".sluice-insider-{nonce}-{os.getpid()}"
    os.close(os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    marker.unlink()
    return "made, and removed again"


def _into(name: str, kind: str = "directory") -> Run:
    def run(world: World) -> Tried:
        targets = world.of(kind, named=name) or [
            Target(kind, place, name, known=False) for place in _PLACES.get(name, ())
        ]
        if not targets:
            return untried(f"no {kind} {name} is known from outside")
        errors = []
        for target in targets:
            try:
                if not _is_it(target):
                    errors.append("another directory is there")
                    continue
                made = make_file(target.path, world.nonce)
            except OSError as error:
                errors.append(error_of(error))
            else:
                return reached(f"made a file in {target}", made)
        return refused(f"made a file in {names(targets)}", ", ".join(sorted(set(errors))))

    return run


_ROWS = (
    ("WRT-01", "the cluster's home", "home of the cluster", "critical"),
    ("WRT-02", "the directory of keys", "keys", "critical"),
    ("WRT-03", "the gateway's directory", "gateway", "critical"),
    ("WRT-04", "the blobs of all jobs", "blobs", "critical"),
    ("WRT-05", "the cluster's logs", "logs", "high"),
    ("WRT-06", "the registry of addresses", "registry", "critical"),
    ("WRT-07", "the directory of sockets", "sockets", "critical"),
    ("WRT-08", "the checkpoints of others", "checkpoints", "critical"),
    ("WRT-09", "the files of the election", "election", "critical"),
    ("WRT-10", "the operator's home directory", "home of the operator", "critical"),
    ("WRT-11", "the operator's ssh directory", "ssh", "critical"),
    ("WRT-12", "the cache of the plugin that every JVM loads", "plugin cache", "critical"),
    ("WRT-13", "the programs of the Python environment", "Python environment", "critical"),
    ("WRT-14", "the modules of the Python environment", "Python modules", "critical"),
    ("WRT-15", "the Python installation", "Python installation", "critical"),
    ("WRT-16", "Spark's libraries", "Spark", "critical"),
    ("WRT-17", "cron's directories", "cron", "critical"),
    ("WRT-18", "the system's configuration", "system configuration", "critical"),
    ("WRT-19", "the services of systemd", "systemd", "critical"),
    ("WRT-20", "the system's programs", "programs", "critical"),
    ("WRT-21", "directories of the machine's services", "service directory", "high"),
    ("WRT-22", "the machine's logs", "log directory", "high"),
    ("WRT-23", "the machine's lasting temporary directory", "temporary directory of the machine", "medium"),
)
for _id, _what, _name, _severity in _ROWS:
    add(_id, f"write into {_what}", WRITING, _into(_name), severity=_severity)
add("WRT-24", "write into temporary directories that everybody shares", WRITING, _into("", "open directory"),
    severity="medium")  # fmt: skip
add("WRT-25", "write into another job's directories", WRITING, _into("", "job directory"))


def _open_to_append(*kinds: str) -> Run:
    """Open files for writing, and write nothing."""

    def run(world: World) -> Tried:
        targets = world.of(*kinds)
        if not targets:
            return untried(f"no {' or '.join(kinds)} is known from outside, and none can be found from inside")
        errors = []
        for target in targets:
            try:
                os.close(os.open(target.path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC))
            except OSError as error:
                errors.append(error_of(error))
            else:
                return reached(f"opened {target} for writing, and wrote nothing", "opened")
        return refused(f"opened {names(targets)} for writing", ", ".join(sorted(set(errors))))

    return run


add("WRT-26", "change the keys that REST believes", WRITING, _open_to_append("policy and keys of REST"))
add("WRT-27", "change the cluster's configuration or tokens", WRITING,
    _open_to_append("configuration", "token file", "users"))  # fmt: skip
add("WRT-28", "change the audit log", WRITING, _open_to_append("audit log"))
add("WRT-29", "change another job's log", WRITING, _open_to_append("job log"), severity="high")
add("WRT-30", "change another job's identity", WRITING, _open_to_append("job key"))
add("WRT-31", "change what another job has shuffled", WRITING, _open_to_append("job shuffle data"), severity="high")
add("WRT-32", "change what another job submitted", WRITING, _open_to_append("job pipeline", "job submission", "blob"))


@attempt("WRT-33", "read what others keep in shared temporary directories", WRITING, severity="medium", cwe=(377,))
def _shared(world: World) -> Tried:
    markers = world.of("marker")
    if not markers:
        return untried("the audit could not put a marker into a temporary directory")
    errors = []
    for target in markers:
        try:
            os.close(os.open(target.path, os.O_RDONLY))
        except OSError as error:
            errors.append(error_of(error))
        else:
            return reached(f"opened {target}", "a file of the audit's could be read")
    return refused(f"opened {names(markers)}", ", ".join(sorted(set(errors))))
