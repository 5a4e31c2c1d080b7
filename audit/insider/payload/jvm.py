"""Runs code in the job's JVMs, as any pipeline can with Spark's own jars.

Janino, with which Spark compiles expressions, compiles :data:`SOURCE` in the driver's JVM. Executors get the classes as
a jar (``ADD JAR``) and run them by the SQL function ``java_method``.
"""

from __future__ import annotations

import os
import pkgutil
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .attempt import Outcome, Place, Tried, untried
from .world import World

SOURCE = "Insider.java"
CLASS = "sluice.insider.Insider"
_CLASS_FILES = 17
"""Version of Java that the classes are for; Janino's own default knows no interface methods."""

_lock = threading.Lock()
_compiled: dict[int, Any] = {}
_answers: dict[tuple[str, str], str] = {}
"""Cached answers of executors, by operation and targets."""

Question = tuple[str, Iterable[str]]


def insider(spark: Any) -> Any:  # noqa: ANN401  py4j has no types
    """An object of :data:`CLASS` in the driver's JVM; executors know the class from then on, too."""
    with _lock:
        if id(spark) not in _compiled:
            _compiled[id(spark)] = _compile(spark)
        return _compiled[id(spark)]


def _compile(spark: Any) -> Any:  # noqa: ANN401
    compiler = spark._jvm.org.codehaus.janino.SimpleCompiler()  # noqa: SLF001  the way to the JVM
    compiler.setTargetVersion(_CLASS_FILES)
    compiler.cook((pkgutil.get_data(__package__, SOURCE) or b"").decode())
    codes = compiler.getBytecodes()
    jar = Path(tempfile.mkdtemp(prefix="insider")) / "insider.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        for name in codes:
            archive.writestr(name.replace(".", "/") + ".class", bytes(codes[name]))
    spark.sql(f"ADD JAR '{jar}'")
    gateway = spark.sparkContext._gateway  # noqa: SLF001
    found = compiler.getClassLoader().loadClass(CLASS)
    constructor = found.getDeclaredConstructor(gateway.new_array(spark._jvm.java.lang.Class, 0))  # noqa: SLF001
    return constructor.newInstance(gateway.new_array(spark._jvm.java.lang.Object, 0))  # noqa: SLF001


def in_jvm(world: World, operation: str, targets: Iterable[str], questions: Callable[[], Iterable[Question]]) -> Tried:
    """Run ``operation`` on each of ``targets`` until one is reached, in the JVM that ``world.place`` names.

    An executor is asked all of ``questions`` in one task the first time: a task for each would take minutes.
    """
    text = "\n".join(targets)
    if not text:
        return untried("nothing of this kind is known from outside, and none can be found from inside")
    compiled = insider(world.spark)
    if world.place == Place.EXECUTOR_JVM:
        # The driver checks the plan in a thread without the jar.
        world.spark._jvm.java.lang.Thread.currentThread().setContextClassLoader(compiled.getClass().getClassLoader())  # noqa: SLF001
        if not _answers:
            _ask(world, [(asked, "\n".join(each)) for asked, each in questions()])
        if (operation, text) not in _answers:
            _ask(world, [(operation, text)])
        answer = _answers[operation, text]
    else:
        answer = compiled.attempt(operation, text)
    outcome, _, seen = answer.partition("\t")
    if outcome == Outcome.UNTRIED:
        return untried(seen)
    return Tried(Outcome(outcome), f"{operation} in the JVM", seen)


def _ask(world: World, questions: list[tuple[str, str]]) -> None:
    """Have one task of an executor answer ``questions``."""
    rows = world.spark.createDataFrame(questions, "operation string, targets string").coalesce(1)
    answer = f"java_method('{CLASS}', 'attempt', operation, targets) AS answer"
    for row in rows.selectExpr("operation", "targets", answer).collect():
        _answers[row.operation, row.targets] = row.answer


def mark(directory: str) -> str:
    """A unique path in ``directory``."""
    return f"{directory}/.sluice-insider-{os.getpid()}-{time.monotonic_ns()}"


def remove(world: World, place: str, *, exists_only: bool = False) -> bool:
    """Whether ``place`` exists for the driver's JVM, which removes it if requested."""
    jvm = world.spark._jvm  # noqa: SLF001
    path = jvm.org.apache.hadoop.fs.Path(f"file://{place}")
    system = path.getFileSystem(jvm.org.apache.hadoop.conf.Configuration())
    there = bool(system.exists(path))
    if there and not exists_only:
        system.delete(path, True)
    return there
