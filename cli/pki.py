"""``sluice pki``: authorities and identities, by hand."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Annotated

import typer

from cli import (
    pki_agent,
    pki_authority,
    pki_ca,
    pki_doctor,
    pki_export,
    pki_inspect,
    pki_issue,
    pki_renew,
    pki_revocation,
    pki_rotate,
)
from cli.errors import EXIT_NO, UsageError
from cli.options import DEFAULT_HOME, ConfigOption, HomeOption, JsonOption, load_configuration
from cli.pki_arguments import print_json, spiffe_id_argument
from pki.errors import InvalidIdentity, PkiError
from pki.files import make_private_directory
from pki.identity import Role, SpiffeId
from pki.identity_files import read_certificates, read_identity
from pki.issuer import utc_now
from pki.passphrase import read_passphrase
from pki.profiles import AuthorityKind, Purpose
from pki.store import AuthorityStore
from pki.trust import TrustStore
from pki.verify import verify_chain

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
app.add_typer(pki_doctor.app)
app.add_typer(pki_authority.app, name="authority")
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
    as_json: JsonOption = False,
) -> None:
    """Create the root, internal and edge authorities.

    Running it again changes nothing that exists: keys are never overwritten.
    With a passphrase the root's key can be kept anywhere: it is needed only to make another authority.
    """
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
    created = store.ensure(configuration.pki, utc_now(), root_passphrase=passphrase)
    TrustStore(located.pki).publish()
    if as_json:
        print_json(
            {
                "created": created.made,
                "kept": created.kept,
                "authorities": {kind: str(store.certificate_file(kind)) for kind in AuthorityKind},
            }
        )
        return
    for kind in AuthorityKind:
        verb = "created" if kind in created.made else "kept   "
        until = store.certificate(kind).not_valid_after_utc
        typer.echo(f"{verb} {kind:<8} {store.certificate_file(kind)} (until {until:%Y-%m-%d})")
    if not created.made:
        typer.echo("nothing to do: all three authorities were there already")


@app.command(epilog="Example: sluice pki verify chain.pem --ca ca.pem --purpose server")
def verify(
    path: Annotated[Path, typer.Argument(help="An identity directory, or a PEM file with the leaf first.")],
    ca: Annotated[
        Path | None, typer.Option(help="Trust anchors (PEM); default: ca.pem of the identity directory.")
    ] = None,
    purpose: Annotated[Purpose | None, typer.Option(help="What the holder must be allowed to be.")] = None,
    identity: Annotated[str | None, typer.Option(help="The SPIFFE ID it must have.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Verify a certificate: path to an anchor, validity, strength, purpose, and the SPIFFE rules.

    Of an identity directory also: the key belongs to the certificate, and others cannot read it.
    Exit code 0: verified; 1: not verified, with the reason.
    """
    expected = None if identity is None else spiffe_id_argument(identity)
    if ca is None and not path.is_dir():
        raise UsageError("nothing to trust is given", "name trust anchors with --ca, or an identity directory")
    try:
        if path.is_dir():
            material, _ = read_identity(path)
            leaf, *chain = material.leaf, *material.chain
            anchors = list(material.anchors) if ca is None else read_certificates(ca)
        else:
            leaf, *chain = read_certificates(path)
            anchors = read_certificates(ca or path)
        verified = verify_chain(leaf, chain, anchors, now=utc_now(), purpose=purpose, expected=expected)
    except PkiError as error:
        if not as_json:
            raise
        print_json({"verified": False, "reason": error.what, "remedy": error.remedy})
        raise typer.Exit(EXIT_NO) from error
    steps = [certificate.subject.rfc4514_string() for certificate in verified.path]
    if as_json:
        print_json(
            {
                "verified": True,
                "identity": str(verified.spiffe_id),
                "path": steps,
                "expires_at": verified.expires_at,
            }
        )
        return
    typer.echo(f"verified {verified.spiffe_id}, valid until {verified.expires_at:%Y-%m-%d %H:%M} UTC")
    typer.echo("  " + " <- ".join(steps))


def _check_trust_domain(trust_domain: str) -> None:
    try:
        SpiffeId(trust_domain, Role.CA, "check")
    except InvalidIdentity as error:
        raise UsageError(error.what, error.remedy) from error
