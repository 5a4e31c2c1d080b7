"""The ``sluice`` command: verbs are modules of this package, mounted here."""

from __future__ import annotations

import sys
import traceback
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from sluice.cli.errors import EXIT_INTERNAL, EXIT_INTERRUPTED, exit_code_of
from sluice.cli.lazy_commands import LazyCommands
from sluice.core import SluiceError

VERBS = {
    "up": "sluice.cli.cluster.commands:up",
    "status": "sluice.cli.cluster.commands:status",
    "submit": "sluice.cli.jobs.commands:submit",
    "down": "sluice.cli.cluster.commands:down",
    "drain": "sluice.cli.jobs.drain:drain",
    "undrain": "sluice.cli.jobs.drain:undrain",
    "demo": "sluice.cli.demo:demo",
    "doctor": "sluice.cli.doctor.commands:doctor",
    "connect": "sluice.cli.jobs.connect:connect",
    "audit": "sluice.cli.audit.commands:audit",
    "metrics": "sluice.cli.metrics:metrics",
    "savepoints": "sluice.cli.jobs.savepoints:app",
    "jobs": "sluice.cli.jobs.verbs:app",
    "pki": "sluice.cli.pki.commands:app",
    "token": "sluice.cli.gateway.token:app",
    "audit-log": "sluice.cli.gateway.audit_log:app",
    "user": "sluice.cli.gateway.user:app",
    "session": "sluice.cli.gateway.session:app",
    "shared-store": "sluice.cli.gateway.shared_store:app",
    "policy": "sluice.cli.gateway.policy:app",
    "secret": "sluice.cli.secrets.commands:app",
    "notify": "sluice.cli.notify:app",
    "backup": "sluice.cli.backup.commands:app",
    "login": "sluice.cli.gateway.login:login",
    "logout": "sluice.cli.gateway.login:logout",
    "whoami": "sluice.cli.gateway.login:whoami",
    "queues": "sluice.cli.jobs.queues:app",
    "shuffle": "sluice.cli.jobs.shuffle:app",
    "gateway": "sluice.cli.gateway.commands:app",
    "run": "sluice.cli.run.commands:app",
    "compose": "sluice.cli.compose.commands:app",
    "config": "sluice.cli.settings:app",
    "completion": "sluice.cli.completion:completion",
}
"""The place of each verb, in the order of the help."""
PIPELINE_VERBS = frozenset({"submit", "application"})
"""Verbs that take a pipeline with its arguments."""


class _Verbs(TyperGroup):
    """The verbs of the command, imported on demand."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - those of TyperGroup
        super().__init__(**settings)
        self.commands = LazyCommands(VERBS)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401  its type is private to typer
        """Run the verb; an unknown option of one that takes a pipeline is probably an option of the pipeline."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            # The class of typer's error is private, so it is recognised by its attributes.
            unknown = getattr(error, "option_name", None)
            verb = getattr(getattr(error, "ctx", None), "info_name", None)
            if unknown and verb in PIPELINE_VERBS and hasattr(error, "possibilities"):
                typer.echo(f"Options of the pipeline itself go after --: PIPELINE.py -- {unknown} …\n", err=True)
            raise


app = typer.Typer(
    name="sluice",
    cls=_Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Run PySpark pipelines on a cluster in which every internal connection is mutual TLS.\n\n"
    "Start with: sluice up --detach; sluice token create me --role submitter --output .sluice/token; "
    "sluice submit PIPELINE.py --wait",
    epilog="Exit codes: 0 success, 1 negative result, 2 wrong usage, 3 unreachable or unauthenticated, 4 internal.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"sluice {version('sluice')}")
        raise typer.Exit


@app.callback()
def _sluice(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version, and stop.")
    ] = False,
) -> None:
    """Take the options of the command itself."""


def main() -> None:
    """Run the command; prints every expected error in three parts: what, why, what to do."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:  # noqa: BLE001  the outermost place: a bug must not look like an answer
        sys.exit(_tell(error))


def _tell(error: Exception) -> int:
    """Print what went wrong; returns the exit code."""
    # Late: explaining errors imports those of every client, which takes a quarter of a second.
    from sluice.cli.error_messages import internal_error, print_error, system_error

    console = Console(stderr=True)
    if isinstance(error, SluiceError):
        print_error(error, console)
        return exit_code_of(error)
    if isinstance(error, OSError):
        print_error(system_error(error), console)
        return EXIT_INTERNAL
    traceback.print_exception(error)
    print_error(internal_error(error), console)
    return EXIT_INTERNAL


if __name__ == "__main__":
    main()
