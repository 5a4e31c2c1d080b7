"""``sluice pki token | enrol | ledger``: the online authority, from the outside (``renew`` is elsewhere)."""

from __future__ import annotations

import datetime as dt
import json
import re
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from sluice.cli import audit_records
from sluice.cli.errors import UsageError
from sluice.cli.options import DEFAULT_HOME, ConfigOption, HomeOption, JsonOption, load_configuration
from sluice.cli.pki.arguments import address_argument, algorithm_argument, arguments, names_argument
from sluice.core import Home, read_secret, utc_now, write_secret
from sluice.pki import NAMED_ROLES, Role, SpiffeId
from sluice.pki.authorities import AuthorityStore
from sluice.pki.ca import TokenStore
from sluice.pki.identities import MAX_TOKEN_BYTES, mint
from sluice.pki.ledger import IssuanceNotes, ledger_path, parse_state, read_ledger, verify_ledger
from sluice.pki.x509 import DEFAULT_ALGORITHM, AuthorityKind

token_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Join tokens: how a new machine gets its first certificate."
)
ledger_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="The ledger of every certificate that the online CA issued."
)

_TTL = re.compile(r"([1-9][0-9]{0,4})([smh])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours"}

RoleArgument = Annotated[str, typer.Argument(metavar="ROLE", help="Such as taskmanager.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the process, such as tm-7.")]
DnsOption = Annotated[list[str] | None, typer.Option(help="Host name by which a listener is reached; repeatable.")]
IpOption = Annotated[list[str] | None, typer.Option(help="IP address by which a listener is reached; repeatable.")]


def mount(app: typer.Typer) -> None:
    """Add these verbs to ``sluice pki``."""
    app.add_typer(token_app, name="token")
    app.add_typer(ledger_app, name="ledger")
    app.command(epilog="Example: sluice pki enrol taskmanager tm-7 --ca ca.example.org:8445 --token-file t --out tm-7")(
        enrol
    )


@token_app.callback()
def _token_group() -> None:
    """Keep `token create` a verb of its own even while it is the only one."""


