"""``sluice pki needs-renewal`` and ``renew``: for timers and scripts, with the exit codes of ``step``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.config import Configuration
from cli.errors import UsageError
from cli.options import DEFAULT_HOME, ConfigOption, HomeOption, JsonOption, load_configuration
from cli.pki_arguments import print_json
from pki.bulk import Action, DirectoryTarget, Outcome, Signer, issue_all, prepare, wish_like
from pki.errors import SluiceError
from pki.home import Home
from pki.identity_files import CHAIN_FILE, IdentityMaterial, read_certificates, read_identity, read_peers
from pki.issuer import utc_now
from pki.threshold import HALF, Threshold, needs_renewal

app = typer.Typer(rich_markup_mode=None)

DUE, NOT_DUE, NO_FILE, FAILED = 0, 1, 2, 255
"""Exit codes of ``step certificate needs-renewal``; a shell reads them as "if it needs renewal, then"."""


@app.command(
    "needs-renewal",
    epilog="Examples: sluice pki needs-renewal tm-7 && sluice pki renew tm-7; "
    "sluice pki needs-renewal cert.pem --expires-in 2h",
)
def needs_renewal_verb(
    path: Annotated[Path, typer.Argument(help="An identity directory, or a PEM file with the leaf first.")],
    expires_in: Annotated[
        str | None,
        typer.Option(help="A share of its life that is over (66%), or a time that is left (1h15m); default 50%."),
    ] = None,
    bundle: Annotated[
        bool, typer.Option("--bundle", help="Every certificate of the file, not the leaf alone.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say why.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Whether a certificate is due: exit code 0 it needs renewal, 1 it does not, 2 no such file, 255 error.

    These are the exit codes of `step certificate needs-renewal`, not those of the other verbs.
    """
    try:
        threshold = HALF if expires_in is None else Threshold.parse(expires_in)
        file = path / CHAIN_FILE if path.is_dir() else path
        if not file.exists():
            code, reason = NO_FILE, f"there is no {file}"
        else:
            certificates = read_certificates(file)
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


@app.command(epilog="Example: sluice pki renew .sluice/pki/identities/taskmanager/tm-7")
def renew(
    directories: Annotated[
        list[Path] | None, typer.Argument(help="Identity directories; default: all below the home.")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    force: Annotated[bool, typer.Option("--force", help="Also what is still good.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Issue identities anew that are past half of their life: same names, same purposes, a new key.

    What is damaged or of another trust domain is not renewed: issue it.
    """
    located, configuration = load_configuration(home, config)
    places = directories or sorted(path.parent for path in (located.pki / "identities").glob(f"*/*/{CHAIN_FILE}"))
    if not places:
        raise UsageError(f"there is no identity below {located.pki}", "issue one: sluice pki issue")
    found = [(place, *_read(place)) for place in places]  # all are readable before the first is renewed
    outcomes = [
        (place, _renew(located, configuration, place, material, accept, force=force))
        for place, material, accept in found
    ]
    if as_json:
        print_json(
            {
                "identities": [
                    {
                        "identity": str(outcome.spiffe_id),
                        "directory": str(place),
                        "action": outcome.action,
                        "reason": outcome.reason,
                    }
                    for place, outcome in outcomes
                ]
            }
        )
        return
    for place, outcome in outcomes:
        because = "still good, " if outcome.action is Action.KEPT else ""
        typer.echo(f"{outcome.action:<7} {outcome.spiffe_id} in {place}: {because}{outcome.reason}")


def _read(directory: Path) -> tuple[IdentityMaterial, tuple[str, ...]]:
    return read_identity(directory)[0], read_peers(directory)


def _renew(
    home: Home,
    configuration: Configuration,
    directory: Path,
    material: IdentityMaterial,
    accept: tuple[str, ...],
    *,
    force: bool,
) -> Outcome:
    wish = wish_like(material, accept, configuration.pki)
    target = DirectoryTarget(home, directory)
    signer = Signer(home.pki, configuration.pki, utc_now)
    prepare((wish,), target, signer)
    (outcome,) = issue_all((wish,), target, signer, force=force)
    return outcome
