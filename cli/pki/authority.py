"""``sluice pki authority``: authorities whose root is kept on another machine."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Annotated

import typer
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from sluice.cli.errors import RefusedError
from sluice.cli.options import DEFAULT_HOME, ConfigOption, HomeOption, JsonOption, load_configuration
from sluice.cli.pki.arguments import print_json
from sluice.cli.token_uris import key_argument
from sluice.core import Home, make_private_directory, read_bounded, read_secret, utc_now, write_public, write_secret
from sluice.pki.authorities import AuthorityStore, check_signed, request_authority, sign_authority
from sluice.pki.identities import read_certificates
from sluice.pki.ledger import IssuanceNotes, issuance_note
from sluice.pki.pkcs11 import TOKEN_KEYS, TokenKey, format_reference, read_reference
from sluice.pki.x509 import MAX_CSR_BYTES, AuthorityKind, PrivateKey, key_from_pem, key_to_pem, read_passphrase

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Authorities whose root is kept on another machine: csr here, sign there, import here. No key travels.",
)

KindArgument = Annotated[AuthorityKind, typer.Argument(help="internal or edge.")]


def _pending_key(home: Home, kind: AuthorityKind) -> Path:
    return home.pki / "pending" / f"{kind}.key.pem"


def _pending_reference(home: Home, kind: AuthorityKind) -> Path:
    """The reference to a pending key in a token, in place of :func:`_pending_key`."""
    return home.pki / "pending" / f"{kind}.key.uri"


@app.command(epilog="Example: sluice pki authority csr internal --output internal.csr")
def csr(
    kind: KindArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="File for the request (PEM).")],
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Create a new key even if another one is waiting to be signed.")
    ] = False,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="pkcs11:...",
            help="Make the key in a token, named by a PKCS#11 URI (RFC 7512) with module-path and "
            "pin-source=file:/FILE.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Create a key for an authority and a request for its certificate. The key stays in the home, or in its token."""
    located, configuration = load_configuration(home, config)
    place = None if key is None else key_argument(key)
    in_file, in_token = _pending_key(located, kind), _pending_reference(located, kind)
    pending = in_token if in_token.exists() else in_file
    if AuthorityStore(located.pki).exists(kind):
        raise RefusedError(f"there is an {kind} authority in {located.pki}", "keys are never overwritten")
    if pending.exists() and not force:
        raise RefusedError(f"{pending} waits for its certificate", "import that, or begin again with --force")
    make_private_directory(located.root)
    make_private_directory(pending.parent)
    with AuthorityStore(located.pki).making(kind, configuration.pki, place) as generate:
        made, request = request_authority(kind, configuration.pki, generate)
        former = read_reference(in_token) if in_token.exists() else None
        if isinstance(made, TokenKey):
            pending = in_token
            write_secret(in_token, format_reference(made.uri))
            in_file.unlink(missing_ok=True)
        else:
            pending = in_file
            write_secret(in_file, key_to_pem(made))
            in_token.unlink(missing_ok=True)
    if former is not None:
        TOKEN_KEYS.destroy(former)
    write_public(output, request)
    if as_json:
        print_json({"request": str(output), "key": str(pending)})
    else:
        typer.echo(f"wrote {output}; have it signed: sluice pki authority sign {kind} {output.name}")


@app.command(epilog="Example: sluice pki authority sign internal internal.csr --output internal.pem")
def sign(
    kind: KindArgument,
    request: Annotated[Path, typer.Argument(help="What `sluice pki authority csr` wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File for the certificates (PEM).")],
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    root_passphrase_file: Annotated[
        Path | None, typer.Option(help="File with the passphrase of the root's key (mode 0600); -: ask.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Sign an authority's request where the root's key is. A request for anything else is refused."""
    located, configuration = load_configuration(home, config)
    passphrase = None
    if root_passphrase_file is not None:
        passphrase = read_passphrase(root_passphrase_file, getpass.getpass, new=False)
    root = AuthorityStore(located.pki).load(AuthorityKind.ROOT, passphrase)
    signed = sign_authority(read_bounded(request, MAX_CSR_BYTES), kind, root, configuration.pki, utc_now())
    certificate = x509.load_pem_x509_certificates(signed)[0]
    IssuanceNotes(located.pki).write(
        [issuance_note(certificate, f"spiffe://{configuration.pki.trust_domain}", "authority")]
    )
    write_public(output, signed)
    fingerprint = root.certificate.fingerprint(hashes.SHA256()).hex()
    if as_json:
        print_json({"certificates": str(output), "root_sha256": fingerprint})
    else:
        typer.echo(f"wrote {output}\nroot SHA-256 {fingerprint}: compare it when you import")


@app.command("import", epilog="Example: sluice pki authority import internal internal.pem")
def import_(
    kind: KindArgument,
    certificates: Annotated[Path, typer.Argument(help="What `sluice pki authority sign` wrote.")],
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Install a signed authority for the key that was created here, and the root's certificate."""
    located, configuration = load_configuration(home, config)
    pending = _pending_key(located, kind)
    key: PrivateKey
    if (in_token := _pending_reference(located, kind)).exists():
        pending, key = in_token, TOKEN_KEYS.load(read_reference(in_token))
    elif pending.exists():
        key = key_from_pem(read_secret(pending), str(pending))
    else:
        raise RefusedError(f"no key waits in {pending}", f"make one: sluice pki authority csr {kind}")
    authority, root = check_signed(kind, key, read_certificates(certificates), configuration.pki, utc_now())
    store = AuthorityStore(located.pki)
    store.install_signed(authority, root)
    pending.unlink()
    fingerprint = root.fingerprint(hashes.SHA256()).hex()
    if as_json:
        print_json({"authority": str(store.directory(kind)), "root_sha256": fingerprint})
    else:
        typer.echo(f"installed {store.directory(kind)}\nroot SHA-256 {fingerprint}: it must be what `sign` said")
