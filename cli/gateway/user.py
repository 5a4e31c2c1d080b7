"""``sluice user``: users of a cluster without an identity provider."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from sluice.cli import audit_records
from sluice.cli.errors import UsageError
from sluice.cli.gateway.shared_home import gateway_home
from sluice.cli.gateway.times import utc_text
from sluice.cli.options import DEFAULT_HOME, HomeOption, JsonOption
from sluice.cli.published_routes import effective_policy
from sluice.gateway import is_group
from sluice.gateway.credentials import MAX_PASSWORD_BYTES, Revocations, UserRecord, UserStore

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Users who sign in with a name and a password, for clusters without an identity provider.\n\n"
    "Passwords are asked for, or read from standard input with --password-stdin; never from the command line. "
    "Only scrypt hashes are kept.",
)

StdinOption = Annotated[bool, typer.Option("--password-stdin", help="Read the password from standard input, one line.")]


@app.command(epilog="Example: sluice user add ada --role submitter")
def add(
    name: Annotated[str, typer.Argument(help="Name of the user, who owns the jobs that they submit.")],
    role: Annotated[list[str] | None, typer.Option(help="A role of the policy; repeatable.")] = None,
    group: Annotated[
        list[str] | None, typer.Option(help="A group, to which the policy may give roles; repeatable.")
    ] = None,
    password_stdin: StdinOption = False,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Add a user."""
    located, roles, groups = gateway_home(home), tuple(role or ()), tuple(group or ())
    known = effective_policy(located).roles
    for each in roles:
        if each not in known:
            raise UsageError(f"{each!r} is not a role", f"one of {', '.join(known)}")
    for each in groups:
        if not is_group(each):
            raise UsageError(f"{each!r} cannot be a group", "letters, digits and ' ._@:/-'")
    record = UserStore(located).add(name, _password(stdin=password_stdin), roles=roles, groups=groups)
    audit_records.record(located, "user.added", {"name": name, "roles": ",".join(roles), "groups": ",".join(groups)})
    _tell(record, "added", as_json=as_json)


@app.command("list")
def list_(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """List all users."""
    located = gateway_home(home)
    records = UserStore(located).read().records
    locked = Revocations.of(located)
    if as_json:
        documents = [{**_document(each), "locked": locked.is_revoked(("user", each.name))} for each in records]
        typer.echo(json.dumps({"users": documents}))
        return
    for record in records:
        note = "  locked out" if locked.is_revoked(("user", record.name)) else ""
        typer.echo(
            f"{record.name}  roles: {', '.join(record.roles) or '-'}  groups: {', '.join(record.groups) or '-'}{note}"
        )


@app.command()
def passwd(
    name: Annotated[str, typer.Argument()],
    password_stdin: StdinOption = False,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Set a new password. Every session of the user ends."""
    located = gateway_home(home)
    store = UserStore(located)
    store.read().require(name)
    record = store.set_password(name, _password(stdin=password_stdin))
    audit_records.record(located, "user.password", {"name": name})
    _tell(record, "set the password of", as_json=as_json)


@app.command()
def remove(
    name: Annotated[str, typer.Argument()], home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False
) -> None:
    """Remove a user. Every session of the user ends; API tokens of the name stay, see `sluice token list`."""
    located = gateway_home(home)
    store = UserStore(located)
    record = store.read().require(name)
    store.remove(name)
    audit_records.record(located, "user.removed", {"name": name})
    _tell(record, "removed", as_json=as_json)


@app.command()
def lock(name: Annotated[str, typer.Argument()], home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """Lock out a principal within a second, whatever the credential, including users of an identity provider."""
    located = gateway_home(home)
    Revocations.of(located).revoke(("user", name))
    audit_records.record(located, "user.locked", {"name": name})
    typer.echo(json.dumps({"locked": name}) if as_json else f"locked out {name}")


@app.command()
def unlock(
    name: Annotated[str, typer.Argument()], home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False
) -> None:
    """Lift a lock-out."""
    located = gateway_home(home)
    Revocations.of(located).restore(("user", name))
    audit_records.record(located, "user.unlocked", {"name": name})
    typer.echo(json.dumps({"unlocked": name}) if as_json else f"unlocked {name}")


def _password(*, stdin: bool) -> str:
    if stdin:
        return sys.stdin.readline(MAX_PASSWORD_BYTES + 2).rstrip("\n")
    if not sys.stdin.isatty():
        raise UsageError(
            "there is no terminal to read the password from", "use --password-stdin to read it from a pipe"
        )
    return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True))


def _tell(record: UserRecord, done: str, *, as_json: bool) -> None:
    typer.echo(json.dumps(_document(record)) if as_json else f"{done} user {record.name}")


def _document(record: UserRecord) -> dict[str, object]:
    return {
        "name": record.name,
        "roles": record.roles,
        "groups": record.groups,
        "created_at": utc_text(record.created_at),
        "changed_at": utc_text(record.changed_at),
    }
