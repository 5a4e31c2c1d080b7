"""``sluice gateway status``: the configuration sent to Envoy, and what it accepted or rejected."""

from __future__ import annotations

import json
from typing import Annotated

import msgspec
import typer

from sluice.cli.errors import EXIT_NO, UnreachableError
from sluice.cli.options import DEFAULT_HOME, HomeOption, JsonOption
from sluice.core import Home
from sluice.gateway.xds import read_status, status_file

SERVERS = {"auth": "listeners, routes, policy, revocations", "envoy": "certificates and keys"}
"""The xDS servers that configure Envoy; each reports on its own machine."""


def status(
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
    server: Annotated[
        str | None, typer.Option(help="Only this xDS server: auth or envoy, of several auth-2, envoy-2 and so on.")
    ] = None,
) -> None:
    """Show what Envoy was sent, accepted and rejected. Exit code 1 when anything was rejected."""
    located = Home.at(home)
    reports = {
        name: report
        for name in _servers(located)
        if server in {None, name} and (report := read_status(status_file(located, name))) is not None
    }
    if not reports:
        raise UnreachableError(f"no xDS server runs in {located.root}", "start the cluster with `sluice up`")
    problems = [problem for report in reports.values() for problem in report.problems]
    if as_json:
        documents = {name: msgspec.to_builtins(report) for name, report in reports.items()}
        print(json.dumps({"servers": documents, "problems": problems}))
    else:
        for name, report in reports.items():
            print(f"{name} ({SERVERS[name.partition('-')[0]]})")
            for kind, state in sorted(report.kinds.items()):
                works = "in use" if state.accepted == state.sent else f"in use: {state.accepted or 'nothing'}"
                print(f"  {kind:<12} {state.sent or '-':<18} {works}")
        for problem in problems:
            print(f"! {problem}")
    raise typer.Exit(EXIT_NO if problems else 0)


def _servers(home: Home) -> list[str]:
    """The names of the xDS servers: each kind, and further ones of a kind."""
    return [
        name
        for kind in SERVERS
        for name in (kind, *sorted(path.stem.removeprefix("xds-") for path in home.run.glob(f"xds-{kind}-*.json")))
    ]
