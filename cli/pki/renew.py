"""``sluice pki needs-renewal`` and ``renew``: for timers and scripts, with the exit codes of ``step``."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from cryptography.x509 import Certificate
from typer.core import TyperCommand

from sluice.cli import audit_records
from sluice.cli.config import Configuration
from sluice.cli.errors import EXIT_NO, UsageError
from sluice.cli.options import DEFAULT_HOME, ConfigOption, HomeOption, JsonOption, load_configuration
from sluice.cli.pki.arguments import address_argument, lifetime_argument, print_json
from sluice.core import CertificateRejected, Home, SluiceError, utc_now
from sluice.pki import IssuanceRefused
from sluice.pki.identities import (
    CHAIN_FILE,
    HALF,
    Threshold,
    kept_because,
    needs_renewal,
    read_certificates,
    read_identity,
    read_peers,
    renewal_reason,
)
from sluice.pki.inspect.live import Address, looks_like_address, presented_chain
from sluice.pki.issuing import (
    Action,
    DirectoryDestination,
    IssueResult,
    IssuingEngine,
    check_all,
    issue_all,
    renewal_request,
)
from sluice.pki.revocation import ExportedCertificates
from sluice.pki.x509 import changed_lifetime

app = typer.Typer(rich_markup_mode=None)

DUE, NOT_DUE, NO_FILE, FAILED = 0, 1, 2, 255
"""Exit codes of ``step certificate needs-renewal``; a shell reads them as "if it needs renewal, then"."""


_Renewed = tuple[Path, IssueResult, str]
"""The place, the result, and the change of lifetime; empty: none."""


class StepCommand(TyperCommand):
    """A command whose exit code for wrong usage is 255, because 2 has another meaning."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401  its type is private to typer
        """Parse arguments, with exit code 255 for wrong usage."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # The base class of typer's usage errors is private, so they are recognised by their method.
            describe = getattr(error, "format_message", None)
            if describe is None:
                raise
            typer.echo(f"error: {describe()}", err=True)
            raise typer.Exit(FAILED) from error


@app.command(
    "needs-renewal",
    cls=StepCommand,
    epilog="Examples: sluice pki needs-renewal tm-7 && sluice pki renew tm-7; "
    "sluice pki needs-renewal cert.pem --expires-in 2h; sluice pki needs-renewal https://cluster.example --bundle",
)
def needs_renewal_verb(
    target: Annotated[
        str,
        typer.Argument(
            help="An identity directory, a PEM file with the leaf first, or a listener (HOST:PORT, https://HOST, "
            "tls://HOST:PORT, unix:PATH), whose certificate is fetched and not verified. A file comes first."
        ),
    ],
    expires_in: Annotated[
        str | None,
        typer.Option(help="Elapsed share of its lifetime (66%), or remaining time (1h15m, 1.5d); default 50%."),
    ] = None,
    bundle: Annotated[
        bool, typer.Option("--bundle", help="Test every certificate of the file or chain, not only the leaf.")
    ] = False,
    servername: Annotated[str | None, typer.Option(help="Host name to ask a listener for (SNI).")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say why.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Test whether a certificate needs renewal: exit code 0 it does, 1 it does not, 2 no such file, 255 error.

    These are the exit codes of `step certificate needs-renewal`, not those of the other verbs.
    """
    try:
        threshold = HALF if expires_in is None else Threshold.parse(expires_in)
        certificates = _certificates(target, servername or "")
        if not certificates:
            code, reason = NO_FILE, f"there is no {target} with a certificate"
        else:
            reason = needs_renewal(certificates if bundle else certificates[:1], threshold, utc_now())
            code = DUE if reason else NOT_DUE
    except (SluiceError, OSError) as error:
        code, reason = FAILED, str(error)
    if as_json:
        print_json({"needs_renewal": {DUE: True, NOT_DUE: False}.get(code), "reason": reason, "exit_code": code})
    elif code in {NO_FILE, FAILED}:
        typer.echo(f"error: {reason}", err=True)
    elif verbose:
        typer.echo(reason or "it does not need renewal")
    raise typer.Exit(code)


