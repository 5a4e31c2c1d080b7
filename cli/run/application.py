"""``sluice run application``: a cluster for one pipeline, which ends with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sluice.cli.jobs import comma_separated, parse_conf
from sluice.cli.options import (
    DEFAULT_HOME,
    ConfigOption,
    HomeOption,
    JsonOption,
    load_configuration,
)
from sluice.client import build_submission


def application(
    pipeline: Annotated[Path, typer.Argument(help="The PySpark pipeline: one Python file.")],
    args: Annotated[list[str] | None, typer.Argument(help="Arguments of the pipeline, after --.")] = None,
    name: Annotated[str, typer.Option(help="Name of the job; default: the file's name.")] = "",
    executors: Annotated[int | None, typer.Option(min=1, max=1000, help="Executors to ask for.")] = None,
    executor_cores: Annotated[int | None, typer.Option(min=1, max=1024, help="Cores of each executor.")] = None,
    executor_memory: Annotated[str | None, typer.Option(help="Heap of each executor, such as 2g or 1536m.")] = None,
    conf: Annotated[list[str] | None, typer.Option("--conf", help="Spark setting KEY=VALUE; repeatable.")] = None,
    file: Annotated[
        list[Path] | None, typer.Option("--file", help="Extra file in the working folder; repeatable.")
    ] = None,
    py_files: Annotated[
        list[str] | None, typer.Option("--py-files", help="Python files, zips, wheels for driver and executors.")
    ] = None,
    archives: Annotated[
        list[str] | None, typer.Option("--archives", help="Archives that are unpacked: FILE or FILE#DIRECTORY.")
    ] = None,
    python: Annotated[
        str,
        typer.Option(help="The Python of driver and executors, in an archive: env/bin/python; default: the cluster's."),
    ] = "",
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="HTTPS port of the gateway; 0: any free.")] = None,
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a cluster, run one pipeline on it, and stop it: application mode.

    Exit codes: 0 the job finished, 1 it failed or was cancelled, 130 interrupted. Interrupted or killed, and started
    again with the same home, it goes on with the job that had not ended.
    """
    from sluice.cli.config import find_config_file
    from sluice.cli.jobs import OneJob

    submission = build_submission(
        pipeline,
        args or [],
        name=name,
        executors=executors,
        executor_cores=executor_cores,
        executor_memory=executor_memory,
        spark_conf=parse_conf(conf or []),
        files=file or [],
        py_files=[Path(each) for each in comma_separated(py_files)],
        archives=comma_separated(archives),
        python=python,
    )
    located, configuration = load_configuration(home, config, gateway__port=port)
    config_file = find_config_file(config, located.root)
    raise typer.Exit(OneJob(located, configuration, config_file, submission, Console(stderr=True), as_json).run())
