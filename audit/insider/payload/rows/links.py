"""Links, FIFOs and odd files where somebody outside reads or removes what a job has written.

These attempts only leave something. The audit checks its effect on readers from outside.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ..attempt import PYTHON, Group, Place, Run, Tried, add, planted, refused
from ..reading import error_of
from ..world import World

LINKS = Group(
    "LNK",
    severity="critical",
    cwe=(59, 367),
    expected="no such place that the job can write, or a reader outside that follows nothing and waits for nothing",
    remedy="report it: whoever reads what a job has written must follow no link, wait for no FIFO, and stop at a bound",
)
MAX_PARENTS = 4
DEEP_LEVELS = 100
"""Fewer than the watcher of disk use allows, because it would end the job too early."""
NAME_CHARACTERS = 60
"""So that the whole path is longer than any path may be (PATH_MAX)."""
_DRIVER_ONLY = (Place.DRIVER,)


def _roots() -> list[Path]:
    """The directories of this job, up to the highest visible one."""
    here = Path.cwd()
    return [here, *list(here.parents)[:MAX_PARENTS]]


def _places(*names: str) -> list[Path]:
    """Existing or possible places of files of these names, in the directories of this job and beside them."""
    found = [
        root / folder / name for root in _roots() for folder in ("", "logs", "reports", "identity") for name in names
    ]
    return [path for path in found if os.path.lexists(path)]


def _instead_of(plant: Callable[[Path, World], None], what: str, *names: str) -> Run:
    """Move the file away and put something else in its place."""

    def run(world: World) -> Tried:
        places = _places(*names)
        if not places:
            return refused(f"looked for {', '.join(names)} in {', '.join(map(str, _roots()))}", "none is in sight")
        errors = []
        for path in places:
            try:
                path.rename(path.with_name(f"{path.name}.old"))
                plant(path, world)
            except OSError as error:
                errors.append(f"{path.name}: {error_of(error)}")
            else:
                return planted(f"put {what} in place of {path}", "it is there")
        return refused(f"put {what} in place of {', '.join(map(str, places[:4]))}", ", ".join(sorted(set(errors))))

    return run


def _link(path: Path, world: World) -> None:
    path.symlink_to(world.canary or "/etc/passwd")


def _fifo(path: Path, _: World) -> None:
    os.mkfifo(path)


_LOGS = ("driver.stderr", "driver.jvm.log")
_EXECUTOR_LOGS = ("stderr", "stdout")
_ROWS: tuple[tuple[str, str, Callable[[Path, World], None], str, tuple[str, ...], tuple[Place, ...]], ...] = (
    ("LNK-01", "have its log read as a link to a file outside", _link, "a link to the canary", _LOGS, _DRIVER_ONLY),
    ("LNK-02", "hang the reader of its log with a FIFO", _fifo, "a FIFO", ("driver.jvm.log", "driver.agent.log"),
     _DRIVER_ONLY),
    ("LNK-03", "have an executor's log read as a link to a file outside", _link, "a link to the canary",
     _EXECUTOR_LOGS, (Place.UDF,)),
    ("LNK-04", "hang the reader of its evidence with a FIFO", _fifo, "a FIFO", ("connections.jsonl",), PYTHON),
    ("LNK-05", "have the report on its identity read as a link", _link, "a link to the canary",
     ("in-use.json", "in-use"), PYTHON),
    ("LNK-06", "have its settings read as a link", _link, "a link to the canary", ("driver.json", "connect.json"),
     _DRIVER_ONLY),
)  # fmt: skip
for _id, _what, _plant, _done, _names, _from in _ROWS:
    add(_id, _what, LINKS, _instead_of(_plant, _done, *_names), places=_from, last=True)


def _in_work(plant: Callable[[Path, World], None], what: str) -> Run:
    """Leave something in the job's own directory for the process that removes it."""

    def run(world: World) -> Tried:
        path = Path.cwd() / f"insider-{os.getpid()}"
        plant(path, world)
        return planted(f"left {what} in {path.parent}", "it is there")

    return run


def _link_to_directory(path: Path, world: World) -> None:
    targets = world.of("open directory")
    if not targets:
        raise PermissionError(13, "no directory outside is known")
    path.symlink_to(targets[0].path)


def _deep(path: Path, _: World) -> None:
    here = os.getcwd()  # noqa: PTH109  to go back
    path.mkdir()
    os.chdir(path)
    try:
        for _level in range(DEEP_LEVELS):
            os.mkdir("d" * NAME_CHARACTERS)  # noqa: PTH102  too deep for a path
            os.chdir("d" * NAME_CHARACTERS)
    finally:
        os.chdir(here)


def _locked(path: Path, _: World) -> None:
    path.mkdir()
    (path / "file").touch()
    path.chmod(0o000)


add("LNK-07", "have what a link leads to removed with its directory", LINKS,
    _in_work(_link_to_directory, "a link to a directory outside"), severity="critical", last=True)  # fmt: skip
add(
    "LNK-08",
    "leave directories too deep to be removed",
    LINKS,
    _in_work(_deep, "a deep tree"),
    severity="low",
    last=True,
)
add("LNK-09", "leave a directory that may not be entered", LINKS, _in_work(_locked, "a locked directory"),
    severity="low", last=True)  # fmt: skip