@token_app.command(epilog="Example: sluice pki token create taskmanager tm-7 --dns worker7.example.org --output t")
def create(
    role: RoleArgument,
    name: NameArgument,
    dns: DnsOption = None,
    ip: IpOption = None,
    edge_server: Annotated[
        bool,
        typer.Option("--edge-server", help="For a gateway's public certificate, with just the names given."),
    ] = False,
    ttl: Annotated[str, typer.Option(help="Validity, such as 15m; at most 24h.")] = "15m",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write it to this new file (mode 0600), not to the screen.")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a join token and print it once. It is valid for one enrolment with this role and name."""
    located, configuration = load_configuration(home, config)
    if output is not None and (output.exists() or not output.parent.is_dir()):
        raise UsageError(f"{output} exists, or its directory does not", "choose another --output")
    authority = AuthorityStore(located.pki).certificate(AuthorityKind.INTERNAL)
    now = utc_now()
    with arguments():
        record, token = mint(
            SpiffeId.process(configuration.pki.trust_domain, _role(role), name),
            authority,
            dns=dns or (),
            ips=ip or (),
            edge_server=edge_server,
            ttl=_ttl(ttl),
            now=now,
        )
    TokenStore(located.pki).add(record, now=now)
    audit_records.record(located, "join-token.created", {"id": record.id, "identity": record.identity})
    if output is not None:
        write_secret(output, token.encode() + b"\n")
    until = dt.datetime.fromtimestamp(record.expires_at, dt.UTC)
    if as_json:
        document = {"id": record.id, "identity": record.identity, "expires_at": until.isoformat()}
        typer.echo(json.dumps(document | ({"token": token} if output is None else {"file": str(output)})))
        return
    note = f"join token {record.id} for {record.identity}, good once, until {until:%Y-%m-%d %H:%M:%S} UTC"
    if output is None:
        # The token alone on standard output, so that it can be piped to where it is needed.
        typer.echo(note + "; it is not shown again:", err=True)
        typer.echo(token)
    else:
        typer.echo(f"{note}, written to {output}")


def enrol(
    role: RoleArgument,
    name: NameArgument,
    ca: Annotated[str, typer.Option(help="HOST:PORT of the CA's enrolment port.")],
    out: Annotated[Path, typer.Option(help="Directory to write the identity to.")],
    token_file: Annotated[Path, typer.Option(help="File (mode 0600) with the join token; - reads standard input.")],
    dns: DnsOption = None,
    ip: IpOption = None,
    edge_server: Annotated[
        bool, typer.Option("--edge-server", help="The token is for a gateway's public certificate.")
    ] = False,
    algorithm: Annotated[str, typer.Option(help="Algorithm of the new key.")] = DEFAULT_ALGORITHM,
    as_json: JsonOption = False,
) -> None:
    """Create a key here and get a certificate for it with a join token. The token's fingerprint verifies the CA."""
    from sluice.pki.enrolment import client

    with arguments():
        wanted = SpiffeId.process("to-be-learned", _role(role), name)
    names = names_argument(wanted, dns, ip)
    spiffe_id = client.enrol(
        out,
        address_argument(ca),
        _read_token(token_file),
        wanted.role,
        wanted.name,
        dns=names.dns,
        ips=names.ips,
        algorithm=algorithm_argument(algorithm),
        edge_server=edge_server,
    )
    if as_json:
        typer.echo(json.dumps({"identity": str(spiffe_id), "directory": str(out)}))
    else:
        typer.echo(f"enrolled as {spiffe_id}, identity in {out}")


@ledger_app.command("show")
def ledger_show(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """Show what was issued, to whom, and on whose request, after checking each line."""
    for record in read_ledger(ledger_path(Home.at(home).pki)):
        if as_json:
            typer.echo(msgspec.json.encode(record))
        elif record.event == "issued":
            typer.echo(
                f"{record.sequence:>6}  {record.time}  {record.kind:<9}  {record.identity}  by {record.requester}"
            )
        elif record.event == "refused":
            typer.echo(
                f"{record.sequence:>6}  {record.time}  REFUSED    {record.identity}  showed the superseded certificate "
                f"{record.serial} for {record.kind or 'a revocation'}"
            )
        elif record.event == "restored":
            typer.echo(
                f"{record.sequence:>6}  {record.time}  RESTORED   from {record.requester}: older ones renew nothing"
            )
        else:
            typer.echo(f"{record.sequence:>6}  {record.time}  recovered: {record.dropped_bytes} torn bytes dropped")


@ledger_app.command("verify")
def ledger_verify(
    known: Annotated[
        str | None, typer.Option(help="COUNT:DIGEST of an earlier run, which must still be in the ledger.")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Verify the whole chain; exit code 1 if it is broken, or does not continue the state given by --known."""
    with arguments():
        earlier = None if known is None else parse_state(known)
    pki = Home.at(home).pki
    state = verify_ledger(ledger_path(pki), known=earlier)
    waiting = IssuanceNotes(pki).waiting()
    if as_json:
        document = {"records": state.count, "digest": state.digest, "state": str(state), "waiting": waiting}
        typer.echo(json.dumps(document))
        return
    typer.echo(f"{state.count} records, the chain is whole; its state to compare with later: {state}")
    if waiting:
        typer.echo(f"{waiting} notes of offline certificates are not in the ledger yet: the CA adds them when it runs")


def _role(text: str) -> Role:
    if text not in NAMED_ROLES:
        raise UsageError(f"{text[:80]!r} is not a role", f"one of {', '.join(sorted(NAMED_ROLES))}")
    return Role(text)


def _ttl(text: str) -> dt.timedelta:
    match = _TTL.fullmatch(text)
    if match is None:
        raise UsageError(f"--ttl {text[:80]!r} is not a lifetime", "a number and a unit: 90s, 15m, 2h")
    return dt.timedelta(**{_UNITS[match[2]]: int(match[1])})


def _read_token(file: Path) -> str:
    if str(file) == "-":
        return sys.stdin.read(MAX_TOKEN_BYTES + 2).strip()
    return read_secret(file, MAX_TOKEN_BYTES + 2).decode("ascii", "replace").strip()
