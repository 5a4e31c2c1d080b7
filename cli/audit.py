"""``sluice audit``: examine a live cluster from outside, with real handshakes."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from audit.catalogue import CHECKS
from audit.discovery import find
from audit.errors import AuditError, InputError
from audit.identities import HomeIdentities
from audit.model import Report, Severity
from audit.reports import RENDERERS, Format
from audit.reports.text import print_report
from audit.runner import examine
from audit.subject import Identities, Options, Subject
from audit.wire.probe import speaks_tls
from cli.errors import EXIT_NO, UnreachableError, UsageError
from cli.options import DEFAULT_HOME, ConfigOption, HomeOption, JsonOption, load_configuration
from pki.files import write_public
from pki.home import Home


def audit(
    format_: Annotated[Format, typer.Option("--format", help="How to write the report.")] = Format.TEXT,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write it to this file.")] = None,
    fail_on: Annotated[Severity, typer.Option(help="Exit code 1 with findings of this severity or worse.")] = (
        Severity.LOW
    ),
    patience: Annotated[
        float, typer.Option(min=0.1, max=60, help="Seconds within which a listener must have refused a client.")
    ] = 2.0,
    handshake_limit: Annotated[
        float, typer.Option(min=0.5, max=300, help="Seconds after which a listener must have ended a handshake.")
    ] = 15.0,
    max_leaf_days: Annotated[float, typer.Option(min=0.01, help="Longest lifetime of a listener's certificate.")] = 7.0,
    with_identities: Annotated[
        bool,
        typer.Option(
            help="Have the home's authorities certify identities that are wrong in one way each; "
            "they are logged and expire in minutes."
        ),
    ] = True,
    list_checks: Annotated[bool, typer.Option("--list-checks", help="Show what is checked, and examine nothing.")] = (
        False
    ),
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Examine the cluster's listeners: plaintext, handshakes, certificates, and everybody who must be refused.

    Exit codes: 0 no finding, 1 findings, 2 wrong usage, 3 no cluster to examine.
    """
    if list_checks:
        print_checks()
        return
    options = Options(
        patience=patience, handshake_limit=handshake_limit, max_leaf_lifetime=dt.timedelta(days=max_leaf_days)
    )
    located, configuration = load_configuration(home, config)
    try:
        identities = HomeIdentities(located, configuration.pki) if with_identities else None
        subjects = subjects_of_home(located, options, identities)
        report = examine(f"the cluster in {home}", subjects)
    except InputError as error:
        raise UsageError(error.what, error.remedy) from error
    except AuditError as error:
        raise UnreachableError(error.what, error.remedy) from error
    write_report(report, Format.JSON if as_json else format_, output)
    if report.failed(fail_on):
        raise typer.Exit(EXIT_NO)


def subjects_of_home(home: Home, options: Options, identities: Identities | None) -> list[Subject]:
    """Everything that listens for the cluster in ``home``."""
    found = find(home, speaks_tls)
    return [Subject(listener, options, identities, home=home.root) for listener in found.listeners]


def write_report(report: Report, format_: Format, output: Path | None) -> None:
    """To ``output``, or to the screen."""
    if output is not None:
        if not output.parent.is_dir():
            raise UsageError(f"there is no directory {output.parent}", "create it, or choose another --output")
        write_public(output, RENDERERS[format_](report).encode() + b"\n")
    elif format_ is Format.TEXT:
        console = Console()
        print_report(report, console if console.is_terminal else Console(width=140))
    else:
        typer.echo(RENDERERS[format_](report))


def print_checks() -> None:
    """The catalogue, for people."""
    table = Table(box=None, pad_edge=False)
    for column in ("ID", "SEVERITY", "WHAT MUST BE SO", "ON", "SOURCES"):
        table.add_column(column)
    for check in CHECKS:
        kinds = ", ".join(sorted(check.kinds))
        table.add_row(check.id, check.severity, check.title, kinds, "; ".join(check.references))
    Console(width=200).print(table)
