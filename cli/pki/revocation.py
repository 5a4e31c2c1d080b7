"""``sluice pki revoke`` and ``sluice pki crl``: revoking certificates, and the CRLs."""

from __future__ import annotations

import contextlib
import enum
import getpass
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from sluice.cli import audit_records
from sluice.cli.errors import EXIT_NO, RefusedError, UsageError
from sluice.cli.options import DEFAULT_HOME, ConfigOption, HomeOption, JsonOption, load_configuration
from sluice.cli.pki.edge_revocation import end_at_the_gateway
from sluice.core import CrlRejected, Home, InvalidIdentity, PkiError, utc_now, write_public
from sluice.pki import LedgerError, PkiConfig, SpiffeId
from sluice.pki.authorities import AuthorityStore, TrustStore
from sluice.pki.ca import Found, in_directory, in_home
from sluice.pki.ledger import ledger_path, ledger_turn
from sluice.pki.revocation import Reason, Revocation, RevocationList, RevocationStore, RevocationTarget, push_crls
from sluice.pki.x509 import ISSUING, AuthorityKind, read_passphrase

crl = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Certificate revocation lists: one per authority, written to every identity directory of the home.",
)

_SERIAL = re.compile(r"(0x)?[0-9a-fA-F]{1,40}")

AuthorityOption = Annotated[
    AuthorityKind | None, typer.Option(help="Who signed it; needed for a serial number that is not known here.")
]

RootPassphraseOption = Annotated[
    Path | None,
    typer.Option(help="File with the passphrase of the root's key (mode 0600), to sign the root's list; -: ask."),
]


def mount(app: typer.Typer) -> None:
    """Add the verbs to ``sluice pki``."""
    app.command(
        epilog="Examples: sluice pki revoke taskmanager/tm-7 --reason key-compromise; "
        "sluice pki revoke 5a3f…9c --authority edge --reason superseded"
    )(revoke)
    app.add_typer(crl, name="crl")


