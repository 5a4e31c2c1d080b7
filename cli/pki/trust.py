"""``sluice pki trust``: installs this home's authority in the machine's trust stores, and removes it."""

from __future__ import annotations

from typing import Annotated

import typer
from cryptography import x509

from sluice.cli import audit_records
from sluice.cli.errors import RefusedError, UsageError
from sluice.cli.options import DEFAULT_HOME, HomeOption, JsonOption
from sluice.cli.pki.arguments import print_json
from sluice.core import Home
from sluice.pki.authorities import AuthorityStore, TrustStore
from sluice.pki.trust import (
    Step,
    StoreKind,
    TrustPlace,
    find_places,
    installed,
    name_of,
    plan_install,
    plan_removal,
    this_machine,
)
from sluice.pki.x509 import AuthorityKind, constraints_of

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Make browsers, curl and Java on this machine trust the gateway's certificates.\n\n"
    "Nothing here happens by itself. What is added is the edge authority's certificate (or the root's); what is "
    "removed is only what bears this command's name.",
)

StoreOption = Annotated[
    list[StoreKind] | None, typer.Option("--store", help="Only these stores; repeatable. Default: all that are found.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print what would change, and change nothing.")]


@app.command(
    epilog="Examples: sudo sluice pki trust install --home .sluice --dry-run; sluice pki trust install --store nss"
)
def install(
    authority: Annotated[
        AuthorityKind,
        typer.Option(
            help="edge; or root, for programs that take self-signed anchors only (then the internal authority's "
            "certificates are trusted as well)."
        ),
    ] = AuthorityKind.EDGE,
    store: StoreOption = None,
    dry_run: DryRunOption = False,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Add this home's authority to the trust stores of this machine; changes nothing that is there already.

    The system's store and Java's need root, the NSS databases of browsers do not. While two generations are trusted,
    both are added: after a rotation run it again, and `uninstall --old`.
    Whoever has the authority's key can then pass for any server, as far as `pki.edge_names` of the configuration did
    not confine the authority when it was made. Exit code 1: no store was found, or a tool failed.
    """
    if authority is AuthorityKind.INTERNAL:
        raise UsageError("the internal authority is for processes of the cluster alone", "use edge or root")
    located = Home.at(home)
    wanted = _authorities(located, authority)
    places = _places(store)
    steps = plan_install(places, wanted, this_machine())
    warning = _unconfined(authority, wanted)
    if warning and not as_json:
        typer.echo(f"warning: {warning}", err=True)
    _carry_out(steps, dry_run=dry_run, as_json=as_json, places=places, names=list(wanted), warning=warning)
    if steps and not dry_run:
        audit_records.record(
            located, "trust.installed", {"authorities": " ".join(wanted), "stores": " ".join(map(str, places))}
        )


@app.command(epilog="Examples: sudo sluice pki trust uninstall; sudo sluice pki trust uninstall --old --dry-run")
def uninstall(
    store: StoreOption = None,
    old: Annotated[
        bool,
        typer.Option("--old", help="Only remove authorities that are not the present ones of this home, of any home."),
    ] = False,
    dry_run: DryRunOption = False,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Remove this home's authorities from the trust stores of this machine; exit code 0 also when there are none."""
    located = Home.at(home)
    present = _present(located)
    if not present and not old:
        raise UsageError(f"there is no authority in {located.root}", "name a home with --home, or use --old")
    places = _places(store)
    steps = plan_removal(places, lambda name: (name not in present) if old else (name in present), this_machine())
    _carry_out(steps, dry_run=dry_run, as_json=as_json, places=places, names=[], warning="")
    if steps and not dry_run and located.root.is_dir():
        audit_records.record(located, "trust.uninstalled", {"stores": " ".join(map(str, places)), "old": old})


@app.command(epilog="Example: sluice pki trust show")
def show(store: StoreOption = None, home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """Show the trust stores of this machine, and which of our authorities are in them. Changes nothing."""
    present = _present(Home.at(home))
    found = [(place, installed(place, this_machine())) for place in _places(store)]
    if as_json:
        stores = [
            {
                "store": place.kind,
                "where": str(place.where),
                "authorities": [{"name": name, "of_this_home": name in present} for name in names],
            }
            for place, names in found
        ]
        print_json({"stores": stores, "authorities": present})
        return
    for place, names in found:
        typer.echo(f"{place}: {'nothing of ours' if not names else ''}".rstrip())
        for name in names:
            typer.echo(
                f"  {name}  {'of this home' if name in present else 'of another home, or an earlier generation'}"
            )


def _authorities(home: Home, kind: AuthorityKind) -> dict[str, x509.Certificate]:
    if kind is AuthorityKind.ROOT:
        anchors: tuple[x509.Certificate, ...] = (AuthorityStore(home.pki).certificate(kind),)
    else:
        anchors = TrustStore(home.pki).anchors(kind)
    return {name_of(kind, anchor): anchor for anchor in anchors}


def _present(home: Home) -> list[str]:
    """The names of this home's edge authority and root in trust stores."""
    store = AuthorityStore(home.pki)
    kinds = [kind for kind in (AuthorityKind.EDGE, AuthorityKind.ROOT) if store.exists(kind)]
    return [name for kind in kinds for name in _authorities(home, kind)]


def _places(kinds: list[StoreKind] | None) -> list[TrustPlace]:
    found = find_places(this_machine())
    places = [place for place in found if not kinds or place.kind in kinds]
    if not places:
        raise RefusedError(
            "no trust store was found here" + (f" of kind {', '.join(kinds)}" if kinds else ""),
            "the system's needs ca-certificates, NSS certutil (libnss3-tools), Java keytool",
        )
    return places


def _unconfined(kind: AuthorityKind, authorities: dict[str, x509.Certificate]) -> str:
    if all(_is_confined(each) for each in authorities.values()):
        return ""
    return (
        f"nothing confines which host names the {kind} authority may certify: whoever gets its key can pass for any "
        "server on this machine (pki.edge_names, set before the authority is made, confines it)"
    )


def _is_confined(authority: x509.Certificate) -> bool:
    """Whether its constraints limit host names (RFC 5280, 4.2.1.10)."""
    constraints = constraints_of(authority)
    permitted = () if constraints is None else constraints.permitted_subtrees or ()
    return any(isinstance(base, x509.DNSName) for base in permitted)


def _carry_out(
    steps: list[Step], *, dry_run: bool, as_json: bool, places: list[TrustPlace], names: list[str], warning: str
) -> None:
    done: list[str] = []
    try:
        for step in steps:
            if not dry_run:
                step.act()
            done.append(step.says)
            if not as_json:
                typer.echo(f"would {step.says}" if dry_run else f"done: {step.says}")
    finally:
        if as_json:
            print_json(
                {
                    "dry_run": dry_run,
                    "stores": [str(place) for place in places],
                    "authorities": names,
                    "steps": done,
                    "not_done": [step.says for step in steps[len(done) :]],
                    "warning": warning,
                }
            )
        elif len(done) < len(steps):
            for step in steps[len(done) :]:
                typer.echo(f"not done: {step.says}", err=True)
    if not steps and not as_json:
        typer.echo("nothing to do: " + ", ".join(str(place) for place in places))
