"""``sluice audit``: examine a live cluster from outside, with real handshakes."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated
from urllib.parse import SplitResult, urlsplit

import typer
from cryptography import x509
from rich.console import Console

from sluice.audit import (
    CHECKS,
    AuditError,
    Check,
    EdgeAccess,
    HomeIdentities,
    InputError,
    Kind,
    Listener,
    Options,
    Report,
    Severity,
    Subject,
    applicable,
    apply_baseline,
    examine,
    find,
    paused,
    process_id,
    read_anchors,
    read_baseline,
    read_targets,
)
from sluice.audit.insider import CHECKS as INSIDE
from sluice.audit.reports import RENDERERS, Format, json_schema, print_report
from sluice.audit.wire import speaks_tls
from sluice.cli.audit.compose import examine_project
from sluice.cli.audit.insider import InsiderOptions, examine_inside
from sluice.cli.audit.record import keep_summary
from sluice.cli.errors import EXIT_NO, UnreachableError, UsageError
from sluice.cli.gateway_options import CaOption, GatewayOptions, ServerOption, TokenOption
from sluice.cli.options import DEFAULT_HOME, ConfigOption, HomeOption, JsonOption, load_configuration
from sluice.cli.progress import bar
from sluice.cli.tables import print_table
from sluice.core import Home, StoreError, write_public
from sluice.gateway import GatewayConfig
from sluice.pki import Channel
from sluice.pki.authorities import TrustStore
from sluice.pki.x509 import AuthorityKind

INSIDER_PANEL = "Audit from inside"
TOKEN_LIFETIME = dt.timedelta(minutes=10)
"""Lifetime of the viewer's token with which the audit tries forbidden operations."""


