"""The program of a driver's Python that waits: it imports what pipelines import, and becomes the one of one line.

It runs as ``python -c`` in a box. Its argument, if any, is the path of the file that says that it waits. The line is a
JSON object: ``environment``, ``directory``, ``argv`` (:mod:`sluice.runtime.spark.driver.imported_python`). The end
of the input instead means that nobody needs it. After the line nothing of this program is left for a pipeline to see.

A job that brings its own version of a module that is imported already gets a new Python in this process.
"""


def _become() -> None:
    import builtins
    import importlib.machinery
    import json
    import os
    import sys
    import types

    import py4j.java_gateway  # type: ignore[import-untyped]  # it has no types
    import pyspark
    import pyspark.sql
    import pyspark.sql.classic.column
    import pyspark.sql.classic.dataframe
    import pyspark.sql.functions
    import pyspark.sql.types
    import pyspark.testing.utils  # the first session imports it, and with it NumPy, pandas and Arrow: half a second

    del pyspark, py4j
    imported = {name.partition(".")[0] for name in sys.modules} - {"__main__"}
    for path in sys.argv[1:]:
        with open(path, "x", encoding="ascii"):  # noqa: PTH123 - pathlib is the pipeline's to import
            pass
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        os._exit(0)
    job = json.loads(line)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115 - as Python has it
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["directory"])
    sys.argv[:] = sys.orig_argv[1:] = job["argv"]
    path = job["argv"][0]
    places = [
        os.path.dirname(path),  # noqa: PTH120 - as Python does
        *filter(None, job["environment"].get("PYTHONPATH", "").split(os.pathsep)),
    ]
    found = (importlib.machinery.PathFinder.find_spec(name, places) for name in imported)
    if any(spec is not None and spec.origin is not None for spec in found):  # None: only a part of a namespace
        os.execv(sys.executable, [sys.executable, *job["argv"]])  # noqa: S606 - the same Python, which has not waited
    sys.path[:1] = places
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __file__=path,
        __builtins__=builtins,
        __annotations__={},
        __loader__=importlib.machinery.SourceFileLoader("__main__", path),
        __cached__=None,
        __doc__=None,
    )
    sys.modules["__main__"] = main
    with open(path, "rb") as file:  # noqa: PTH123
        source = file.read()
    try:
        exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)  # noqa: S102 - the job's program
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - shown as Python shows it, without this program
        top = error.__traceback__
        sys.excepthook(type(error), error, None if top is None else top.tb_next)
        sys.exit(1)


_become()
