"""What belongs to other jobs: their identities, directories, logs, shuffle files, checkpoints and blobs."""

from __future__ import annotations

from ..attempt import Group, Run, Tried, add, attempt, reached, refused, untried
from ..reading import error_of, read_any
from ..world import PATTERNS, World

JOBS = Group(
    "JOB",
    severity="critical",
    cwe=(200, 668),
    expected="nothing of another job in sight",
    remedy='run jobs with [isolation] level = "sandbox": each then sees no directory but its own',
)

_OF_JOBS = ("jobs/*", "work/*/jobs/*")


def _below(*endings: str) -> tuple[str, ...]:
    return tuple(f"{start}/*/{ending}" for start in _OF_JOBS for ending in endings)


_ROWS: tuple[tuple[str, str, str, str, tuple[str, ...]], ...] = (
    ("JOB-01", "job key", "the private key of another job", "critical",
     _below("identity/key.pem", "identity/identity.p12")),
    ("JOB-02", "job key store password", "the password of another job's key store", "critical",
     _below("identity/identity.p12.pass")),
    ("JOB-03", "job directory", "the directories of another job", "high", _OF_JOBS),
    ("JOB-04", "job pipeline", "the pipeline of another job", "high", _below("app/*", "work/app/*")),
    ("JOB-05", "job log", "the output of another job", "high",
     _below("driver.std*", "std*", "logs/*", "driver/std*")),
    ("JOB-06", "job settings", "the settings and secrets of another job's driver", "critical",
     _below("driver.json", "work/executor.args", "driver-jvm.args", "*.args", "work/*.conf", "work/*.properties")),
    ("JOB-07", "job local data", "the local data of another job's tasks", "high",
     _below("local/*", "work/local/*", "work/local/*/*/*")),
    ("JOB-08", "job shuffle data", "the shuffle files of another job", "high", ("shuffle/*/*/*/*", "shuffle/*/*/*")),
    ("JOB-09", "job checkpoint", "the checkpoints of another job", "high", ("checkpoints/*", "savepoints/*")),
    ("JOB-10", "job submission", "what others submitted", "high", ("ha/storage/jobs/*/*",)),
    ("JOB-11", "blob", "blobs of other jobs", "high", ("blobs/*", "blobs/*/*", "ha/storage/jobs/*/blobs/*")),
    ("JOB-12", "job temporary directory", "the temporary directory and sockets of another job", "high", ()),
)  # fmt: skip


def _reading(kind: str) -> Run:
    return lambda world: read_any(world, kind)


for _id, _kind, _what, _severity, _patterns in _ROWS:
    PATTERNS[_kind] = _patterns
    add(_id, f"read {_what}", JOBS, _reading(_kind), severity=_severity)


@attempt("JOB-13", "list which jobs there are", JOBS, severity="medium")
def _jobs_list(world: World) -> Tried:
    """The names of directories are ids of jobs."""
    targets = world.of("jobs directory")
    if not targets:
        return untried("no directory of jobs is known from outside, and none can be found from inside")
    errors: list[str] = []
    for target in targets:
        try:
            others = {entry.name for entry in target.path.iterdir()} - {world.own}
        except OSError as error:
            errors.append(error_of(error))
            continue
        if others:
            return reached(f"listed {target}", f"{len(others)} jobs besides this one")
        errors.append("only this job")
    return refused(f"listed {', '.join(map(str, targets[:4]))}", ", ".join(errors))


PATTERNS["jobs directory"] = ("jobs", "work/*/jobs")
