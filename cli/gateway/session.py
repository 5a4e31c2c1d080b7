"""``sluice session``: list and end sessions."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from sluice.cli import audit_records
from sluice.cli.errors import RefusedError, UsageError
from sluice.cli.gateway.shared_home import gateway_home
from sluice.cli.gateway.times import utc_text
from sluice.cli.options import DEFAULT_HOME, HomeOption, JsonOption
from sluice.cli.tables import print_table
from sluice.gateway.credentials import Revocations, SessionRecord, read_sessions, revoke_sessions

app = typer.Typer(no_args_is_help=True, help="Sessions of browsers and of `sluice login`: list them, end them.")


@app.command("list")
def list_(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """List active sessions. "Seen" may be up to a minute old."""
    located, now = gateway_home(home), time.time()
    revoked = Revocations.of(located).current()
    records = [
        record
        for record in read_sessions(located).records
        if now < record.expires_at and not revoked.is_revoked(("session", record.id), now=now)
    ]
    if as_json:
        typer.echo(json.dumps({"sessions": [_document(record) for record in records]}))
        return
    rows = [
        (r.id, r.name, r.client, r.address or "-", utc_text(r.created_at), utc_text(r.seen_at), utc_text(r.expires_at))
        for r in records
    ]
    print_table(("ID", "NAME", "CLIENT", "ADDRESS", "SINCE", "SEEN", "EXPIRES"), rows)


@app.command(epilog="Examples: sluice session revoke 3f9c0a1b2d4e; sluice session revoke --user ada; --all")
def revoke(
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID...", help="Ids of sessions.")] = None,
    user: Annotated[str, typer.Option(help="End every session of this principal.")] = "",
    everybody: Annotated[bool, typer.Option("--all", help="End every session.")] = False,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """End sessions within a second. Their users can sign in again, unless `sluice user lock` locks them out."""
    wanted = set(ids or ())
    if sum((bool(wanted), bool(user), everybody)) != 1:
        raise UsageError("name sessions, or --user, or --all", "see `sluice session list`")
    located = gateway_home(home)
    unknown = wanted - {record.id for record in read_sessions(located).records}
    if unknown:
        raise RefusedError(f"there is no session {', '.join(sorted(unknown))[:200]}", "see `sluice session list`")
    ended = revoke_sessions(located, lambda each: everybody or each.id in wanted or each.name == user)
    for record in ended:
        audit_records.record(located, "session.revoked", {"id": record.id, "name": record.name})
    if as_json:
        typer.echo(json.dumps({"revoked": [_document(record) for record in ended]}))
        return
    for record in ended:
        typer.echo(f"ended session {record.id} of {record.name}")


def _document(record: SessionRecord) -> dict[str, object]:
    return {
        "id": record.id,
        "name": record.name,
        "groups": record.groups,
        "client": record.client,
        "method": record.method,
        "address": record.address,
        "issuer": record.issuer,
        "created_at": utc_text(record.created_at),
        "seen_at": utc_text(record.seen_at),
        "expires_at": utc_text(record.expires_at),
    }
