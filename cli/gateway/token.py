"""``sluice token``: API tokens of the gateway."""

from __future__ import annotations

import datetime as dt
import json
import re
import time
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli import audit_records
from sluice.cli.errors import UsageError
from sluice.cli.gateway.shared_home import gateway_home
from sluice.cli.gateway.times import utc_text
from sluice.cli.options import DEFAULT_HOME, HomeOption, JsonOption, load_configuration
from sluice.cli.published_routes import effective_policy
from sluice.cli.tables import print_table
from sluice.client import TokenBinding, addresses, announced_url, edge_bundle, fingerprints, write_binding
from sluice.core import Home, write_secret
from sluice.gateway.authz import matches
from sluice.gateway.credentials import TokenRecord, TokenStore, read_last_used
from sluice.pki.assertions import TokenId

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_LIFETIME = re.compile(r"([1-9][0-9]{0,6})([smhd])")

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="API tokens: credentials for programs that use the gateway.\n\n"
    "Roles are those of the policy (`sluice policy show`): unless it says otherwise, a viewer sees the jobs "
    "of everybody; a submitter submits jobs, and sees and cancels its own; an operator is a viewer who cancels any job "
    "and drains TaskManagers; a secret-keeper stores and grants secrets; an admin may do everything. Only a hash of a "
    "token is stored, so it cannot be shown again: revoke a lost token and create another. Changes take effect with "
    "the next request.",
)


@app.command(
    epilog="Example: sluice token create ada --role submitter --ttl 7d --output .sluice/token. "
    "Then `sluice submit` finds it by itself; other programs send it as `Authorization: Bearer TOKEN`."
)
def create(
    name: Annotated[str, typer.Argument(help="The principal; it owns the jobs that are submitted with the token.")],
    role: Annotated[
        str, typer.Option(help="A role of the policy (viewer, submitter, operator, secret-keeper, admin).")
    ],
    ttl: Annotated[str, typer.Option(help="Lifetime, such as 30d, 12h, 90m; at most 366d.")] = "30d",
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="Restrict the token to these operations of the role, such as jobs.read or 'jobs.*'; repeatable."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the token to this file (mode 0600) instead of the screen."),
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Create a token and print it. It cannot be shown again."""
    lifetime = parse_lifetime(ttl)
    if output is not None:
        _check_output(output)
    located, scopes = gateway_home(home), tuple(scope or ())
    policy = effective_policy(located, _configured_policy(home))
    if role not in policy.roles:
        raise UsageError(f"--role {role!r} is not a role", f"one of {', '.join(policy.roles)}")
    for each in scopes:
        if not any(matches(each, operation) for operation in policy.operations):
            raise UsageError(f"no operation matches the scope {each!r}", "see `sluice policy show --json`")
    record, token = TokenStore(located).create(name, role, lifetime, scopes=scopes, roles=tuple(policy.roles))
    audit_records.record(located, "token.created", {"id": record.id, "name": record.name, "role": record.role})
    if output is not None:
        write_binding(output, _binding(located, home))
        write_secret(output, token.encode() + b"\n")
    document: dict[str, object] = {"id": record.id, "name": record.name, "role": record.role}
    document |= {"scopes": record.scopes, "expires_at": utc_text(record.expires_at)}
    if as_json:
        document |= {"token": token} if output is None else {"file": str(output)}
        typer.echo(json.dumps(document))
        return
    note = f"token {record.id} for {record.name} ({record.role}), valid until {utc_text(record.expires_at)}"
    if output is None:
        # The token alone on standard output, so that TOKEN=$(sluice token create ...) works.
        typer.echo(note + "; it is not shown again:", err=True)
        typer.echo(token)
    else:
        typer.echo(f"{note}, written to {output}")


@app.command("list")
def list_(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """List all tokens with their state, without their secrets."""
    now, located = time.time(), gateway_home(home)
    records, used = TokenStore(located).read().records, read_last_used(located)
    if as_json:
        typer.echo(json.dumps({"tokens": [_document(record, now, used.get(record.id)) for record in records]}))
        return
    if not records:
        typer.echo("there are no tokens; create one with `sluice token create NAME --role submitter`", err=True)
        return
    columns = ("ID", "NAME", "ROLE", "STATE", "CREATED", "EXPIRES", "LAST USED", "SCOPES")
    rows = [
        (
            r.id,
            r.name,
            r.role,
            r.state(now),
            utc_text(r.created_at),
            utc_text(r.expires_at),
            utc_text(used[r.id]) if r.id in used else "-",
            " ".join(r.scopes) or "-",
        )
        for r in records
    ]
    print_table(columns, rows)


@app.command(epilog="Example: sluice token revoke 3f9c0a1b2d4e. The ids are in `sluice token list`.")
def revoke(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of the tokens (the part after slc_).")],
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Revoke tokens permanently, with their short-lived access tokens, within a second."""
    located = gateway_home(home)
    store = TokenStore(located)
    revoked = []
    for identifier in ids:
        record = store.revoke(TokenId(identifier))
        audit_records.record(located, "token.revoked", {"id": record.id, "name": record.name})
        revoked.append(record)
    if as_json:
        now = time.time()
        typer.echo(json.dumps({"revoked": [_document(record, now) for record in revoked]}))
        return
    for record in revoked:
        typer.echo(f"revoked token {record.id} of {record.name}")


def parse_lifetime(text: str) -> dt.timedelta:
    """``30d``, ``12h``, ``90m``, ``45s``; anything else is a :class:`UsageError`."""
    match = _LIFETIME.fullmatch(text)
    if match is None:
        raise UsageError(f"--ttl {text!r} is not a lifetime", "use a number and a unit: 30d, 12h, 90m, 45s")
    return dt.timedelta(**{_UNITS[match[2]]: int(match[1])})


def _check_output(path: Path) -> None:
    """Refuse to overwrite a file that is not a token; raises :class:`UsageError`."""
    if not path.parent.is_dir():
        raise UsageError(
            f"there is no directory {path.parent}",
            "if it is the home of a cluster, start that first with `sluice up`, or go to the directory where it was "
            "started; otherwise create it",
        )
    if path.exists() and not (path.is_file() and _holds_token(path)):
        raise UsageError(f"{path} exists and is not a token", "choose another --output, or remove it")


def _holds_token(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"slc_"


def _configured_policy(home: Path) -> str:
    return load_configuration(home, None)[1].gateway.policy_file


def _binding(located: Home, home: Path) -> TokenBinding:
    """The gateway of this home: its address, also before it runs, and its certificate authority."""
    bundle = edge_bundle(located)
    return TokenBinding(
        servers=addresses(load_configuration(home, None)[1].gateway, announced_url(located)),
        authorities=tuple(sorted(fingerprints(bundle))) if bundle.exists() else (),
    )


def _document(record: TokenRecord, now: float, used: float | None = None) -> dict[str, object]:
    return {
        "id": record.id,
        "name": record.name,
        "role": record.role,
        "state": record.state(now),
        "created_at": utc_text(record.created_at),
        "expires_at": utc_text(record.expires_at),
        "last_used_at": None if used is None else utc_text(used),
        "scopes": record.scopes,
        "revoked_at": None if record.revoked_at is None else utc_text(record.revoked_at),
    }
