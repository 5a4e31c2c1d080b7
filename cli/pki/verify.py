"""``sluice pki verify``: verifies one certificate, including revocation, and explains a failure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from sluice.cli.errors import EXIT_NO, UsageError
from sluice.cli.options import DEFAULT_HOME, ConfigOption, HomeOption, JsonOption, load_configuration
from sluice.cli.pki.arguments import arguments, print_json, spiffe_id_argument
from sluice.core import CrlRejected, Home, PkiError, StoreError, read_bounded, utc_now
from sluice.pki import PkiConfig
from sluice.pki.authorities import AuthorityStore, TrustStore
from sluice.pki.identities import read_certificates, read_identity
from sluice.pki.revocation import (
    CRL_FILE,
    MAX_CRL_BYTES,
    CertificateRevoked,
    RevocationCheck,
    RevocationStore,
    check_path,
    load_crls,
)
from sluice.pki.x509 import (
    DAMAGED,
    ISSUING,
    AuthorityKind,
    Purpose,
    Verified,
    check_host_argument,
    check_server_name,
    issuer_id,
    key_id,
    verify_chain,
)

app = typer.Typer(rich_markup_mode=None)


@app.command(
    epilog="Examples: sluice pki verify .sluice/pki/identities/taskmanager/tm-7; "
    "sluice pki verify chain.pem --ca ca.pem --crl crl.pem --host cluster.example.org"
)
def verify(
    path: Annotated[Path, typer.Argument(help="An identity directory, or a PEM file with the leaf first.")],
    ca: Annotated[
        Path | None,
        typer.Option(help="Trust anchors (PEM); default: ca.pem of the identity directory, or the home's authorities."),
    ] = None,
    crl: Annotated[
        list[Path] | None,
        typer.Option(
            help="Revocation lists (PEM or DER); repeatable. Consulted without it: crl.pem of the identity directory, "
            "and the home when one of its authorities signed the certificate."
        ),
    ] = None,
    purpose: Annotated[
        Purpose | None, typer.Option(help="The extended key usage that the certificate must have.")
    ] = None,
    identity: Annotated[str | None, typer.Option(help="The SPIFFE ID that the certificate must have.")] = None,
    host: Annotated[
        str | None,
        typer.Option(
            help="The DNS name or address that the certificate must be valid for, as a connecting client checks it."
        ),
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Verify a certificate: path to an anchor, validity, strength, revocation, purpose, names, and the SPIFFE rules.

    Of an identity directory also: the key belongs to the certificate, and others cannot read it.
    Where no revocation list is at hand it says so, and verifies the rest.
    Exit code 0: verified; 1: not verified or revoked, with the reason; 2: there is no such file.
    """
    expected = None if identity is None else spiffe_id_argument(identity)
    if host is not None:
        with arguments():
            check_host_argument(host)
        purpose = purpose or Purpose.SERVER
    for file in (path, *([] if ca is None else [ca]), *(crl or ())):
        if not file.exists():
            raise UsageError(f"there is no {file}", "name an identity directory or a PEM file")
    located, configuration = load_configuration(home, config)
    try:
        presented = _read(path, ca, located)
        verified = verify_chain(
            presented.leaf, presented.chain, presented.anchors, now=utc_now(), purpose=purpose, expected=expected
        )
        if host is not None:
            check_server_name(presented.leaf, host)
        revocation = _check_revocation(path, crl or [], verified, located, configuration.pki)
    except CertificateRevoked as error:
        _tell_refusal(error, revoked=True, as_json=as_json)
        raise typer.Exit(EXIT_NO) from error
    except PkiError as error:
        _tell_refusal(error, revoked=False, as_json=as_json)
        raise typer.Exit(EXIT_NO) from error
    _tell(verified, revocation, as_json=as_json)


@dataclass(frozen=True, slots=True)
class _Presented:
    leaf: x509.Certificate
    chain: tuple[x509.Certificate, ...]
    anchors: tuple[x509.Certificate, ...]


def _read(path: Path, ca: Path | None, home: Home) -> _Presented:
    if path.is_dir() and (path / "key.pem").exists():
        material, _ = read_identity(path)
        return _Presented(
            material.leaf, material.chain, material.anchors if ca is None else tuple(read_certificates(ca))
        )
    if path.is_dir():  # certified by CSR: the key is elsewhere
        leaf, *chain = read_certificates(path / "chain.pem")
        return _Presented(leaf, tuple(chain), tuple(read_certificates(ca or path / "ca.pem")))
    leaf, *chain = read_certificates(path)
    if ca is not None:
        return _Presented(leaf, tuple(chain), tuple(read_certificates(ca)))
    anchors = _anchors_of(home)
    if not anchors:
        raise UsageError("no trust anchors are given", "name trust anchors with --ca, or a home with --home")
    return _Presented(leaf, tuple(chain), anchors)


