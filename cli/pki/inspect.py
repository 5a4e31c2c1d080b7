"""``sluice pki inspect``: describes certificate files and TLS listeners as text, JSON or PEM."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from cryptography.hazmat.primitives.serialization import Encoding

from sluice.cli.errors import UnreachableError, UsageError
from sluice.cli.options import DEFAULT_HOME, HomeOption, JsonOption
from sluice.cli.pki.arguments import print_json
from sluice.core import Home, printable, utc_now
from sluice.pki.identities import Known, authorities_of_file, authorities_of_home, read_identity, without_repeats
from sluice.pki.inspect import (
    CertificateSummary,
    CrlSummary,
    FileContent,
    Finding,
    KeystoreSummary,
    KeySummary,
    RequestSummary,
    Summary,
    inspect_path,
    public_pem,
)
from sluice.pki.inspect.live import (
    WEB_PROTOCOLS,
    Address,
    HandshakeSummary,
    Live,
    LiveSummary,
    Unreachable,
    inspect_live,
    looks_like_address,
)

MAX_SHOWN_ENTRIES = 20
"""Most entries of a revocation list that the text shows; JSON has all."""

app = typer.Typer(rich_markup_mode=None)


class Output(enum.StrEnum):
    """The output format."""

    TEXT = "text"
    JSON = "json"
    PEM = "pem"


@app.command(
    epilog="Examples: sluice pki inspect .sluice/pki/identities/jobmanager/jobmanager-1; "
    "sluice pki inspect localhost:8443 --identity tm-7; sluice pki inspect https://cluster.example --format pem"
)
def inspect(
    targets: Annotated[
        list[str],
        typer.Argument(
            help="Files (PEM, DER, PKCS#12, JKS), identity directories, or listeners: HOST:PORT, https://HOST, "
            "tls://HOST:PORT, unix:PATH. A file of that name comes first."
        ),
    ],
    identity: Annotated[
        Path | None,
        typer.Option(help="Identity directory to show to a listener that asks for a client certificate."),
    ] = None,
    servername: Annotated[
        str | None, typer.Option(help="Host name to ask a listener for (SNI); default: that of its address.")
    ] = None,
    alpn: Annotated[
        list[str] | None,
        typer.Option(help="Application protocol to offer to a listener; repeat. Default: h2 and http/1.1."),
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(help="Authorities (PEM) that may have signed it, in addition to those of the home.")
    ] = None,
    output: Annotated[
        Output, typer.Option("--format", help="text, json (as --json), or pem: what is public, as one PEM stream.")
    ] = Output.TEXT,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Show what certificates, requests, revocation lists, keys and keystores contain, or what a listener presents.

    Private keys are never shown. A listener is really connected to, with TLS 1.3 and with TLS 1.2; nothing is
    verified, no data is sent, and findings are reported: expired, order, missing issuer, weak, not as SPIFFE demands.
    "Who signed it" is answered from the home's authorities and --ca. Exit code 0 whatever was found (see `verify` and
    `doctor` for a verdict), 1 when it cannot be read, 3 when nobody listens there.
    """
    if as_json:
        output = Output.JSON
    known = _authorities(Home.at(home), ca)
    shown = None if identity is None else read_identity(identity)[0]
    now = utc_now()
    contents: list[FileContent] = []
    listeners: list[Live] = []
    for target in targets:
        if Path(target).exists() or not looks_like_address(target):
            path = Path(target)
            if output is Output.PEM:
                typer.echo(public_pem(path).decode("ascii", "replace"), nl=False)
            else:
                contents += inspect_path(path, now, authorities=known)
            continue
        try:
            live = inspect_live(
                Address.parse(target),
                now,
                server_name=servername or "",
                alpn=_alpn(alpn or WEB_PROTOCOLS),
                identity=shown,
                authorities=known,
            )
        except Unreachable as error:
            raise UnreachableError(error.what, error.remedy) from error
        listeners.append(live)
        if output is Output.PEM:
            for each in live.certificates:
                typer.echo(each.public_bytes(Encoding.PEM).decode(), nl=False)
    if output is Output.JSON:
        print_json({"files": contents, "listeners": [live.summary for live in listeners]})
    elif output is Output.TEXT:
        _print_text(contents, listeners)


def _authorities(home: Home, file: Path | None) -> list[Known]:
    given = [] if file is None else authorities_of_file(file)
    return without_repeats([*authorities_of_home(home.pki), *given])