def audit(
    format_: Annotated[Format, typer.Option("--format", help="Format of the report.")] = Format.TEXT,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write it to this file.")] = None,
    fail_on: Annotated[Severity, typer.Option(help="Exit code 1 with findings of this severity or worse.")] = (
        Severity.LOW
    ),
    patience: Annotated[
        float, typer.Option(min=0.1, max=60, help="Seconds within which a listener must have refused a client.")
    ] = 2.0,
    handshake_limit: Annotated[
        float, typer.Option(min=0.5, max=300, help="Seconds after which a listener must have ended a handshake.")
    ] = 15.0,
    max_leaf_days: Annotated[float, typer.Option(min=0.01, help="Longest lifetime of a listener's certificate.")] = 7.0,
    with_identities: Annotated[
        bool,
        typer.Option(
            help="Have the home's authorities certify identities that are wrong in one way each; "
            "they are logged and expire in minutes."
        ),
    ] = True,
    intrusive: Annotated[
        bool,
        typer.Option(
            "--intrusive", help="Also stop the auth service for some seconds, during which requests are refused."
        ),
    ] = False,
    targets: Annotated[
        Path | None, typer.Option(help="Examine the listeners in this file (TOML) instead of those of a home.")
    ] = None,
    compose: Annotated[
        Path | None,
        typer.Option(
            help="Examine the containers that were started from the compose file in this directory (as root)."
        ),
    ] = None,
    project: Annotated[str, typer.Option(help="With --compose: the project, when several run from there.")] = "",
    baseline: Annotated[
        Path | None, typer.Option(help="Accepted findings (TOML), each with a reason and an end; they do not count.")
    ] = None,
    insider: Annotated[
        bool,
        typer.Option(
            "--insider",
            help="Submit a job that tries what a hostile tenant would, and report what it reached.",
            rich_help_panel=INSIDER_PANEL,
        ),
    ] = False,
    insider_limit: Annotated[
        float,
        typer.Option(
            min=10,
            max=7200,
            help="With --insider: seconds after which the job is cancelled.",
            rich_help_panel=INSIDER_PANEL,
        ),
    ] = 900.0,
    victim: Annotated[
        bool,
        typer.Option(
            help="With --insider: run another, quiet job meanwhile, which the hostile one tries to reach.",
            rich_help_panel=INSIDER_PANEL,
        ),
    ] = True,
    server: ServerOption = None,
    ca: CaOption = None,
    token_file: TokenOption = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of the report.")] = False,
    list_checks: Annotated[bool, typer.Option("--list-checks", help="List the checks, and examine nothing.")] = (False),
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Audit the cluster's listeners: plaintext, handshakes, certificates, and all clients that must be refused.

    With --insider: audit what the code of a job reaches. A job is submitted as by `sluice submit`, with --server, --ca
    and --token-file. It tries to read keys and other jobs' files, to reach processes and sockets, to leave its
    sandbox and to use up the machine. It harms nothing, and tells only the kind of what it could read. Each attempt
    that succeeds is a finding.

    Exit codes: 0 no finding, 1 findings, 2 wrong usage, 3 no cluster to examine, or the hostile job was
    cut short.

    Examples: sluice audit; sluice audit --insider; sluice audit --insider --format html -o insider.html
    """
    if list_checks:
        print_checks(INSIDE if insider else CHECKS)
        return
    if schema:
        typer.echo(json_schema())
        return
    options = Options(
        patience=patience, handshake_limit=handshake_limit, max_leaf_lifetime=dt.timedelta(days=max_leaf_days)
    )
    cut_short = ""
    try:
        if insider:
            inside = examine_inside(
                GatewayOptions(home, server, ca, token_file),
                InsiderOptions(insider_limit, victim, config, compose, project),
            )
            report, cut_short = inside.report, inside.cut_short
        elif compose is not None:
            report = examine_project(compose, project, options)
        else:
            report = _examine(home, config, targets, options, with_identities=with_identities, intrusive=intrusive)
        if baseline is not None:
            report = _apply(baseline, report)
        if targets is None and compose is None and not insider:
            keep_summary(Home.at(home), report)
    except InputError as error:
        raise UsageError(error.what, error.remedy) from error
    except AuditError as error:
        raise UnreachableError(error.what, error.remedy) from error
    write_report(report, Format.JSON if as_json else format_, output)
    if report.failed(fail_on):
        raise typer.Exit(EXIT_NO)
    if cut_short:
        raise UnreachableError(cut_short, "what was not examined proves nothing: see the job's log, and run it again")


def _examine(
    home: Path,
    config: Path | None,
    targets: Path | None,
    options: Options,
    *,
    with_identities: bool,
    intrusive: bool,
) -> Report:
    if targets is not None:
        return examine_shown(str(targets), _targets(targets, options))
    with home_subjects(home, config, options, with_identities=with_identities, intrusive=intrusive) as subjects:
        return examine_shown(f"the cluster in {home}", subjects)


def examine_shown(name: str, subjects: Sequence[Subject]) -> Report:
    """Examine ``subjects`` with a progress bar."""
    with bar("checks") as shown:
        shown.expect(len(applicable(subjects)))
        return examine(name, subjects, progress=lambda result: shown.advance(f"{result.listener}: {result.check}"))


@contextlib.contextmanager
def subjects_of(where: str, options: Options) -> Iterator[list[Subject]]:
    """The subjects of a home, of the URL of an edge, or of a target file."""
    url = urlsplit(where)
    if url.scheme in {"http", "https"}:
        try:
            yield [_edge_at(url, options)]
        except ValueError as error:
            raise UsageError(f"{where} is not an address: {error}", "https://HOST:PORT") from error
    elif Path(where).is_file():
        yield _targets(Path(where), options)
    else:
        with home_subjects(Path(where), None, options, with_identities=True) as subjects:
            yield subjects


def _targets(path: Path, options: Options) -> list[Subject]:
    anchors = read_anchors(path)
    return [Subject(each, options, anchors=anchors.get(each.name, ())) for each in read_targets(path)]


def _edge_at(url: SplitResult, options: Options) -> Subject:
    from sluice.runtime.rest_server import PUBLISHED

    host = url.hostname or ""
    secure = url.scheme == "https"
    listener = Listener(
        name="edge",
        kind=Kind.SERVER if secure else Kind.HTTP,
        channel=Channel.EDGE,
        host=host,
        port=url.port or (443 if secure else 80),
        server_name="" if host.replace(".", "").isdigit() or ":" in host else host,
    )
    return Subject(listener, options, edge=EdgeAccess(operations=PUBLISHED))


@contextlib.contextmanager
def home_subjects(
    home: Path, config: Path | None, options: Options, *, with_identities: bool, intrusive: bool = False
) -> Iterator[list[Subject]]:
    """All listeners of the cluster in ``home``, and the home itself.

    Args:
        home: of a cluster that is up.
        config: its configuration file, if it is not at the default place.
        options: time limits and strictness.
        with_identities: whether the home's authorities certify identities for the audit.
        intrusive: whether the auth service may be paused for some seconds.
    """
    located, configuration = load_configuration(home, config)
    found = find(located, speaks_tls)
    try:
        identities = HomeIdentities(located, configuration.pki) if with_identities else None
    except StoreError as error:
        raise UsageError(error.what, "leave out what needs the authorities' keys: --no-with-identities") from error
    files = Listener(name="home", kind=Kind.HOME, path=str(located.root))
    with edge_access(located, with_token=with_identities) as edge:
        if intrusive and (auth := process_id(located, "auth")) is not None:
            edge = replace(edge, without_auth=partial(paused, auth))  # noqa: PLW2901  the same with additions
        subjects = [
            Subject(listener, options, identities, edge, anchors=anchors_of(located, listener), home=located)
            for listener in found.listeners
        ]
        subjects += [Subject(each, options) for each in shown_by_name(found.listeners, configuration.gateway)]
        yield [*subjects, Subject(files, options, unreadable=found.unreadable)]


def shown_by_name(listeners: Sequence[Listener], config: GatewayConfig) -> Iterator[Listener]:
    """The gateway for browsers that ask for its name, when it has a certificate of another authority.

    That authority has its own rules: its certificate has no SPIFFE ID, and no lifetime of days.
    """
    for each in listeners:
        if config.has_named_certificate and each.channel is Channel.EDGE:
            yield Listener(
                name=f"{each.name}-certificate-file",
                kind=Kind.SERVER,
                host=each.host,
                port=each.port,
                server_name=config.server_names[0],
                foreign=True,
            )


def anchors_of(home: Home, listener: Listener) -> tuple[x509.Certificate, ...]:
    """The authorities that may verify ``listener``: that of its side, whose certificate the home has."""
    kind = AuthorityKind.EDGE if listener.channel is Channel.EDGE else AuthorityKind.INTERNAL
    try:
        return TrustStore(home.pki).anchors(kind)
    except StoreError:
        return ()


@contextlib.contextmanager
def edge_access(home: Home, *, with_token: bool) -> Iterator[EdgeAccess]:
    """The published operations, and a viewer's token that is revoked afterwards."""
    from sluice.cli.published_routes import effective_policy
    from sluice.gateway import AccessRole
    from sluice.gateway.credentials import TokenStore
    from sluice.runtime.rest_server import PUBLISHED

    edge = EdgeAccess(operations=PUBLISHED, ca_file=home.pki / "authorities" / "edge" / "cert.pem")
    if not with_token:
        yield edge
        return
    store = TokenStore(home)
    policy = effective_policy(home)
    beyond = policy.operations - policy.role_grants().get(AccessRole.VIEWER, frozenset())
    try:
        record, token = store.create("audit", AccessRole.VIEWER, TOKEN_LIFETIME)
    except StoreError:  # problems of the store are findings about the home
        yield edge
        return
    try:
        yield replace(edge, weak_token=token, beyond_weak=beyond)
    finally:
        store.revoke(record.id)


def _apply(baseline: Path, report: Report) -> Report:
    today = dt.datetime.now(dt.UTC).date()
    applied = apply_baseline(report, read_baseline(baseline, today), today)
    for line in applied.idle:
        typer.echo(f"{baseline}: {line}; take it out", err=True)
    return applied.report


def write_report(report: Report, format_: Format, output: Path | None) -> None:
    """Write the report to ``output``, or to the screen."""
    if output is not None:
        if not output.parent.is_dir():
            raise UsageError(f"there is no directory {output.parent}", "create it, or choose another --output")
        write_public(output, RENDERERS[format_](report).encode() + b"\n")
    elif format_ is Format.TEXT:
        console = Console()
        print_report(report, console if console.is_terminal else Console(width=140))
    else:
        typer.echo(RENDERERS[format_](report))


def print_checks(checks: Sequence[Check] = CHECKS) -> None:
    """Print the catalogue."""
    rows = [
        (each.id, each.severity, each.title, ", ".join(sorted(each.kinds)), "; ".join(each.references))
        for each in checks
    ]
    print_table(("ID", "SEVERITY", "WHAT MUST BE SO", "ON", "SOURCES"), rows)
