"""The program of a waiting Python process: it imports what pipelines import, and then runs the pipeline of a line.

It runs as ``python -c`` in a box. Its arguments are paths of files that it creates once it waits. The line on standard
input is a JSON object: ``environment``, ``directory``, ``argv``
(``imported_python``). The end of the input means that the process is not needed. The
pipeline sees nothing of this program. If a job has its own version of an imported module, the process executes a new
Python instead.
"""


def _become() -> None:
    import builtins
    import importlib.machinery
    import json
    import os
    import sys
    import types

    import py4j.java_gateway  # type: ignore[import-untyped]  # py4j has no types
    import pyspark
    import pyspark.sql
    import pyspark.sql.classic.column
    import pyspark.sql.classic.dataframe
    import pyspark.sql.functions
    import pyspark.sql.types
    import pyspark.testing.utils  # the first session imports it, with NumPy, pandas and Arrow, which takes 0.5 s

    del pyspark, py4j
    imported = {name.partition(".")[0] for name in sys.modules} - {"__main__"}
    for path in sys.argv[1:]:
        with open(path, "x", encoding="ascii"):  # noqa: PTH123 - do not import pathlib before the pipeline does
            pass
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        os._exit(0)
    job = json.loads(line)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115 - stays open, as in a new Python
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["directory"])
    sys.argv[:] = sys.orig_argv[1:] = job["argv"]
    path = job["argv"][0]
    places = [
        os.path.dirname(path),  # noqa: PTH120 - the same as Python itself
        *filter(None, job["environment"].get("PYTHONPATH", "").split(os.pathsep)),
    ]
    found = (importlib.machinery.PathFinder.find_spec(name, places) for name in imported)
    if any(spec is not None and spec.origin is not None for spec in found):  # None: a part of a namespace package
        os.execv(sys.executable, [sys.executable, *job["argv"]])  # noqa: S606 - the same Python, without imports
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
    except BaseException as error:  # noqa: BLE001 - print it as Python does, without the frame of this program
        top = error.__traceback__
        sys.excepthook(type(error), error, None if top is None else top.tb_next)
        sys.exit(1)


_become()