def _alpn(names: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if not name.isascii() or not 0 < len(name) < 256:
            raise UsageError(f"{name[:80]!r} is not an application protocol", "as in --alpn h2")
    return tuple(names)


def _print_text(contents: list[FileContent], listeners: list[Live]) -> None:
    for content in contents:
        typer.echo(content.file)
        for item in content.items:
            for line in _lines(item):
                typer.echo(f"  {printable(line)}")
    for live in listeners:
        for line in _live_lines(live.summary):
            typer.echo(printable(line))


def _lines(item: Summary) -> list[str]:
    match item:
        case CertificateSummary():
            return _certificate_lines(item)
        case KeystoreSummary():
            title = f"keystore with {len(item.items)} certificates, {'and a' if item.has_key else 'no'} key"
            return [title, *(f"  {line}" for entry in item.items for line in _certificate_lines(entry))]
        case RequestSummary():
            return _request_lines(item)
        case KeySummary():
            return [f"private key ({item.key}), public key SHA-256 {item.public_sha256}"]
        case CrlSummary():
            return _crl_lines(item)


def _certificate_lines(item: CertificateSummary) -> list[str]:
    what = "authority" if item.authority else "certificate"
    lines = [
        f"{what} {', '.join(item.spiffe_ids) or item.subject}",
        f"  subject   {item.subject}",
        f"  issuer    {item.issuer}",
        f"  validity  {item.not_before:%Y-%m-%d %H:%M} to {item.not_after:%Y-%m-%d %H:%M} UTC: {item.state}",
        f"  key       {item.key}, signed with {item.signature}",
    ]
    if item.name_constraints:
        lines.append(f"  certifies {', '.join(item.name_constraints)}")
    if item.purposes:
        lines.append(f"  purpose   {', '.join(item.purposes)}")
    if item.dns or item.ips:
        lines.append(f"  names     {', '.join((*item.dns, *item.ips))}")
    lines.append(f"  serial    {item.serial}")
    lines.append(f"  sha256    {item.sha256}")
    return lines


def _request_lines(item: RequestSummary) -> list[str]:
    valid = "valid: made with this key" if item.signature_valid else "NOT VALID"
    return [
        f"request for {', '.join(item.spiffe_ids) or item.subject or 'an identity that it does not say'}",
        f"  subject   {item.subject or '(empty)'}",
        f"  names     {', '.join((*item.dns, *item.ips)) or '(none)'}",
        f"  key       {item.key}",
        f"  signature {valid}",
    ]


def _crl_lines(item: CrlSummary) -> list[str]:
    number = "without a number" if item.number is None else f"number {item.number}"
    delta = "" if item.delta_base is None else f", a delta to number {item.delta_base}"
    until = "not said" if item.next_update is None else f"{item.next_update:%Y-%m-%d %H:%M} UTC"
    signature = {
        "good": f"good, by {item.signed_by}",
        "bad": f"NOT GOOD: not by {item.signed_by}, whose name it bears",
        "unknown issuer": "not checked: its issuer is none of the home's authorities (give it with --ca)",
    }[item.signature]
    lines = [
        f"revocation list {number}{delta}, {len(item.entries)} entries",
        f"  issuer    {item.issuer}",
        f"  update    {item.this_update:%Y-%m-%d %H:%M} UTC, next {until}: {item.state}",
        f"  signature {signature} ({item.hash})",
    ]
    lines += [
        f"  revoked   {each.serial}  {each.revoked_at:%Y-%m-%d %H:%M}  {each.reason}"
        for each in item.entries[:MAX_SHOWN_ENTRIES]
    ]
    if (rest := len(item.entries) - MAX_SHOWN_ENTRIES) > 0:
        lines.append(f"  and {rest} more (--json has them all)")
    return lines


def _live_lines(item: LiveSummary) -> list[str]:
    asked = f" (asked for {item.server_name})" if item.server_name else ""
    lines = [f"{item.address}{asked}"]
    for each in item.handshakes:
        lines += [f"  {line}" for line in _handshake_lines(each, item.identity)]
    lines.append(f"  signed by {item.signed_by or 'nobody known here (give authorities with --ca)'}")
    for number, certificate in enumerate(item.chain, 1):
        first, *rest = _certificate_lines(certificate)
        lines += [f"  {number}. {first}", *(f"   {line}" for line in rest)]
    return lines + [f"  {line}" for each in item.problems for line in finding_lines(each)]


def _handshake_lines(each: HandshakeSummary, identity: str) -> list[str]:
    if not each.cipher:
        return [f"{each.version}   not spoken: {each.problem}"]
    parts = [each.cipher, each.group, f"ALPN {each.alpn}" if each.alpn else ""]
    lines = [f"{each.version}   {', '.join(filter(None, parts))}"]
    if not each.client_certificate:
        return [*lines, "          asks for no client certificate"]
    who = f"shown {identity}" if identity else "shown none"
    lines.append(f"          asks for a client certificate; {who}: {each.verdict or f'refused: {each.problem}'}")
    if each.issuers:
        lines.append(f"          takes those of {'; '.join(each.issuers)}")
    return lines


def finding_lines(finding: Finding) -> list[str]:
    """The lines of one finding."""
    lines = [f"{finding.severity}: {finding.path}: {finding.what} [{finding.code}]"]
    if finding.why:
        lines.append(f"  why: {finding.why}")
    if finding.remedy:
        lines.append(f"  do:  {finding.remedy}")
    return lines
