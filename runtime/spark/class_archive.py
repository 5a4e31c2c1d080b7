"""Archives of loaded classes, with which Spark's JVMs start in two thirds of the time (ADR 59).

An archive (class data sharing, JEP 310) holds the classes of Spark's jars as a JVM has them after loading. It fits one
JVM and one class path, byte for byte, so its name has both in it; a JVM that finds that it does not fit after all goes
on without, and says so in its log. It is made once, by :func:`make_class_archive`, which takes about half a minute of
one core; whoever starts a JVM meanwhile does without.

An archive is code. It lies in a directory that only its owner may write, in one file that others may not write either,
and is used only when its content has the digest that was written down when it was made.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from pki.errors import SluiceError
from pki.files import make_private_directory, read_bounded, sync_directory, write_public
from runtime.spark.class_training import loaded_classes
from runtime.spark.errors import ClassArchiveFailed
from runtime.spark.java import Java, SparkDistribution, find_java, find_spark
from runtime.spark.jvm_options import MODULE_OPTIONS, argument_file
from runtime.spark.plugin_build import cache_directory

_LOG = logging.getLogger(__name__)

FORMAT = 2
"""Of what is trained and how: another number makes other archives."""
DUMP_TIMEOUT_SECONDS = 300
MAX_ARCHIVE_BYTES = 1 << 30
MAX_NOTE_BYTES = 4096
NICENESS = 19
"""The program gives way to whatever else runs."""
TRUSTED_OWNERS = frozenset({0})
"""User ids that an archive may belong to, besides the own one: images of containers are built by the superuser."""
_WORK = "making-classes-"
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class _Note(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of an archive; written after it, so that there is none without it."""

    sha256: str
    size: int


def archive_name(java: Java, spark: SparkDistribution) -> str:
    """The file name of the archive for this JVM and these jars, without its suffix.

    A JVM compares its own build, and names, sizes and times of the jars; so does this.
    """
    digest = hashlib.sha256(f"{FORMAT}\0{java.build}\0{spark.version}\0".encode())
    for jar in spark.jars:
        info = jar.stat()
        digest.update(f"{jar}\0{info.st_size}\0{int(info.st_mtime)}\0".encode())
    return f"classes-{digest.hexdigest()[:20]}"


def find_class_archive(java: Java, spark: SparkDistribution, *, cache: Path | None = None) -> Path | None:
    """The archive for this JVM and these jars, checked; None when there is none that may be used."""
    directory = cache or cache_directory()
    archive = directory / f"{archive_name(java, spark)}.jsa"
    if not _note_of(archive).exists():
        return None
    try:
        note = msgspec.json.decode(read_bounded(_note_of(archive), MAX_NOTE_BYTES), type=_Note)
    except (OSError, SluiceError, msgspec.DecodeError) as error:
        _LOG.warning("JVMs start without the class archive %s: %s", archive, error)
        return None
    reason = _unusable(directory, archive, note)
    if reason:
        _LOG.warning("JVMs start without the class archive %s: %s", archive, reason)
        return None
    return archive


def has_class_archive(java: Java, spark: SparkDistribution, *, cache: Path | None = None) -> bool:
    """Whether there is an archive, at a glance: it is not checked."""
    return _note_of((cache or cache_directory()) / f"{archive_name(java, spark)}.jsa").is_file()


def make_class_archive(
    *, java: Java | None = None, spark: SparkDistribution | None = None, cache: Path | None = None
) -> Path:
    """The archive for this JVM and these jars, made now if there is none that may be used.

    Of several processes that make one at once, the first does, and the others wait for it.

    Raises:
        ClassArchiveFailed: Spark did not run, or the JVM cannot make archives.
    """
    java, spark = java or find_java(), spark or find_spark()
    directory = cache or cache_directory()
    if directory.exists() and directory.stat().st_mode & _OTHERS_MAY_WRITE:
        raise ClassArchiveFailed(f"others may have written what is in {directory}", "remove it: it is made again")
    make_private_directory(directory)
    archive = directory / f"{archive_name(java, spark)}.jsa"
    with _alone(directory / "classes.lock"):
        found = find_class_archive(java, spark, cache=directory)
        if found is not None:
            return found
        for leftover in directory.glob(f"{_WORK}*"):  # of one that was killed
            shutil.rmtree(leftover, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=_WORK, dir=directory) as name:
            work = Path(name)
            _dump(java, spark, loaded_classes(java, spark, work), work)
            made = work / "classes.jsa"
            made.chmod(0o644)
            note = _Note(sha256=_digest(made), size=made.stat().st_size)
            _note_of(archive).unlink(missing_ok=True)
            made.replace(archive)
        sync_directory(directory)
        write_public(_note_of(archive), msgspec.json.encode(note))
    return archive


def _note_of(archive: Path) -> Path:
    return archive.with_suffix(".json")


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ClassArchiveFailed(f"cannot write {lock}: {error.strerror or error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _unusable(directory: Path, archive: Path, note: _Note) -> str:
    """Why an archive must not be used; empty when it may."""
    for path in (directory, archive):
        try:
            info = path.lstat()
        except OSError as error:
            return f"{path}: {error.strerror or error}"
        if info.st_uid not in TRUSTED_OWNERS | {os.geteuid()}:
            return f"{path} belongs to user id {info.st_uid}"
        if info.st_mode & _OTHERS_MAY_WRITE:
            return f"others may write {path}"
    if not stat.S_ISREG(info.st_mode) or info.st_size != note.size or info.st_size > MAX_ARCHIVE_BYTES:
        return f"it is not the file of {note.size} bytes that was made"
    return "" if _digest(archive) == note.sha256 else "its content is not what was made"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _dump(java: Java, spark: SparkDistribution, classes: Path, work: Path) -> None:
    options = [
        *MODULE_OPTIONS,
        "-Xshare:dump",
        f"-XX:SharedClassListFile={classes}",
        f"-XX:SharedArchiveFile={work / 'classes.jsa'}",
        "-cp",
        spark.class_path,
    ]
    argfile = work / "dump.args"
    argfile.write_bytes(argument_file(options))
    try:
        run = subprocess.run(
            [str(java.executable), f"@{argfile}"],
            cwd=work,
            env={"PATH": os.defpath, "LANG": "C.UTF-8"},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=DUMP_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClassArchiveFailed(f"the JVM did not archive its classes: {error}") from error
    if run.returncode != 0 or not (work / "classes.jsa").is_file():
        raise ClassArchiveFailed(f"the JVM did not archive its classes: {(run.stdout + run.stderr)[-500:].strip()}")


def main() -> int:
    """``python -m runtime.spark.class_archive``: make the archive, and print where it is."""
    os.nice(NICENESS)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        sys.stdout.write(f"{make_class_archive()}\n")
    except SluiceError as error:
        _LOG.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
