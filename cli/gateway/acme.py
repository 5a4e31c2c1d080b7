"""``sluice gateway acme``: the gateway's certificate from an ACME server."""

from __future__ import annotations

import datetime as dt
import json
from typing import Annotated

import typer

from sluice.cli.errors import EXIT_NO, UnreachableError
from sluice.cli.options import DEFAULT_HOME, ConfigOption, HomeOption, JsonOption, load_configuration
from sluice.core import rfc3339, utc_now
from sluice.gateway.acme import AcmeStore, lifetime_in_use, next_order, renew, require_acme

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="The gateway's certificate of an ACME server ([gateway.acme])."
)


@app.command("status", epilog="Example: sluice gateway acme status --json | jq -r .not_after (docs/howto/acme.md).")
def status(home: HomeOption = DEFAULT_HOME, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the certificate in use, when the next one is ordered, and the last failure.

    Exit code 1 when there is no valid certificate, or the last order failed.
    """
    located, configuration = load_configuration(home, config)
    acme, names, now = require_acme(configuration.gateway.acme), configuration.gateway.server_names, utc_now()
    state, lifetime = AcmeStore(located).state(), lifetime_in_use(located, names, now)
    wanted = next_order(located, acme, names, now)
    document: dict[str, object] = {
        "directory": acme.directory,
        "challenge": acme.challenge,
        "names": list(names),
        "serial": "" if lifetime is None else f"{lifetime.serial:x}",
        "not_after": "" if lifetime is None else rfc3339(lifetime.end),
        "next_order": rfc3339(max(wanted.at, now)),
        "reason": wanted.reason,
        "failures": state.failures,
        "last_attempt": rfc3339(dt.datetime.fromtimestamp(state.last_attempt, dt.UTC)) if state.last_attempt else "",
        "last_error": state.last_error,
    }
    if as_json:
        print(json.dumps(document))
    else:
        print(f"server       {acme.directory} ({acme.challenge})")
        print(f"names        {', '.join(names)}")
        shown = "none that is valid" if lifetime is None else f"{lifetime.serial:x}, until {document['not_after']}"
        print(f"certificate  {shown}")
        print(f"next order   {document['next_order']}: {wanted.reason}")
        if state.failures:
            print(f"! {state.failures} failed, the last at {document['last_attempt']}: {state.last_error}")
    raise typer.Exit(EXIT_NO if lifetime is None or state.failures else 0)


@app.command("renew", epilog="Example: sluice gateway acme renew --now (docs/howto/acme.md).")
def renew_(
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    now: Annotated[
        bool, typer.Option("--now", help="Also when no new certificate is due, or after a failure: it counts as a try.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Get a new certificate if one is due, and say why not when that fails. The gateway must be running."""
    located, configuration = load_configuration(home, config)
    acme, names = require_acme(configuration.gateway.acme), configuration.gateway.server_names
    if not (located.run / "endpoints" / "envoy.json").exists():
        raise UnreachableError(
            f"no gateway runs in {located.root}", "start it: the ACME server validates the names through it"
        )
    wanted = next_order(located, acme, names, utc_now())
    if not now and not wanted.is_due(utc_now()):
        _tell(as_json, f"nothing to do before {rfc3339(wanted.at)}: {wanted.reason}", renewed=False)
        return
    renew(located, acme, names)
    lifetime = lifetime_in_use(located, names, utc_now())
    serial, end = ("", "") if lifetime is None else (f"{lifetime.serial:x}", rfc3339(lifetime.end))
    _tell(as_json, f"renewed: {serial}, until {end}", renewed=True, serial=serial, not_after=end)


def _tell(as_json: bool, text: str, **document: object) -> None:
    print(json.dumps(document) if as_json else text)