def revoke(
    target: Annotated[
        str, typer.Argument(help="Serial number (hex), identity directory, ROLE/NAME, or a whole spiffe:// ID.")
    ],
    reason: Annotated[Reason, typer.Option(help="Why; `superseded` lets the identity be certified again by itself.")],
    authority: AuthorityOption = None,
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    root_passphrase_file: RootPassphraseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Revoke certificates: every process of the home refuses them, and ends their open connections, within seconds.

    The identity gets no new certificate by itself any more (except with --reason superseded); `sluice pki issue`
    admits it again. Revoking twice changes nothing. Exit code 1: nothing like that was issued here.
    """
    located, configuration = load_configuration(home, config)
    store = RevocationStore(located.pki, configuration.pki, clock=utc_now)
    with _while_nobody_issues(located.pki) as alone:
        found = _resolve(located, configuration.pki, target, authority)
        if reason is Reason.CA_COMPROMISE and set(found) != {AuthorityKind.ROOT}:
            raise UsageError(
                "ca-compromise is a reason to revoke an authority, and this is not one",
                "for its key use key-compromise",
            )

        def revoke_found() -> dict[AuthorityKind, tuple[Revocation, ...]]:
            return {
                kind: store.revoke(kind, targets, reason, passphrase=_passphrase(kind, root_passphrase_file))
                for kind, targets in found.items()
            }

        added = revoke_found()
        if not alone:
            # This finds certificates recorded until now; an authority does not deliver those recorded later.
            found = _resolve(located, configuration.pki, target, authority)
            for kind, entries in revoke_found().items():
                added[kind] = (*added.get(kind, ()), *entries)
    pushed, failed = push_crls(located, store.lists(), utc_now())
    end_at_the_gateway(located, found.get(AuthorityKind.EDGE, ()), Path(target) if Path(target).is_dir() else None)
    serials = [f"{each.serial:x}" for targets in found.values() for each in targets]
    new = [entry.serial for entries in added.values() for entry in entries]
    named = sorted({str(each.identity) for targets in found.values() for each in targets if each.identity})
    audit_records.record(
        located,
        "certificate.revoked",
        {"identities": " ".join(named), "serials": " ".join(new), "count": len(new), "reason": reason},
    )
    if as_json:
        _print_json(
            {"revoked": new, "before": [s for s in serials if s not in new], "pushed": pushed, "failed": failed}
        )
    else:
        for kind, targets in found.items():
            for each in targets:
                state = "revoked" if f"{each.serial:x}" in new else "was revoked before:"
                typer.echo(f"{state} {each.identity or 'certificate'} of {kind}, serial {each.serial:x}")
        _report_push(pushed, failed)
    if failed:
        raise typer.Exit(EXIT_NO)


@crl.command(epilog="Example: sluice pki crl show internal")
def show(
    authority: Annotated[AuthorityKind | None, typer.Argument(help="One authority; default: all.")] = None,
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what each authority has revoked.

    Exit code 1: a list is damaged or expired, or missing although something is revoked.
    """
    located, configuration = load_configuration(home, config)
    store = RevocationStore(located.pki, configuration.pki, clock=utc_now)
    documents = []
    for kind in [authority] if authority else AuthorityKind:
        problem, current = "", None
        try:
            current = store.current(kind)
            if current is None and store.revocations(kind):
                problem = "what was revoked is on no list yet (sluice pki crl refresh)"
        except CrlRejected as error:
            problem = str(error)
        documents.append(_describe(kind, current, store, problem))
    if as_json:
        _print_json({"lists": documents})
    else:
        for document in documents:
            _print_list(document)
    if any(document["problem"] for document in documents):
        raise typer.Exit(EXIT_NO)


@crl.command(epilog="Example: sluice pki crl refresh --force")
def refresh(
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    force: Annotated[bool, typer.Option("--force", help="Sign new CRLs even if the present ones are good.")] = False,
    root_passphrase_file: RootPassphraseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Sign and distribute CRLs that are missing, damaged or past half of their validity, as `sluice up` does.

    An authority whose key is elsewhere (the root, usually) keeps its present CRL. Exit code 1: a CRL that is due
    could not be signed, or a directory could not be written.
    """
    located, configuration = load_configuration(home, config)
    store = RevocationStore(located.pki, configuration.pki, clock=utc_now)
    signed, failed = [], []
    for kind in AuthorityKind:
        try:
            if store.refresh(kind, force=force, passphrase=_passphrase(kind, root_passphrase_file)):
                signed.append(kind)
        except PkiError as error:
            failed.append(str(error))
    pushed, unwritten = push_crls(located, store.lists(), utc_now())
    failed += unwritten
    if as_json:
        _print_json({"signed": signed, "pushed": pushed, "failed": failed})
    else:
        typer.echo(f"signed {', '.join(signed)}" if signed else "nothing to sign: the lists are good")
        _report_push(pushed, failed)
    if failed:
        raise typer.Exit(EXIT_NO)


class ListFormat(enum.StrEnum):
    """How a list is written."""

    PEM = "pem"
    DER = "der"


@crl.command(
    epilog="Examples: sluice pki crl export edge --output edge.crl.pem; "
    "sluice pki crl export internal --format der --output - | openssl crl -inform der -text"
)
def export(
    authority: Annotated[AuthorityKind, typer.Argument(help="Whose list: internal, edge or root.")],
    output: Annotated[
        str, typer.Option("--output", "-o", help="File to write (replaced atomically); - is standard output.")
    ],
    kind: Annotated[ListFormat, typer.Option("--format", help="pem, or der for one list alone.")] = ListFormat.PEM,
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write an authority's complete CRL for other programs, never a delta.

    While two generations are trusted, PEM has the lists of both. Exit code 1: there is no list that counts; `crl
    refresh` signs one.
    """
    located, configuration = load_configuration(home, config)
    store = RevocationStore(located.pki, configuration.pki, clock=utc_now)
    trust = TrustStore(located.pki)
    generations = (
        trust.anchors(authority) if authority in ISSUING else (AuthorityStore(located.pki).certificate(authority),)
    )
    lists = store.of(authority, generations)
    if not lists:
        raise RefusedError(f"the {authority} authority has signed no list yet", "sign one: sluice pki crl refresh")
    if kind is ListFormat.DER and len(lists) > 1:
        raise UsageError(
            f"two generations of the {authority} authority have a list each", "DER holds one: use --format pem"
        )
    content = lists[0].der if kind is ListFormat.DER else b"".join(each.pem for each in lists)
    if output == "-":
        if as_json:
            raise UsageError("--output - and --json both want standard output", "write to a file")
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    write_public(Path(output), content)
    if as_json:
        numbers = [{"number": each.number, "next_update": each.next_update} for each in lists]
        _print_json({"file": output, "format": kind, "lists": numbers})
        return
    for each in lists:
        typer.echo(
            f"wrote list number {each.number} of the {authority} authority into {output}: {len(each.revoked)} revoked, "
            f"next update {each.next_update:%Y-%m-%d %H:%M} UTC"
        )


@contextlib.contextmanager
def _while_nobody_issues(pki: Path) -> Iterator[bool]:
    """Keep authorities from issuing within the block; yields whether that succeeds. A revocation never waits."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(ledger_turn(ledger_path(pki)))
        except LedgerError as error:
            typer.echo(f"revoking all the same: {error}", err=True)
            yield False
        else:
            yield True


def _resolve(
    home: Home, config: PkiConfig, target: str, authority: AuthorityKind | None
) -> dict[AuthorityKind, list[RevocationTarget]]:
    """The certificates that ``target`` means, by their signing authority."""
    now = utc_now()
    found: Iterable[Found]
    if Path(target).is_dir():
        found = in_directory(home, Path(target), now)
    elif _SERIAL.fullmatch(target):
        found = in_home(home, now, serial=int(target, 16))
    else:
        found = in_home(home, now, identity=_identity(target, config.trust_domain))
    targets: dict[AuthorityKind, list[RevocationTarget]] = {}
    for kind, each in found:
        targets.setdefault(kind, []).append(each)
    if not targets and _SERIAL.fullmatch(target):
        return _by_serial(home, int(target, 16), authority)
    if not targets:
        raise RefusedError(f"no certificate of {target} is in {home.root}", "revoke it by its serial number")
    return targets


def _passphrase(kind: AuthorityKind, file: Path | None) -> bytes | None:
    if kind is not AuthorityKind.ROOT or file is None:
        return None
    return read_passphrase(file, getpass.getpass, new=False)


def _by_serial(home: Home, serial: int, authority: AuthorityKind | None) -> dict[AuthorityKind, list[RevocationTarget]]:
    store = AuthorityStore(home.pki)
    for kind in ISSUING:
        if store.exists(kind) and (certificate := store.certificate(kind)).serial_number == serial:
            return {AuthorityKind.ROOT: [RevocationTarget.of(certificate)]}
    if authority is None:
        raise RefusedError(f"no certificate with serial {serial:x} is known here", "say who signed it: --authority")
    return {authority: [RevocationTarget(serial)]}


def _identity(text: str, trust_domain: str) -> SpiffeId:
    try:
        return SpiffeId.parse(text if text.startswith("spiffe://") else f"spiffe://{trust_domain}/{text}")
    except InvalidIdentity as error:
        raise UsageError(
            f"{text[:200]!r} is neither a serial number nor a directory nor an identity: {error.what}", error.remedy
        ) from error


def _describe(
    kind: AuthorityKind, current: RevocationList | None, store: RevocationStore, problem: str
) -> dict[str, Any]:
    return {
        "authority": kind,
        "problem": problem,
        "number": current.number if current else None,
        "this_update": current.this_update if current else None,
        "next_update": current.next_update if current else None,
        "revoked": [
            {
                "serial": entry.serial,
                "revoked_at": entry.revoked_at,
                "reason": entry.reason,
                "identity": entry.identity,
                "not_after": entry.not_after,
                "barred": entry.barred,
            }
            for entry in store.revocations(kind)
        ],
    }


def _print_list(document: dict[str, Any]) -> None:
    if document["problem"]:
        typer.echo(f"{document['authority']}: {document['problem']}")
    elif document["number"] is None:
        typer.echo(
            f"{document['authority']}: nothing revoked, and no list signed yet (sluice pki crl refresh signs one)"
        )
    else:
        typer.echo(
            f"{document['authority']}: number {document['number']}, {len(document['revoked'])} revoked, next update "
            f"{document['next_update']:%Y-%m-%d %H:%M} UTC"
        )
    for entry in document["revoked"]:
        barred = ", not to be certified again" if entry["barred"] else ""
        who = entry["identity"] or "-"
        typer.echo(f"  {entry['serial']}  {entry['revoked_at']:%Y-%m-%d %H:%M}  {entry['reason']}  {who}{barred}")


def _report_push(pushed: list[Path], failed: list[str]) -> None:
    typer.echo(f"pushed to {len(pushed)} identity directories")
    for line in failed:
        typer.echo(f"failed: {line}", err=True)


def _print_json(document: object) -> None:
    typer.echo(json.dumps(msgspec.to_builtins(document, enc_hook=str)))
