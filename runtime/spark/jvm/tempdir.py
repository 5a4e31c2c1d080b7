"""Short private directories for the unix sockets and temporary files of Spark's processes.

``sun_path`` holds 108 bytes (unix(7)) and Spark appends up to 45 to ``java.io.tmpdir``, so a directory inside a job's
working directory can be too long. These directories are directly below the system's temporary directory and readable
only by their owner. Their names contain the pid of their creator: creating the next one removes those of dead creators.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from pathlib import Path

from sluice.core import remove_untrusted
from sluice.runtime.sandbox import is_job_uid
from sluice.runtime.spark.errors import SparkError

MAX_TEMP_DIRECTORY_BYTES = 61
"""The longest directory that Spark accepts for its unix sockets (``spark.python.unix.domain.socket.dir``)."""

_NAME = re.compile(r"sluice-jvm-(\d+)-\w+")


def make_temp_dir(parent: Path | None = None) -> Path:
    """Create a private (0700) directory with a short path. Remove it with :func:`remove_temp_dir`.

    Raises:
        SparkError: the path is too long for unix sockets.
    """
    base = parent or Path(tempfile.gettempdir())
    _sweep(base)
    path = Path(tempfile.mkdtemp(prefix=f"sluice-jvm-{os.getpid()}-", dir=base))
    if len(os.fsencode(path)) > MAX_TEMP_DIRECTORY_BYTES:
        path.rmdir()
        raise SparkError(f"the temporary directory {base} is too long for unix sockets", "set TMPDIR to a shorter one")
    return path


def remove_temp_dir(path: Path) -> None:
    """Remove a directory of :func:`make_temp_dir` with everything in it."""
    remove_untrusted(path.parent, path.name)


def _sweep(base: Path) -> None:
    """Remove our own directories whose creator was killed before it could remove them."""
    for path in base.glob("sluice-jvm-*"):
        match = _NAME.fullmatch(path.name)
        if match is None or _alive(int(match[1])):
            continue
        try:
            info = path.lstat()
        except OSError:
            continue
        if stat.S_ISDIR(info.st_mode) and _ours(info.st_uid):
            remove_untrusted(base, path.name)


def _ours(uid: int) -> bool:
    """Whether this user owns a directory; root also owns those that were given to a job."""
    return uid == os.geteuid() or (os.geteuid() == 0 and is_job_uid(uid))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
