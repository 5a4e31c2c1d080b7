"""``sluice pki acme``: accounts of the ACME server, and the names that they may certify."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli import audit_records
from sluice.cli.errors import UsageError
from sluice.cli.options import DEFAULT_HOME, ConfigOption, HomeOption, JsonOption, load_configuration
from sluice.cli.pki.arguments import arguments, print_json
from sluice.core import Home, StoreError, url_host, utc_now, write_secret
from sluice.pki import CaUnavailable
from sluice.pki.acme import (
    DIRECTORY_PATH,
    Account,
    AcmeStore,
    ExternalKey,
    Status,
    acme_path,
    make_external_key,
    revoke_external,
)
from sluice.pki.ca import read_ca
from sluice.pki.issuing import parse_duration

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="The ACME server of the online authority (section [ca.acme]): certbot and others get certificates from it.",
)
account_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Accounts of ACME clients, and the names that they may ask for."
)
app.add_typer(account_app, name="account")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="A name for the account, such as web-1.")]


@account_app.command(
    epilog="Example: sluice pki acme account create web-1 --names www.internal.example --output web-1.ini"
)
def create(
    name: NameArgument,
    names: Annotated[
        list[str], typer.Option("--names", help="What it may ask for: a host name, *.domain, a network; repeatable.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="New file (mode 0600) for the key, as certbot --config reads it.")
    ],
    ttl: Annotated[str, typer.Option(help="How long an account can be made with it: 1m to 30d.")] = "1d",
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key id and an HMAC key with which a client makes one account (external account binding).

    The file is the only place where the HMAC key is shown. A name that is used again replaces a key that was not used,
    was revoked, or has expired.
    """
    located, configuration = load_configuration(home, config)
    if output.exists() or not output.parent.is_dir():
        raise UsageError(f"{output} exists, or its directory does not", "choose another --output")
    now = utc_now()
    with arguments():
        key = make_external_key(name, _split(names), ttl=parse_duration(ttl), now=now.timestamp())
    with _store(located) as store, store.change():
        before = store.external_named(name)
        if before is not None:
            if before.account and not before.revoked:
                raise StoreError(
                    f"there is an account {name} already", f"end it first: sluice pki acme account revoke {name}"
                )
            store.drop_external(before.id)
        store.put_external(key)
    audit_records.record(located, "acme-account.created", {"id": key.id, "name": name, "names": " ".join(key.names)})
    acme = configuration.ca.acme
    lines = ["# An account of the ACME server, to be used once. Keep it secret until then.", f"eab-kid = {key.id}"]
    lines.append(f"eab-hmac-key = {key.secret}")
    if acme is not None and (server := _directory(located, acme.url)):
        lines.append(f"server = {server}")
    write_secret(output, ("\n".join(lines) + "\n").encode())
    until = dt.datetime.fromtimestamp(key.expires, dt.UTC)
    if as_json:
        print_json({"name": name, "id": key.id, "names": key.names, "expires": until.isoformat(), "file": str(output)})
        return
    typer.echo(f"key {key.id} of account {name}, good once, until {until:%Y-%m-%d %H:%M} UTC, written to {output}")
    if acme is None:
        typer.echo("there is no ACME server yet: configure section [ca.acme]", err=True)


@account_app.command("list")
def list_accounts(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """Show accounts: what they may ask for, and how many certificates of theirs have not expired."""
    with _store(Home.at(home)) as store:
        rows = [_of_key(store, key) for key in store.externals()]
        rows += [_of_account(store, each) for each in store.accounts() if not each.external]
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    for row in rows:
        names = ", ".join(row.names)
        typer.echo(f"{row.name or row.account:<24}  {row.status:<11}  {row.certificates:>5} certificates  {names}")
    if not rows:
        typer.echo("no accounts: make one with `sluice pki acme account create`")


@account_app.command(epilog="Example: sluice pki acme account revoke web-1")
def revoke(
    name: NameArgument,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """End an account, at once: it gets no certificate any more. Says which certificates it still has."""
    located = Home.at(home)
    with _store(located) as store:
        ended = revoke_external(store, name)
        if ended is None:
            raise StoreError(f"there is no account {name[:80]!r}", "sluice pki acme account list")
        _, account = ended
        left = [] if account is None else [each.serial for each in store.certificates_of(account.id)]
    audit_records.record(located, "acme-account.revoked", {"name": name, "account": account.id if account else ""})
    if as_json:
        print_json({"name": name, "account": account.id if account else "", "certificates": left})
        return
    typer.echo(f"account {name} is revoked")
    for serial in left:
        typer.echo(
            f"it has the certificate {serial}: sluice pki revoke {serial} --authority edge --reason privilege-withdrawn"
        )


@contextlib.contextmanager
def _store(home: Home) -> Iterator[AcmeStore]:
    if not home.pki.exists():
        raise StoreError(f"there are no authorities in {home.root}", "run `sluice pki init`")
    store = AcmeStore(acme_path(home.pki))
    try:
        yield store
    finally:
        store.close()


@dataclass(frozen=True, slots=True)
class _Row:
    """One account, or an unused account key."""

    name: str
    id: str
    account: str
    status: str
    names: tuple[str, ...]
    certificates: int


def _of_key(store: AcmeStore, key: ExternalKey) -> _Row:
    account = store.account(key.account) if key.account else None
    status = str(account.status) if account else "unused"
    if account is None and utc_now().timestamp() >= key.expires:
        status = "expired"
    if key.revoked:
        status = str(Status.REVOKED)
    certificates = len(store.certificates_of(key.account)) if key.account else 0
    return _Row(key.name, key.id, key.account, status, key.names, certificates)


def _of_account(store: AcmeStore, account: Account) -> _Row:
    certificates = len(store.certificates_of(account.id))
    return _Row("", "", account.id, str(account.status), (), certificates)


def _split(names: list[str]) -> list[str]:
    return [each for text in names for each in text.split(",") if each]


def _directory(home: Home, url: str) -> str:
    if url:
        return url + DIRECTORY_PATH
    try:
        address = read_ca(home).acme
    except CaUnavailable:
        return ""
    return "" if address is None else f"https://{url_host(address[0])}:{address[1]}{DIRECTORY_PATH}"
