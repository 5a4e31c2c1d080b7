"""The ``sluice`` command: verbs are modules of this package, mounted here."""

from __future__ import annotations

import sys
import traceback

import typer
from rich.console import Console

from sluice.cli import demo, metrics, settings
from sluice.cli.audit import commands as audit
from sluice.cli.cluster import commands as cluster
from sluice.cli.compose import commands as compose
from sluice.cli.doctor import commands as doctor
from sluice.cli.error_messages import internal_error, print_error, system_error
from sluice.cli.errors import (
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    exit_code_of,
)
from sluice.cli.gateway import (
    audit_log,
    commands as gateway,
    login,
    policy,
    session,
    token,
    user,
)
from sluice.cli.jobs import (
    commands as jobs,
    connect,
    drain,
    exceptions as job_exceptions,
    savepoints,
    shuffle,
)
from sluice.cli.pki import commands as pki
from sluice.cli.run import commands as run
from sluice.core import SluiceError

app = typer.Typer(
    name="sluice",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Run PySpark pipelines on a cluster in which every internal connection is mutual TLS.\n\n"
    "Start with: sluice up --detach; sluice token create me --role submitter --output .sluice/token; "
    "sluice submit PIPELINE.py --wait",
    epilog="Exit codes: 0 success, 1 negative result, 2 wrong usage, 3 unreachable or unauthenticated, 4 internal.",
)
app.command()(cluster.up)
app.command()(cluster.status)
app.command()(jobs.submit)
app.command()(cluster.down)
app.command()(drain.drain)
app.command()(drain.undrain)
app.command()(demo.demo)
app.command()(doctor.doctor)
app.command()(connect.connect)
app.command()(audit.audit)
app.command()(metrics.metrics)
jobs.app.command()(job_exceptions.exceptions)
jobs.app.command()(savepoints.checkpoints)
jobs.app.command()(savepoints.savepoint)
app.add_typer(savepoints.app, name="savepoints")
app.add_typer(jobs.app, name="jobs")
app.add_typer(pki.app, name="pki")
app.add_typer(token.app, name="token")
app.add_typer(audit_log.app, name="audit-log")
app.add_typer(user.app, name="user")
app.add_typer(session.app, name="session")
app.add_typer(policy.app, name="policy")
app.command()(login.login)
app.command()(login.logout)
app.command()(login.whoami)
app.add_typer(shuffle.app, name="shuffle")
app.add_typer(gateway.app, name="gateway")
app.add_typer(run.app, name="run")
app.add_typer(compose.app, name="compose")
app.add_typer(settings.app, name="config")


def main() -> None:
    """Run the command; every error on purpose is told in three parts: what, why, what to do."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except SluiceError as error:
        print_error(error, Console(stderr=True))
        sys.exit(exit_code_of(error))
    except OSError as error:
        print_error(system_error(error), Console(stderr=True))
        sys.exit(EXIT_INTERNAL)
    except Exception as error:  # noqa: BLE001  the outermost place: a fault of ours must not look like an answer
        traceback.print_exc()
        print_error(internal_error(error), Console(stderr=True))
        sys.exit(EXIT_INTERNAL)


if __name__ == "__main__":
    main()
