"""``sluice pki doctor``: examines a home and its running processes."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.cluster import read_record, record_path
from sluice.cli.errors import EXIT_NO, UsageError
from sluice.cli.options import DEFAULT_HOME, HomeOption, JsonOption
from sluice.cli.pki.arguments import print_json
from sluice.cli.pki.inspect import finding_lines
from sluice.core import Home, printable, utc_now
from sluice.pki.inspect import Severity
from sluice.pki.inspect.doctor import Processes
from sluice.pki.inspect.doctor.examine import examine

app = typer.Typer(rich_markup_mode=None)


class FailOn(enum.StrEnum):
    """The severity from which on the exit code is 1."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"
    NEVER = "never"

    def fails(self, severity: Severity) -> bool:
        """Whether a finding of ``severity`` counts."""
        return self is not FailOn.NEVER and severity.rank >= Severity(self.value).rank


@app.command(epilog="Examples: sluice pki doctor; sluice pki doctor /srv/cluster --fail-on error --json")
def doctor(
    directory: Annotated[Path | None, typer.Argument(help="The home to examine; default: --home.")] = None,
    home: HomeOption = DEFAULT_HOME,
    fail_on: Annotated[
        FailOn, typer.Option(help="Exit code 1 for findings of this severity or worse.")
    ] = FailOn.WARNING,
    offline: Annotated[bool, typer.Option("--offline", help="Examine only files; connect to nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Examine a home: permissions, expiry, chains, keys, keystores, CRLs, ledger, clocks, leftovers; each finding
    with its remedy.

    While its processes run, also: does each listener present what its directory has, is everything renewed in time.
    Nothing is changed, and nothing secret is shown or sent. Exit code 0: nothing found; 1: something at least as bad
    as --fail-on; 2: there is no such home. What each code means is in docs/reference/pki-doctor.md.
    """
    located = Home.at(directory or home)
    if not located.pki.is_dir():
        raise UsageError(f"{located.root} is not a home: there is no {located.pki}", "name one with --home")
    findings = examine(located, _processes(located), utc_now, online=not offline)
    failed = any(fail_on.fails(each.severity) for each in findings)
    if as_json:
        counts = {severity: sum(each.severity is severity for each in findings) for severity in Severity}
        print_json({"home": str(located.root), "healthy": not failed, "counts": counts, "findings": findings})
    else:
        for each in findings:
            for line in finding_lines(each):
                typer.echo(printable(line))
        typer.echo(f"{len(findings)} findings in {located.root}" if findings else f"nothing found in {located.root}")
    if failed:
        raise typer.Exit(EXIT_NO)


def _processes(home: Home) -> Processes:
    record = read_record(home)
    if record is None:
        return Processes(record_path(home))
    dead = tuple(each.name for each in (record.launcher, *record.children) if each.find() is None)
    return Processes(record_path(home), running=record.launcher.find() is not None, dead=dead)