def _anchors_of(home: Home) -> tuple[x509.Certificate, ...]:
    store, trust = AuthorityStore(home.pki), TrustStore(home.pki)
    return tuple(anchor for kind in ISSUING if store.exists(kind) for anchor in trust.anchors(kind))


def _check_revocation(
    path: Path, files: list[Path], verified: Verified, home: Home, config: PkiConfig
) -> RevocationCheck:
    offered: list[x509.CertificateRevocationList] = []
    for file in files:
        offered += _lists_of(file)
    beside = path / CRL_FILE
    if path.is_dir() and beside.exists():
        offered += _lists_of(beside)
    store = RevocationStore(home.pki, config, clock=utc_now)
    kind = _side_of(verified.path[0], home)
    if kind is not None:
        # The home's record comes first, because it may be newer than every CRL.
        for entry in store.revocations(kind):
            if entry.number == verified.path[0].serial_number:
                raise CertificateRevoked(
                    f"{verified.spiffe_id}, serial {entry.serial}, was revoked at "
                    f"{entry.revoked_at:%Y-%m-%d %H:%M:%S} UTC ({entry.reason})",
                    "issue another one: sluice pki issue",
                )
        offered += [crl for each in store.lists() for crl in load_crls(each.pem)]
    found = check_path(verified.path, offered, utc_now())
    if files and not found.lists:
        raise CrlRejected(
            f"none of the CRLs given with --crl is valid: {'; '.join(found.unchecked)}",
            "get a fresh list of the issuer: sluice pki crl export",
        )
    return found if kind is None else found.known_to_the_home(verified.path[0])


def _side_of(leaf: x509.Certificate, home: Home) -> AuthorityKind | None:
    """The authority of the home that signed ``leaf``; None: none did."""
    store, trust = AuthorityStore(home.pki), TrustStore(home.pki)
    for kind in ISSUING:
        if store.exists(kind) and issuer_id(leaf) in {key_id(anchor) for anchor in trust.anchors(kind)}:
            return kind
    return None


def _lists_of(file: Path) -> list[x509.CertificateRevocationList]:
    content = read_bounded(file, MAX_CRL_BYTES)
    try:
        if content.startswith(b"\x30"):
            content = x509.load_der_x509_crl(content).public_bytes(Encoding.PEM)
        return load_crls(content)
    except (CrlRejected, *DAMAGED) as error:
        why = error.what if isinstance(error, CrlRejected) else "it is damaged"
        raise StoreError(f"{file} holds no revocation list: {why}", "get one: sluice pki crl export") from error


def _tell_refusal(error: PkiError, *, revoked: bool, as_json: bool) -> None:
    if not as_json:
        raise error
    print_json({"verified": False, "revoked": revoked, "reason": error.what, "remedy": error.remedy})


def _tell(verified: Verified, revocation: RevocationCheck, *, as_json: bool) -> None:
    steps = [certificate.subject.rfc4514_string() for certificate in verified.path]
    if as_json:
        print_json(
            {
                "verified": True,
                "revoked": False if revocation.complete else None,
                "identity": str(verified.spiffe_id),
                "path": steps,
                "expires_at": verified.expires_at,
                "revocation": {
                    "checked": revocation.complete,
                    "by_home": revocation.by_home,
                    "lists": revocation.lists,
                    "unchecked": revocation.unchecked,
                },
            }
        )
        return
    typer.echo(f"verified {verified.spiffe_id}, valid until {verified.expires_at:%Y-%m-%d %H:%M} UTC")
    typer.echo("  " + " <- ".join(steps))
    if revocation.by_home:
        typer.echo("  not revoked, by this home's record")
    for each in revocation.lists:
        typer.echo(
            f"  not revoked, by list number {each.number} of {each.issuer}, "
            f"of {each.this_update:%Y-%m-%d %H:%M} UTC, next update {each.next_update:%Y-%m-%d %H:%M} UTC"
        )
    for line in revocation.unchecked:
        typer.echo(f"  revocation NOT CHECKED of {line} (give --crl or --home)")
