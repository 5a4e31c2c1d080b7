"""``sluice pki``: the groups of verbs, and the verb ``init``."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.errors import UsageError
from sluice.cli.options import DEFAULT_HOME, ConfigOption, HomeOption, JsonOption, load_configuration
from sluice.cli.pki import (
    acme as pki_acme,
    authority as pki_authority,
    ca as pki_ca,
    doctor as pki_doctor,
    export as pki_export,
    inspect as pki_inspect,
    issue as pki_issue,
    renew as pki_renew,
    revocation as pki_revocation,
    rotate as pki_rotate,
    trust as pki_trust,
    verify as pki_verify,
)
from sluice.cli.pki.arguments import KeyOption, algorithm_argument, keys_argument, print_json
from sluice.cli.run import agent as pki_agent
from sluice.core import InvalidIdentity, make_private_directory, utc_now
from sluice.pki import Role, SpiffeId
from sluice.pki.authorities import AuthorityStore, TrustStore
from sluice.pki.x509 import AuthorityKind, read_passphrase

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Authorities and identities.\n\n"
    "A cluster has two authorities under one root: `internal` certifies processes and jobs, `edge` certifies the "
    "gateway's public address and its users. A certificate of one is never accepted on a connection of the other. "
    "`sluice up` creates all this by itself; these verbs are for looking at it and for machines of your own.",
)

app.add_typer(pki_issue.app)
app.add_typer(pki_renew.app)
app.add_typer(pki_inspect.app)
app.add_typer(pki_verify.app)
app.add_typer(pki_doctor.app)
app.add_typer(pki_authority.app, name="authority")
app.add_typer(pki_trust.app, name="trust")
app.add_typer(pki_acme.app, name="acme")
app.command(epilog="Example: sluice pki agent --policy agent.toml")(pki_agent.agent)
app.command(epilog=pki_export.EPILOG)(pki_export.export)
pki_revocation.mount(app)
pki_ca.mount(app)
pki_rotate.mount(app)


@app.command(epilog="Example: sluice pki init --algorithm ecdsa-p384")
def init(
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    algorithm: Annotated[
        str | None,
        typer.Option(help="Key algorithm: ecdsa-p256, ecdsa-p384, ed25519, rsa-3072 or rsa-4096."),
    ] = None,
    trust_domain: Annotated[
        str | None, typer.Option(help="Trust domain of every identity, as in spiffe://TRUST-DOMAIN/...")
    ] = None,
    root_passphrase_file: Annotated[
        Path | None,
        typer.Option(
            help="Encrypt the root's key with the first line of this file (mode 0600), or open it with that; -: ask."
        ),
    ] = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create the root, internal and edge authorities.

    Running it again changes nothing that exists: keys are never overwritten.
    With a passphrase the root's key can be kept anywhere: it is needed only to make another authority.
    With --key they are made in a token (an HSM, a TPM, a cloud's), and never leave it.
    """
    if algorithm is not None:
        algorithm_argument(algorithm)
    places = keys_argument(key, tuple(AuthorityKind))
    located, configuration = load_configuration(
        home, config, pki__key_algorithm=algorithm, pki__trust_domain=trust_domain
    )
    _check_trust_domain(configuration.pki.trust_domain)
    make_private_directory(located.root)
    store = AuthorityStore(located.pki)
    passphrase = None
    if root_passphrase_file is not None:
        new = not store.exists(AuthorityKind.ROOT)
        passphrase = read_passphrase(root_passphrase_file, getpass.getpass, new=new)
    created = store.ensure(configuration.pki, utc_now(), root_passphrase=passphrase, places=places)
    TrustStore(located.pki).publish()
    if as_json:
        print_json(
            {
                "created": created.made,
                "kept": created.kept,
                "authorities": {kind: str(store.certificate_file(kind)) for kind in AuthorityKind},
                "tokens": {kind: str(store.reference(kind)) for kind in AuthorityKind if store.in_token(kind)},
            }
        )
        return
    for kind in AuthorityKind:
        verb = "created" if kind in created.made else "kept   "
        until = store.certificate(kind).not_valid_after_utc
        place = f", key in {store.reference(kind).name}" if store.in_token(kind) else ""
        typer.echo(f"{verb} {kind:<8} {store.certificate_file(kind)} (until {until:%Y-%m-%d}{place})")
    if not created.made:
        typer.echo("nothing to do: all three authorities exist")


def _check_trust_domain(trust_domain: str) -> None:
    try:
        SpiffeId(trust_domain, Role.CA, "check")
    except InvalidIdentity as error:
        raise UsageError(error.what, error.remedy) from error
