"""``sluice pki issue`` and ``unpack``: one identity, or a whole cluster's from one inventory."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from cryptography import x509

from sluice.cli import audit_records
from sluice.cli.config import Configuration
from sluice.cli.errors import EXIT_NO, UsageError
from sluice.cli.options import DEFAULT_HOME, ConfigOption, HomeOption, JsonOption, load_configuration
from sluice.cli.pki.arguments import (
    arguments,
    directory_argument,
    identity_argument,
    lifetime_argument,
    names_argument,
    print_json,
)
from sluice.cli.progress import with_bar
from sluice.core import CertificateRejected, Home, make_private_directory, read_bounded, utc_now, write_public
from sluice.pki.authorities import AuthorityStore, TrustStore, to_pem
from sluice.pki.identities import IdentityMaterial, IdentityStore, check_peers, read_certificates, write_identity
from sluice.pki.issuing import (
    MAX_INVENTORY_BYTES,
    Action,
    DatabaseDestination,
    DirectoryDestination,
    IssueResult,
    IssuingEngine,
    LeafRequest,
    check_all,
    issue_all,
    parse_inventory,
)
from sluice.pki.revocation import ExportedCertificates, RevocationStore, install_crls
from sluice.pki.x509 import ISSUING, MAX_CSR_BYTES, AuthorityKind, edge_server_profile, workload_profile

app = typer.Typer(rich_markup_mode=None)

MAX_TOLD = 100
"""Most identities of an inventory that are listed; beyond it, only counts and reasons."""
MAX_REASONS = 20


@app.command(
    epilog="Examples: sluice pki issue taskmanager/tm-7 --dns worker7.example.org; sluice pki issue user/ada "
    "--lifetime 30d --out ada; sluice pki issue gateway/edge --edge-server --dns cluster.example.org --out edge; "
    "sluice pki issue --inventory cluster.toml --store cluster.identities"
)
def issue(
    identity: Annotated[
        str | None, typer.Argument(help="ROLE/NAME, job/JOB-ID/driver, or a whole spiffe:// ID.")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    dns: Annotated[list[str] | None, typer.Option(help="Host name by which a listener is reached; repeatable.")] = None,
    ip: Annotated[list[str] | None, typer.Option(help="IP address by which a listener is reached; repeatable.")] = None,
    lifetime: Annotated[str | None, typer.Option(help="Such as 12h, 90m, 30d; default: by role.")] = None,
    accept: Annotated[
        list[str] | None, typer.Option(help="SPIFFE pattern of peers that a JVM accepts; repeatable.")
    ] = None,
    edge_server: Annotated[
        bool,
        typer.Option(
            "--edge-server",
            help="A public certificate, signed by the edge authority: the gateway's, or that of a service outside "
            "of the cluster (gateway/NAME). It may have wildcards.",
        ),
    ] = False,
    csr: Annotated[
        Path | None,
        typer.Option(
            help="Sign this request (PEM) instead of creating a key here; it must ask for exactly these names."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Directory to write; default: its place below the home.")] = None,
    inventory: Annotated[
        Path | None,
        typer.Option(help="Issue everything that this TOML file lists (see docs/howto/issue-certificates.md)."),
    ] = None,
    store: Annotated[
        Path | None, typer.Option(help="With --inventory: one file for all identities, instead of a directory each.")
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Also reissue certificates that are still good, and revoked identities that an inventory lists.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Issue a certificate for an identity and write its directory: key, chain, trust anchors, and a keystore for JVMs.

    What is there and still good is left as it is: whole, of today's authority, with the same names and purposes, and
    with more than half of its life left. --force issues it anyway.
    With --csr the key stays where it was made: only chain.pem, ca.pem and crl.pem are written. An identity that was
    revoked is admitted again by naming it here, with its new certificate only. An inventory admits none again, unless
    with --force: it is listed as refused, the others are issued, and the exit code is 1.
    """
    located, configuration = load_configuration(home, config)
    if inventory is not None:
        single = (identity, dns, ip, lifetime, accept, csr, out, edge_server or None)
        if any(option is not None for option in single):
            raise UsageError("--inventory names the identities itself", "leave out the identity and its options")
        _issue_inventory(located, configuration, inventory, store, force=force, as_json=as_json)
        return
    if identity is None or store is not None:
        raise UsageError("no identity is given", "name one, or a file with --inventory (which --store needs)")
    spiffe_id = identity_argument(identity, configuration.pki.trust_domain)
    if edge_server and (csr is not None or accept):
        raise UsageError("--edge-server cannot be used with --csr or --accept")
    directory = directory_argument(located, spiffe_id, out)
    duration = None if lifetime is None else lifetime_argument(lifetime)
    names = names_argument(spiffe_id, dns, ip)
    with arguments():
        check_peers(accept or ())
        profile = (edge_server_profile if edge_server else workload_profile)(spiffe_id.role, configuration.pki)
        names.check_wildcards(profile.purposes)
    if edge_server and not names.dns and not names.ips:
        raise UsageError("a public certificate without a host name", "give the names and addresses that clients use")
    if csr is not None:
        engine = IssuingEngine(located.pki, configuration.pki)
        reinstated = engine.revocations.barred(profile.authority, spiffe_id) is not None
        request = _read_request(csr, LeafRequest(names, profile, duration))
        with _directory_for(directory):
            signed = engine.issue(request, reinstate=True)
            write_public(directory / "ca.pem", signed.ca_pem.encode())
            write_public(directory / "chain.pem", signed.chain_pem.encode())
        if signed.crl_pem:
            install_crls(directory, signed.crl_pem.encode(), utc_now())
        outcome = IssueResult(spiffe_id, Action.ISSUED, "by request", reinstated)
    else:
        request = LeafRequest(names, profile, duration, tuple(accept or ()))
        engine = IssuingEngine(located.pki, configuration.pki, read_once=True)
        destination = DirectoryDestination(engine, located, directory)
        check_all((request,), destination, engine)
        (outcome,) = issue_all((request,), destination, engine, force=force, reinstate=True)
    if outcome.action is not Action.KEPT:
        leaf = read_certificates(directory / "chain.pem")[0]
        ExportedCertificates(located.pki).remember(leaf, str(spiffe_id), profile.authority, directory, utc_now())
        serial = f"{leaf.serial_number:x}"
        audit_records.record(
            located,
            "certificate.issued",
            {"identity": spiffe_id, "serial": serial, "reinstated": outcome.reinstated or "", "why": outcome.reason},
        )
    _tell_one(outcome, directory, as_json=as_json)


