"""``sluice policy replay``: finds in the audit log what a changed policy would have decided differently."""

from __future__ import annotations

import datetime as dt
import enum
import json
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.errors import EXIT_NO
from sluice.cli.gateway.times import moment
from sluice.cli.options import DEFAULT_HOME, ConfigOption, HomeOption, JsonOption, load_configuration
from sluice.cli.progress import bar
from sluice.cli.published_routes import effective_policy, operations
from sluice.cli.tables import print_table
from sluice.core import REPLACEMENT, Home, printable, rfc3339
from sluice.gateway.audit_log import Verified, audit_directory, verify_log
from sluice.gateway.authz import Policy, read_policy
from sluice.gateway.credentials import TokenStore, UserStore, read_sessions
from sluice.gateway.policy_replay import DecisionChange, Effect, Replay, Requesters

COLUMNS = ("EFFECT", "PRINCIPAL", "OPERATION", "DESTINATION", "JOB", "COUNT", "FIRST", "LAST", "REASON")
_WORDS = {
    Effect.REFUSED: "would be refused",
    Effect.OWN_ONLY: "own jobs only",
    Effect.ALLOWED: "newly allowed",
}


class ReplayFormat(enum.StrEnum):
    """How the result is printed."""

    TABLE = "table"
    JSON = "json"


def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The changed policy.")],
    since: Annotated[
        str, typer.Option(help="Only requests since: 12h, 30d, or a time such as 2026-03-01T12:00.")
    ] = "30d",
    output: Annotated[
        ReplayFormat, typer.Option("--format", help="How to print the result; --json is --format json.")
    ] = ReplayFormat.TABLE,
    directory: Annotated[
        Path | None,
        typer.Option("--directory", help="Directory of another audit log, or of a copy. Default: that of the home."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="Verify with this public key (PEM) instead of the one in the log's directory.")
    ] = None,
    key_id: Annotated[str, typer.Option(help="Fail unless the key has this id (see `sluice audit-log key`).")] = "",
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what a changed policy would have refused or newly allowed, of whom and how often, from the audit log.

    On the way in by operation, on the way out by destination and job.

    The log is verified as `sluice audit-log verify` does; a log that does not verify is not used. Exit code 0: every
    request would have been decided in the same way; 1: some would not, or the log does not verify.
    """
    wanted = read_policy(file, operations())
    located, configuration = load_configuration(home, config)
    current = effective_policy(located, configuration.gateway.policy_file)
    begin = moment("--since", since, dt.datetime.now(dt.UTC))
    taken = Replay(wanted, requesters(located, current), begin)
    place = audit_directory(located) if directory is None else directory
    with bar("replaying the audit log") as shown:
        proved = verify_log(place, key=key, key_id=key_id, visit=taken.take, progress=shown.show)
    if as_json or output is ReplayFormat.JSON:
        typer.echo(json.dumps(_document(taken, proved)))
    else:
        _print(taken, proved)
    if taken.changes:
        raise typer.Exit(EXIT_NO)


def requesters(home: Home, current: Policy) -> Requesters:
    """The principals with a credential or a password in ``home``."""
    return Requesters(
        current,
        tokens={each.id: each for each in TokenStore(home).read().records},
        sessions={each.id: each for each in read_sessions(home).records},
        users={each.name: each for each in UserStore(home).read().records},
    )


def _document(taken: Replay, proved: Verified) -> dict[str, object]:
    return {
        "since": None if taken.since is None else rfc3339(taken.since),
        "log": {"lines": proved.state.count, "digest": proved.state.digest, "key_id": proved.key},
        "decided": taken.decided,
        "unknown": taken.unknown,
        "left_out": taken.left_out,
        "changes": [
            {
                "effect": row.effect.value,
                "principal": row.principal,
                "operation": row.operation,
                "destination": row.target,
                "job": row.job,
                "count": row.count,
                "first": rfc3339(row.first),
                "last": rfc3339(row.last),
                "reason": row.reason,
            }
            for row in taken.rows
        ],
    }


def _print(taken: Replay, proved: Verified) -> None:
    if taken.rows:
        print_table(COLUMNS, map(_cells, taken.rows), right=("COUNT",))
    typer.echo(
        f"{taken.decided} requests decided again, of a log of {proved.state.count} valid lines (key {proved.key})"
    )
    if taken.unknown:
        typer.echo(f"{taken.unknown} requests left out: it is not known any more which roles their principals had")
    if taken.left_out:
        typer.echo(f"{taken.left_out} requests would be decided otherwise besides those of the table, which is full")
    if not taken.changes:
        typer.echo("nothing would have been decided otherwise")


def _cells(row: DecisionChange) -> tuple[str, ...]:
    first, last = (each.strftime("%Y-%m-%d %H:%M:%SZ") for each in (row.first, row.last))
    texts = (
        _WORDS[row.effect],
        row.principal,
        row.operation,
        row.target or "-",
        row.job or "-",
        str(row.count),
        first,
        last,
    )
    return (*(printable(text, REPLACEMENT) for text in texts), row.reason)
