"""``sluice pki``: authorities and identities, by hand."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Annotated, Any

import typer

from cli import pki_agent, pki_authority, pki_ca, pki_issue, pki_renew, pki_revocation, pki_rotate
from cli.errors import EXIT_NO, UsageError
from cli.options import DEFAULT_HOME, ConfigOption, HomeOption, JsonOption, load_configuration
from cli.pki_arguments import print_json, spiffe_id_argument
from pki.errors import InvalidIdentity, PkiError
from pki.export import Export, Format, export_anchors, export_identity
from pki.files import make_private_directory, write_public, write_secret
from pki.home import Home
from pki.identity import Role, SpiffeId
from pki.identity_files import read_certificates, read_identity
from pki.inspect import CertificateSummary, KeystoreSummary, KeySummary, RequestSummary, Summary, inspect_path
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
app.add_typer(pki_authority.app, name="authority")
app.command(epilog="Example: sluice pki agent --policy agent.toml")(pki_agent.agent)
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


@app.command(epilog="Example: sluice pki inspect .sluice/pki/identities/jobmanager/jobmanager-1")
def inspect(
    paths: Annotated[list[Path], typer.Argument(help="Files (PEM, DER, PKCS#12) or identity directories.")],
    as_json: JsonOption = False,
) -> None:
    """Show what certificates, requests, keys and keystores contain; private keys are never shown."""
    findings = [finding for path in paths for finding in inspect_path(path, utc_now())]
    if as_json:
        print_json({"files": findings})
        return
    for finding in findings:
        typer.echo(finding.file)
        for item in finding.items:
            for line in _lines(item):
                typer.echo(f"  {line}")


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


@app.command(
    epilog="Examples: sluice pki export edge --output edge-ca.pem; "
    "sluice pki export .sluice/pki/identities/taskmanager/tm-7 --format pkcs12 --output tm-7.p12"
)
def export(
    source: Annotated[str, typer.Argument(help="An identity directory; or root, internal, edge for an authority.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write (replaced atomically).")],
    kind: Annotated[
        Format,
        typer.Option(
            "--format",
            help="ca: trust anchors. chain: leaf and intermediate. bundle: key and chain (secret). "
            "pkcs12: keystore (secret). pkcs12-trust: trust store for Java. pkcs12-legacy: keystore with 3DES and "
            "SHA-1, for old programs (secret). jks, jks-trust: the same in Java's old format.",
        ),
    ] = Format.CA,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Write an identity or an authority's certificate in the format another program wants.

    A keystore's password is random and goes into OUTPUT.pass (mode 0600); files with a private key have mode 0600.
    """
    exported = _export(Home.at(home), source, kind)
    password_file = output.with_name(f"{output.name}.pass")
    if exported.password is not None:
        write_secret(password_file, exported.password + b"\n")
    (write_secret if exported.secret else write_public)(output, exported.data)
    if as_json:
        document: dict[str, Any] = {"file": str(output), "format": kind, "secret": exported.secret}
        if exported.password is not None:
            document["password_file"] = str(password_file)
        print_json(document)
        return
    typer.echo(f"wrote {output}" + (f", its password is in {password_file}" if exported.password is not None else ""))


def _export(home: Home, source: str, kind: Format) -> Export:
    if source in set(AuthorityKind):
        return export_anchors(TrustStore(home.pki).anchors(AuthorityKind(source)), kind)
    return export_identity(read_identity(Path(source))[0], kind)


def _check_trust_domain(trust_domain: str) -> None:
    try:
        SpiffeId(trust_domain, Role.CA, "check")
    except InvalidIdentity as error:
        raise UsageError(error.what, error.remedy) from error


def _lines(item: Summary) -> list[str]:
    match item:
        case CertificateSummary():
            return _certificate_lines(item)
        case KeystoreSummary():
            title = f"keystore with {len(item.items)} certificates, {'and a' if item.has_key else 'no'} key"
            return [title, *(f"  {line}" for entry in item.items for line in _certificate_lines(entry))]
        case RequestSummary():
            proof = "signature valid" if item.signature_valid else "SIGNATURE NOT VALID"
            return [f"request for {', '.join(item.spiffe_ids) or item.subject}", f"  {item.key}, {proof}"]
        case KeySummary():
            return [f"private key ({item.key}), public key SHA-256 {item.public_sha256}"]


def _certificate_lines(item: CertificateSummary) -> list[str]:
    what = "authority" if item.authority else "certificate"
    lines = [
        f"{what} {', '.join(item.spiffe_ids) or item.subject}",
        f"  subject   {item.subject}",
        f"  issuer    {item.issuer}",
        f"  validity  {item.not_before:%Y-%m-%d %H:%M} to {item.not_after:%Y-%m-%d %H:%M} UTC: {item.state}",
        f"  key       {item.key}, signed with {item.signature}",
    ]
    if item.purposes:
        lines.append(f"  purpose   {', '.join(item.purposes)}")
    if item.dns or item.ips:
        lines.append(f"  names     {', '.join((*item.dns, *item.ips))}")
    lines.append(f"  serial    {item.serial}")
    lines.append(f"  sha256    {item.sha256}")
    return lines