@app.command(epilog="Example: sluice pki unpack cluster.identities taskmanager/tm-7 --out tm-7")
def unpack(
    store: Annotated[Path, typer.Argument(help="A file written by `issue --inventory FILE --store`.")],
    identity: Annotated[
        str | None, typer.Argument(help="ROLE/NAME or a whole spiffe:// ID; none: list what is in the store.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Directory to write.")] = None,
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the directory of one identity from a store; without an identity, list its content."""
    with IdentityStore(store) as opened:
        if identity is None:
            names = [str(spiffe_id) for spiffe_id in opened.identities()]
            if as_json:
                print_json({"identities": names})
            else:
                typer.echo("".join(f"{name}\n" for name in names), nl=False)
            return
        if out is None:
            raise UsageError("no directory is given", "say where to write it with --out")
        located, configuration = load_configuration(home, config)
        spiffe_id = identity_argument(identity, configuration.pki.trust_domain)
        found = opened.get(spiffe_id)
        if found is None:
            raise CertificateRejected(f"{spiffe_id} is not in {store}", f"see `sluice pki unpack {store}`")
    material, accept = found
    revocations = RevocationStore(located.pki, configuration.pki, clock=utc_now)
    kind, anchors = _trusted_by(located, material)
    revocations.of(kind, anchors)  # refuse an unusable one before anything is written
    ca_pem = to_pem(*anchors) if anchors else material.ca_pem
    write_identity(out, key_pem=material.key_pem, chain_pem=material.chain_pem, ca_pem=ca_pem, accept=accept)
    if anchors:
        ExportedCertificates(located.pki).remember(material.leaf, str(spiffe_id), kind, out, utc_now())
    if lists := revocations.of(kind, anchors):
        install_crls(out, b"".join(each.pem for each in lists), utc_now())
    if as_json:
        print_json({"identity": str(spiffe_id), "directory": str(out)})
    else:
        typer.echo(f"wrote {spiffe_id} into {out}")


def _read_request(file: Path, wanted: LeafRequest) -> LeafRequest:
    """The request ``wanted`` for the key of the CSR in ``file``; errors name the file."""
    try:
        return wanted.for_csr(read_bounded(file, MAX_CSR_BYTES))
    except CertificateRejected as error:
        raise CertificateRejected(f"{file}: {error.what}", error.remedy) from error


@contextlib.contextmanager
def _directory_for(directory: Path) -> Iterator[None]:
    """Make ``directory`` before signing, so that the result has a place; removed if nothing was signed."""
    existed = directory.exists()
    make_private_directory(directory)
    try:
        yield
    except BaseException:
        if not existed:
            with contextlib.suppress(OSError):
                directory.rmdir()
        raise


def _trusted_by(home: Home, material: IdentityMaterial) -> tuple[AuthorityKind, tuple[x509.Certificate, ...]]:
    """The side of this home that ``material`` belongs to, with its current trust; None for another home."""
    authorities, trust = AuthorityStore(home.pki), TrustStore(home.pki)
    for kind in ISSUING:
        if authorities.exists(kind) and set(anchors := trust.anchors(kind)) & set(material.anchors):
            return kind, anchors
    return AuthorityKind.INTERNAL, ()


def _tell_one(outcome: IssueResult, directory: Path, *, as_json: bool) -> None:
    leaf = read_certificates(directory / "chain.pem")[0]
    if as_json:
        print_json(
            {
                "identity": str(outcome.spiffe_id),
                "action": outcome.action,
                "reason": outcome.reason,
                "reinstated": outcome.reinstated,
                "directory": str(directory),
                "serial": f"{leaf.serial_number:x}",
                "not_after": leaf.not_valid_after_utc,
            }
        )
        return
    until = f"valid until {leaf.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    match outcome.action:
        case Action.KEPT:
            typer.echo(f"kept {outcome.spiffe_id} in {directory}: still good, {until}, {outcome.reason}")
        case Action.RENEWED:
            typer.echo(f"renewed {outcome.spiffe_id} in {directory} because {outcome.reason}; {until}")
        case Action.ISSUED:
            typer.echo(f"issued {outcome.spiffe_id} into {directory}, {until}")
    if outcome.reinstated:
        typer.echo(f"{outcome.spiffe_id} had been revoked and is admitted again, with this certificate only")


def _issue_inventory(
    home: Home, configuration: Configuration, file: Path, store: Path | None, *, force: bool, as_json: bool
) -> None:
    content = read_bounded(file, MAX_INVENTORY_BYTES)
    with arguments():
        inventory = parse_inventory(content, configuration.pki)
    engine = IssuingEngine(home.pki, configuration.pki, read_once=True)
    counts: Counter[Action] = Counter()
    reasons: Counter[tuple[Action, str]] = Counter()
    told: list[IssueResult] = []
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(IdentityStore(store, create=True)) if store is not None else None
        destination = DirectoryDestination(engine, home) if opened is None else DatabaseDestination(opened)
        check_all(inventory.samples(), destination, engine)
        issuing = issue_all(inventory, destination, engine, force=force, reinstate=force)
        for outcome in with_bar("issuing", issuing, len(inventory)):
            counts[outcome.action] += 1
            was_revoked = outcome.reinstated or outcome.action is Action.REFUSED
            if was_revoked or len(inventory) <= MAX_TOLD:
                told.append(outcome)
            if was_revoked:
                continue  # each is listed
            if len(reasons) < MAX_REASONS or (outcome.action, outcome.reason) in reasons:
                reasons[outcome.action, outcome.reason] += 1
        if opened is not None and (counts[Action.ISSUED] or counts[Action.RENEWED]):
            opened.commit()
        if store is not None:
            ExportedCertificates(home.pki).remember_store(store)
    if counts[Action.ISSUED] or counts[Action.RENEWED]:
        audit_records.record(
            home, "certificate.issued", {"inventory": file.name, **{str(action): counts[action] for action in Action}}
        )
    if as_json:
        print_json(
            {
                "place": str(store or home.pki / "identities"),
                **{str(action): counts[action] for action in Action},
                "reasons": [
                    {"action": action, "reason": reason, "count": count}
                    for (action, reason), count in reasons.most_common()
                ],
                "identities": [
                    {
                        "identity": str(one.spiffe_id),
                        "action": one.action,
                        "reason": one.reason,
                        "reinstated": one.reinstated,
                    }
                    for one in told
                ],
            }
        )
    else:
        _tell_inventory(told, counts, reasons, str(store or home.pki / "identities"), every=len(inventory) <= MAX_TOLD)
    if counts[Action.REFUSED]:
        raise typer.Exit(EXIT_NO)


def _tell_inventory(
    told: list[IssueResult], counts: Counter[Action], reasons: Counter[tuple[Action, str]], place: str, *, every: bool
) -> None:
    for one in told:
        typer.echo(f"{one.action:<7} {one.spiffe_id}: {one.reason}")
    if not every:
        for (action, reason), count in reasons.most_common():
            typer.echo(f"{action:<7} {count}: {reason}")
    typer.echo(", ".join(f"{counts[action]} {action}" for action in Action) + f", in {place}")
    if counts[Action.REFUSED]:
        typer.echo("what was refused comes back by `sluice pki issue IDENTITY`, or all of it with --force")