@app.command(
    epilog="Examples: sluice pki renew .sluice/pki/identities/taskmanager/tm-7; "
    "sluice pki renew tm-7 --ca ca.example.org:8444"
)
def renew(
    directories: Annotated[
        list[Path] | None, typer.Argument(help="Identity directories; default, without --ca: all below the home.")
    ] = None,
    ca: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT of an online CA's mutual TLS port: it signs, and the present certificate proves who asks. "
            "Default: the authorities of the home sign."
        ),
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    force: Annotated[bool, typer.Option("--force", help="Also renew certificates that are still good.")] = False,
    lifetime: Annotated[
        str | None, typer.Option(help="Such as 12h, 90m, 30d; default: that of what is renewed. Not with --ca.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Renew identities that are past half of their lifetime: same names, usages and lifetime, a new key.

    What is damaged, of another trust domain or (with --ca) expired is not renewed: issue or enrol it. What was revoked
    is refused, with --force too, and the exit code is 1; `sluice pki issue` admits it again.
    """
    duration = None if lifetime is None else lifetime_argument(lifetime)
    if ca is not None:
        if not directories:
            raise UsageError("no identity is given", "name the directories that the CA at --ca is to renew")
        if duration is not None:
            raise UsageError("--lifetime cannot be used with --ca", "the CA keeps the lifetime as far as it may")
        outcomes = _renew_online(directories, ca, force=force)
    else:
        outcomes = _renew_here(directories or [], *load_configuration(home, config), force=force, lifetime=duration)
    if renewed := [str(each.spiffe_id) for _, each, _ in outcomes if each.action in {Action.ISSUED, Action.RENEWED}]:
        audit_records.record(
            Home.at(home), "certificate.renewed", {"identities": " ".join(renewed), "count": len(renewed), "ca": ca}
        )
    if as_json:
        print_json(
            {
                "identities": [
                    {
                        "identity": str(outcome.spiffe_id),
                        "directory": str(place),
                        "action": outcome.action,
                        "reason": outcome.reason,
                        "not_after": read_certificates(place / CHAIN_FILE)[0].not_valid_after_utc,
                        "lifetime_changed": changed,
                    }
                    for place, outcome, changed in outcomes
                ]
            }
        )
    else:
        for place, outcome, changed in outcomes:
            because = "still good, " if outcome.action is Action.KEPT else ""
            note = f"; {changed}" if changed else ""
            typer.echo(f"{outcome.action:<7} {outcome.spiffe_id} in {place}: {because}{outcome.reason}{note}")
    if any(outcome.action is Action.REFUSED for _, outcome, _ in outcomes):
        raise typer.Exit(EXIT_NO)


def _certificates(target: str, server_name: str) -> list[Certificate]:
    """The certificates of a directory, a file or a listener; none when there is no such file."""
    path = Path(target)
    file = path / CHAIN_FILE if path.is_dir() else path
    if file.exists():
        return read_certificates(file)
    if path.exists() or not looks_like_address(target):
        return []
    return presented_chain(Address.parse(target), server_name=server_name)


def _renew_here(
    directories: list[Path], home: Home, configuration: Configuration, *, force: bool, lifetime: dt.timedelta | None
) -> list[_Renewed]:
    places = directories or sorted(path.parent for path in (home.pki / "identities").glob(f"*/*/{CHAIN_FILE}"))
    if not places:
        raise UsageError(f"there is no identity below {home.pki}", "issue one: sluice pki issue")
    # Check that all are readable before renewing the first.
    found = [(place, read_identity(place)[0], read_peers(place)) for place in places]
    engine = IssuingEngine(home.pki, configuration.pki, read_once=True)
    outcomes = []
    for place, material, accept in found:
        ends = [anchor.not_valid_after_utc for anchor in (*material.anchors, *material.chain)]
        successor = renewal_request(material.leaf, configuration.pki, lifetime=lifetime, authority_ends=ends)
        requests = (replace(successor, accept=accept),)
        destination = DirectoryDestination(engine, home, place)
        check_all(requests, destination, engine)
        (outcome,) = issue_all(requests, destination, engine, force=force)
        if outcome.action is Action.RENEWED:
            leaf = read_certificates(place / CHAIN_FILE)[0]
            ExportedCertificates(home.pki).remember(
                leaf, str(outcome.spiffe_id), successor.profile.authority, place, utc_now()
            )
        outcomes.append((place, outcome, _lifetime_changed(material.leaf, place)))
    return outcomes


def _lifetime_changed(before: Certificate, place: Path) -> str:
    """The message when the lifetime of the certificate in ``place`` differs from ``before``; else empty."""
    now = read_certificates(place / CHAIN_FILE)[0]
    return changed_lifetime(before, now)


def _renew_online(directories: list[Path], address: str, *, force: bool) -> list[_Renewed]:
    from sluice.pki.enrolment import client

    parsed = address_argument(address)
    found = [(place, read_identity(place)[0]) for place in directories]
    outcomes = []
    for place, material in found:
        reason = renewal_reason(place, material.spiffe_id, utc_now()) or ("it was asked for" if force else "")
        action = Action.RENEWED if reason else Action.KEPT
        try:
            if reason:
                client.renew(place, parsed)
        except (CertificateRejected, IssuanceRefused) as error:
            action, reason = Action.REFUSED, f"{error.what} ({error.remedy})" if error.remedy else error.what
        outcome = IssueResult(material.spiffe_id, action, reason or kept_because(material))
        outcomes.append((place, outcome, _lifetime_changed(material.leaf, place)))
    return outcomes
