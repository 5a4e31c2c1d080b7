"""``sluice pki export``: exports identities as files and configuration for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sluice.cli.errors import UsageError
from sluice.cli.options import DEFAULT_HOME, HomeOption, JsonOption
from sluice.cli.pki.arguments import print_json
from sluice.core import Home, InvalidIdentity, utc_now, write_public, write_secret
from sluice.pki.authorities import TrustStore
from sluice.pki.export import Export, Format, export_anchors, export_identity
from sluice.pki.export.programs import CATALOGUE, Program, export_for
from sluice.pki.identities import read_identity
from sluice.pki.x509 import AuthorityKind

EPILOG = (
    "Examples: sluice pki export edge --output edge-ca.pem; "
    "sluice pki export .sluice/pki/identities/taskmanager/tm-7 --format pkcs12 --output tm-7.p12; "
    "sluice pki export .sluice/pki/identities/zookeeper/zk-1 --for zookeeper --output zk-1"
)


def export(
    source: Annotated[
        str | None, typer.Argument(help="An identity directory; or root, internal, edge for an authority.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write (replaced atomically); with --for a directory.")
    ] = None,
    kind: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="ca (default): trust anchors. chain: leaf and intermediate. bundle: key and chain (secret). "
            "pkcs12: keystore (secret). pkcs12-trust: trust store for Java. pkcs12-legacy: keystore with 3DES and "
            "SHA-1, for old programs (secret). jks, jks-trust: the same in Java's old format.",
        ),
    ] = None,
    program: Annotated[
        Program | None, typer.Option("--for", help="Write key stores and configuration of this program.")
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(help="With --for envoy or nginx: SPIFFE ID that is let in, or spiffe://…/*; repeatable."),
    ] = None,
    list_programs: Annotated[bool, typer.Option("--list", help="Show the programs that --for knows.")] = False,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Write an identity or an authority's certificate in the format another program wants.

    A keystore's password is random and goes into OUTPUT.pass (mode 0600); files with a private key have mode 0600.
    With --for, OUTPUT is a directory; it gets key stores and configuration to include, all of mode 0600.
    """
    if list_programs:
        _list(as_json=as_json)
        return
    if source is None or output is None:
        raise UsageError("nothing to export is given", "name an identity directory or an authority, and --output")
    if program is not None:
        if kind is not None:
            raise UsageError("--for and --format exclude each other")
        _export_program(program, source, output, peer or [], as_json=as_json)
    elif peer:
        raise UsageError("--peer needs --for envoy or nginx")
    else:
        _export_file(_export(Home.at(home), source, kind or Format.CA), output, kind or Format.CA, as_json=as_json)


def _list(*, as_json: bool) -> None:
    if as_json:
        programs = [
            {"program": program, "purpose": entry.purpose, "proven": entry.tested_with}
            for program, entry in CATALOGUE.items()
        ]
        print_json({"programs": programs})
        return
    for program, entry in CATALOGUE.items():
        typer.echo(f"{program:<10} {entry.purpose}\n{'':<10} tested with {entry.tested_with}")


def _export_program(program: Program, source: str, output: Path, peers: list[str], *, as_json: bool) -> None:
    if source in set(AuthorityKind):
        raise UsageError(f"{source} is an authority", "name the identity directory that the program is to use")
    try:
        files = export_for(program, Path(source), output, now=utc_now(), peers=peers)
    except InvalidIdentity as error:
        raise UsageError(error.what, error.remedy) from error
    if as_json:
        print_json(
            {"program": program, "proven": CATALOGUE[program].tested_with, "files": [str(file) for file in files]}
        )
        return
    for file in files:
        typer.echo(f"wrote {file}")


def _export_file(exported: Export, output: Path, kind: Format, *, as_json: bool) -> None:
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
