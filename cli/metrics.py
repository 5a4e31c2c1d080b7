"""``sluice metrics``: the metrics of the processes of this home, read from their sockets."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer

from sluice.cli.errors import UnreachableError, UsageError
from sluice.cli.options import DEFAULT_HOME, HomeOption, JsonOption
from sluice.core import Home


def metrics(
    home: HomeOption = DEFAULT_HOME,
    process: Annotated[str | None, typer.Option(help="Only this process, such as `auth/auth-1`.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the metrics of this home's processes in Prometheus' text format."""
    located = Home.at(home)
    text = asyncio.run(_gather(located, process))
    if not text and process is not None:
        raise UsageError(
            f"no process {process!r} of {located.root} shows metrics",
            "see the labels `process` that `sluice metrics` prints without --process",
        )
    if not text:
        raise UnreachableError(
            f"no process is running in {located.root}", "start a cluster with `sluice up`, or name its home with --home"
        )
    if as_json:
        typer.echo(json.dumps(_samples(text)))
    else:
        typer.echo(text, nl=False)


async def _gather(home: Home, process: str | None) -> str:
    from sluice.core import fetch, merge

    answers = await asyncio.gather(*(fetch(path) for path in sorted(home.metric_sockets.glob("*.sock"))))
    wanted = [text for text in answers if text and (process is None or f'process="{process}"' in text)]
    return merge(wanted) if wanted else ""


def _samples(text: str) -> list[dict[str, object]]:
    from prometheus_client.parser import text_string_to_metric_families

    return [
        {"name": sample.name, "labels": sample.labels, "value": sample.value}
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
