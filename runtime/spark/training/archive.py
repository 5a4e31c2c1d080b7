"""Creates a class archive: a rehearsal records the loaded classes, and another JVM creates the archive from them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from sluice.core import StoreError, sync_directory
from sluice.runtime.node import die_with_parent
from sluice.runtime.spark.code_cache import MAX_CODE_BYTES, checksum_file, make_once
from sluice.runtime.spark.errors import ClassArchiveFailed
from sluice.runtime.spark.java import Java, SparkDistribution, find_preferred_java, find_spark
from sluice.runtime.spark.jvm import (
    AOT_SUFFIX,
    CDS_SUFFIX,
    PREFIX,
    SparkRuntime,
    archive_file,
    argument_file,
    find_spark_runtime,
    has_aot_caches,
)
from sluice.runtime.spark.training.rehearsal import MEMORY_MB, TIMEOUT_SECONDS, Order, class_names, written

DUMP_TIMEOUT_SECONDS = 600
END_SECONDS = 30
NEEDED_BYTES = 1 << 30
"""The free disk space needed to create an archive; an archive itself has about 200 MB."""
KEPT_ARCHIVES = 4
"""How many archives of other versions of Java and Spark are kept, newest first, so that the cache stays bounded."""
_WORK = "making-classes-"
_TOLD_CHARACTERS = 1500


Make = Callable[[Java, SparkDistribution, Path, Path], None]
"""Creates an archive for a JVM and a Spark; the paths are a private directory and the file to write in it."""


def make_class_archive(
    *,
    java: Java | None = None,
    spark: SparkDistribution | None = None,
    cache: Path | None = None,
    own_network: bool = True,
    make: Make | None = None,
) -> Path:
    """The archive for this JVM and these jars. Creates it if there is no usable one.

    If several processes call this at once, one creates the archive and the others wait.

    Args:
        java: default: the preferred one.
        spark: default: the installed one.
        cache: default: this user's cache directory.
        own_network: run the rehearsal in a private network. Otherwise driver and executor listen on loopback with
            mutual TLS, and Spark's gateway with a token.
        make: default: a rehearsal.

    Raises:
        ClassArchiveFailed: the rehearsal failed, disk space is short, or the JVM cannot create archives.
    """
    java, spark = java or find_preferred_java(), spark or find_spark()
    archive = archive_file(java, spark, cache=cache)
    chosen = make or partial(_make, own_network=own_network)
    try:
        make_once(
            archive,
            lambda: _create_and_store(archive, lambda work, made: chosen(java, spark, work, made)),
            lock="classes.lock",
            consequence=f"the class archive {archive} is created again",
        )
    except StoreError as error:
        raise ClassArchiveFailed(f"cannot store the class archive: {error.what}", error.remedy) from error
    except OSError as error:
        raise ClassArchiveFailed(f"cannot store the class archive: {error}") from error
    return archive


def _create_and_store(archive: Path, make: Callable[[Path, Path], None]) -> None:
    """Create an archive next to its final path, and move it there atomically."""
    directory = archive.parent
    for leftover in directory.glob(f"{_WORK}*"):  # of a killed process
        shutil.rmtree(leftover, ignore_errors=True)
    if (free := shutil.disk_usage(directory).free) < NEEDED_BYTES:
        raise ClassArchiveFailed(f"{directory} has {free >> 20} MB free, but an archive needs {NEEDED_BYTES >> 20} MB")
    with tempfile.TemporaryDirectory(prefix=_WORK, dir=directory) as name:
        made = Path(name) / archive.name
        make(Path(name), made)
        if (size := made.stat().st_size) > MAX_CODE_BYTES:
            raise ClassArchiveFailed(f"the archive has {size >> 20} MB, more than {MAX_CODE_BYTES >> 20} MB")
        made.chmod(0o644)
        made.replace(archive)
    sync_directory(directory)
    for old in list(others(directory, archive))[KEPT_ARCHIVES:]:
        checksum_file(old).unlink(missing_ok=True)
        old.unlink(missing_ok=True)


def _make(java: Java, spark: SparkDistribution, work: Path, made: Path, *, own_network: bool) -> None:
    runtime = find_spark_runtime(java=java, spark=spark, archive=False)
    (_make_aot if has_aot_caches(java) else _make_cds)(runtime, work, made, own_network=own_network)


def others(directory: Path, archive: Path) -> Iterator[Path]:
    """The archives in the directory except ``archive``, newest first."""
    found = (path for path in directory.glob(f"{PREFIX}*") if path.suffix in {AOT_SUFFIX, CDS_SUFFIX})
    yield from sorted((path for path in found if path != archive), key=lambda path: path.stat().st_mtime, reverse=True)


def _make_aot(runtime: SparkRuntime, work: Path, made: Path, *, own_network: bool) -> None:
    records = work / "classes.aotconf"
    record = ("-XX:AOTMode=record", f"-XX:AOTConfiguration={records}")
    _rehearse(runtime, work, record, both_in_driver=True, own_network=own_network)
    # An agent would add this module. This JVM has no agent, but must have the same modules.
    create = ("--add-modules=java.instrument", "-XX:AOTMode=create", f"-XX:AOTConfiguration={records}")
    _dump(runtime, work, [*create, f"-XX:AOTCache={made}"], made)


def _make_cds(runtime: SparkRuntime, work: Path, made: Path, *, own_network: bool) -> None:
    driver = work / "driver.classes"
    executor = _rehearse(
        runtime, work, (f"-XX:DumpLoadedClassList={driver}",), both_in_driver=False, own_network=own_network
    )
    names = dict.fromkeys(name for each in (driver, executor) for name in class_names(each.read_text()))
    classes = work / "classes.list"
    classes.write_text("\n".join(names) + "\n")
    _dump(runtime, work, ["-Xshare:dump", f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={made}"], made)


def _rehearse(
    runtime: SparkRuntime, work: Path, driver: tuple[str, ...], *, both_in_driver: bool, own_network: bool
) -> Path:
    """Run a rehearsal with these options for its driver; return the file with the class list of its executor."""
    executor = work / "executor.classes"
    order = Order(
        spark=runtime,
        directory=work,
        driver_options=driver,
        executor_options=(f"-XX:DumpLoadedClassList={executor}",),
        executor_classes=executor,
        both_in_driver=both_in_driver,
        own_network=own_network,
    )
    orders = work / "order.json"
    orders.write_bytes(written(order))
    argv = [sys.executable, "-P", "-m", "sluice.runtime.spark.training.rehearsal", str(orders)]
    _run(argv, work, TIMEOUT_SECONDS + END_SECONDS, "the rehearsal failed")
    return executor


def _dump(runtime: SparkRuntime, work: Path, options: Sequence[str], made: Path) -> None:
    argfile = work / "dump.args"
    fixed = [*runtime.module_options, f"-Xmx{MEMORY_MB}m", "-XX:+UseSerialGC"]
    argfile.write_bytes(argument_file([*fixed, *options, "-cp", runtime.distribution.class_path]))
    told = _run(
        [str(runtime.java.executable), f"@{argfile}"], work, DUMP_TIMEOUT_SECONDS, "the JVM did not archive its classes"
    )
    if not made.is_file():
        raise ClassArchiveFailed(f"the JVM did not archive its classes: {told}")


def _run(argv: Sequence[str], work: Path, timeout: float, failure: str) -> str:
    """Run a program to its end; return the end of its output."""
    parent = os.getpid()
    with (work / "output").open("w+b") as output:
        try:
            code = subprocess.run(
                argv,
                cwd=work,
                env={"PATH": os.defpath, "LANG": "C.UTF-8", "HOME": str(work)} | _passed(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=timeout,
                check=False,
                preexec_fn=lambda: die_with_parent(parent),
            ).returncode
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ClassArchiveFailed(f"{failure}: {error}") from error
        output.seek(max(0, output.seek(0, os.SEEK_END) - _TOLD_CHARACTERS))
        told = output.read().decode(errors="replace").strip()
    if code != 0:
        raise ClassArchiveFailed(f"{failure} (exit code {code}): {told}")
    return told


def _passed() -> dict[str, str]:
    return {"TMPDIR": os.environ["TMPDIR"]} if "TMPDIR" in os.environ else {}
