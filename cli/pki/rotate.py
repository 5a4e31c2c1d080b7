"""``sluice pki rotate``: replacing the internal, edge or root authority of a running cluster, phase by phase."""

from __future__ import annotations

import contextlib
import getpass
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from sluice.cli import audit_records
from sluice.cli.cluster import renew_superseded
from sluice.cli.config import Configuration
from sluice.cli.options import DEFAULT_HOME, ConfigOption, HomeOption, JsonOption, load_configuration
from sluice.cli.pki.arguments import KeyOption, identity_argument, keys_argument, print_json
from sluice.cli.progress import Bar, bar
from sluice.core import Home
from sluice.pki.authorities import AuthorityStore, Laggard, Phase, Rotation, TrustHolder, TrustStore, bundle_file
from sluice.pki.rotation import Patience, Rotator, no_patience
from sluice.pki.x509 import ISSUING, AuthorityKind, key_id, read_passphrase

LOOK_AGAIN_SECONDS = 0.5
FOLLOW_SECONDS = 15.0
"""How long the last step waits for processes to drop the old trust. They check every second; those on other machines
report within four."""
MAX_TOLD = 20

app = typer.Typer(
    invoke_without_command=True,
    rich_markup_mode=None,
    help="Replace an authority without stopping anything: A, A+B, B+A, B; the first one signs, all are trusted.\n\n"
    "Each step is refused while any peer is out of date. A rotation of the root replaces all three authorities.",
)

KindArgument = Annotated[AuthorityKind, typer.Argument(help="internal, edge, or root (then all three).")]
WaitOption = Annotated[
    float,
    typer.Option("--wait", min=0, metavar="SECONDS", help="Wait for out-of-date peers instead of refusing at once."),
]
ForceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--force",
        metavar="IDENTITY",
        help="Do not wait for ROLE/NAME or spiffe:// ID, which is gone for good; repeatable.",
    ),
]
KeepKeyOption = Annotated[
    bool, typer.Option("--keep-key", help="Move the retired key to pki/retired instead of destroying it.")
]
RootPassphraseOption = Annotated[
    Path | None,
    typer.Option(help="File with the passphrase of the root's key, present or new (mode 0600); -: ask."),
]


def mount(parent: typer.Typer) -> None:
    """Add the verbs to ``sluice pki``."""
    parent.add_typer(app, name="rotate")


class Waiting:
    """Waits for lagging processes until the deadline: with a bar on a terminal, else a line after each change."""

    def __init__(self, seconds: float, console: Console, shown: Bar) -> None:
        self._deadline = time.monotonic() + seconds
        self._console, self._shown = console, shown
        self._told: tuple[str, ...] = ()
        self._most = 0

    def __call__(self, laggards: Sequence[Laggard]) -> bool:
        if time.monotonic() >= self._deadline:
            return False
        lines = tuple(str(each) for each in laggards)
        self._most = max(self._most, len(lines))
        self._shown.show(self._most - len(lines), self._most, lines[0])
        if lines != self._told and not self._console.is_terminal:
            typer.echo(f"waiting for {len(lines)}, such as {lines[0]}", err=True)
        self._told = lines
        time.sleep(LOOK_AGAIN_SECONDS)
        return True


@contextlib.contextmanager
def _patience(seconds: float) -> Iterator[tuple[Patience, Patience]]:
    """The waits of a step, and of the last one, when processes drop the old trust."""
    console = Console(stderr=True)
    with bar("followed", console) as shown:
        last = Waiting(max(seconds, FOLLOW_SECONDS), console, shown)
        yield (Waiting(seconds, console, shown) if seconds > 0 else no_patience), last


def _rotator(home: Home, configuration: Configuration) -> Rotator:
    return Rotator(
        home,
        configuration.pki,
        renew=lambda: renew_superseded(home, configuration),
        report=lambda line: typer.echo(line, file=sys.stderr),
    )


@app.callback()
def rotate(
    context: typer.Context,
    status: Annotated[
        bool, typer.Option("--status", help="Show the phase, and which authorities each process trusts and presents.")
    ] = False,
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replace an authority without stopping anything."""
    if context.invoked_subcommand is not None:
        return
    if not status:
        typer.echo(context.get_help())
        raise typer.Exit(2)
    located, configuration = load_configuration(home, config)
    document = _status(located, _rotator(located, configuration))
    if as_json:
        print_json(document)
    else:
        _print_status(document)


@app.command(epilog="Example: sluice pki rotate prepare internal --wait 30")
def prepare(
    kind: KindArgument,
    wait: WaitOption = 0.0,
    root_passphrase_file: RootPassphraseOption = None,
    key: KeyOption = None,
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """A -> A+B: create the new authority and distribute trust in it; the old one still signs.

    Its key is made in the token that has the old one, or in a file; with --key in that token.
    """
    places = keys_argument(key, tuple(AuthorityKind) if kind is AuthorityKind.ROOT else (kind,))
    passphrase = None
    if root_passphrase_file is not None:
        passphrase = read_passphrase(root_passphrase_file, getpass.getpass, new=kind is AuthorityKind.ROOT)
    with _step("prepare", kind, wait, None, home, config, as_json=as_json) as step:
        step.rotator.prepare(kind, root_passphrase=passphrase, patience=step.patience, places=places)


@app.command(epilog="Example: sluice pki rotate activate internal --wait 30")
def activate(
    kind: KindArgument,
    wait: WaitOption = 0.0,
    force: ForceOption = None,
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """A+B -> B+A: the new authority signs, and identities are renewed. Refused while any process does not trust it."""
    with _step("activate", kind, wait, force, home, config, as_json=as_json) as step:
        step.rotator.activate(kind, without=step.without, patience=step.patience)


@app.command(epilog="Example: sluice pki rotate finish internal --wait 60")
def finish(
    kind: KindArgument,
    wait: WaitOption = 0.0,
    force: ForceOption = None,
    keep_key: KeepKeyOption = False,
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """B+A -> B: the old authority is no longer trusted. Refused while any process has a certificate of it."""
    with _step("finish", kind, wait, force, home, config, as_json=as_json) as step:
        step.kept = step.rotator.finish(
            kind, without=step.without, patience=step.patience, last_patience=step.last_patience, retire=keep_key
        )


@app.command(epilog="Example: sluice pki rotate abort internal --wait 60")
def abort(
    kind: KindArgument,
    wait: WaitOption = 0.0,
    force: ForceOption = None,
    keep_key: KeepKeyOption = False,
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Back to A: the old authority signs again, and the new one is removed when no process has a certificate of it.

    No longer possible once `finish` has withdrawn the trust in the old one.
    """
    with _step("abort", kind, wait, force, home, config, as_json=as_json) as step:
        step.kept = step.rotator.abort(
            kind, without=step.without, patience=step.patience, last_patience=step.last_patience, retire=keep_key
        )


@dataclass
class _Step:
    """One step of a rotation: its arguments, and the keys that it kept."""

    rotator: Rotator
    without: list[str]
    patience: Patience
    last_patience: Patience
    kept: Sequence[Path] = ()


@contextlib.contextmanager
def _step(
    name: str,
    kind: AuthorityKind,
    wait: float,
    force: list[str] | None,
    home: Path,
    config: Path | None,
    *,
    as_json: bool,
) -> Iterator[_Step]:
    """Prepare a step; after it, record it and print the state of the rotation."""
    located, configuration = load_configuration(home, config)
    rotator = _rotator(located, configuration)
    with _patience(wait) as (patience, last_patience):
        step = _Step(rotator, _without(force, configuration), patience, last_patience)
        yield step
    _record(located, name, kind, force)
    _tell(rotator, step.kept, as_json=as_json)


def _record(home: Home, step: str, kind: AuthorityKind, without: Sequence[str] | None = None) -> None:
    audit_records.record(home, f"rotation.{step}", {"authority": kind, "without": " ".join(without or ())})


def _without(force: list[str] | None, configuration: Configuration) -> list[str]:
    """Parse identities, or places from ``--status`` for an unknown identity."""
    domain = configuration.pki.trust_domain
    return [name if name.count("/") > 1 else str(identity_argument(name, domain)) for name in force or ()]


def _tell(rotator: Rotator, kept: Sequence[Path] = (), *, as_json: bool) -> None:
    rotation, phase = rotator.state()
    waiting = rotator.waiting_for()
    if as_json:
        print_json(
            {"phase": phase, "kept": [str(path) for path in kept], "waiting_for": [str(each) for each in waiting]}
        )
        return
    if rotation is None:
        typer.echo("done: one authority signs, and it alone is trusted")
    else:
        typer.echo(f"the {rotation.subject} authority is in phase {phase}")
    for path in kept:
        typer.echo(f"kept {path}")
    _print_waiting([str(each) for each in waiting])


def _status(home: Home, rotator: Rotator) -> dict[str, Any]:
    rotation, phase = rotator.state()
    trust = TrustStore(home.pki)
    sides = _sides(home)
    generations = _labels(home, rotation)
    waiting = rotator.waiting_for()
    by_holder = {each.holder: each.why for each in waiting}
    return {
        "rotating": None if rotation is None else rotation.subject,
        "phase": phase,
        "started_at": None if rotation is None else rotation.started_at,
        "trusted": {
            kind: [{"key": key_id(anchor), "generation": generations[key_id(anchor)]} for anchor in trust.anchors(kind)]
            for kind in sides
        },
        "bundles": {kind: str(bundle_file(home.pki, kind)) for kind in sides},
        "holders": [_describe(holder, generations, by_holder.get(holder, "")) for holder in rotator.holders()],
        "waiting_for": [str(each) for each in waiting],
    }


def _sides(home: Home) -> list[AuthorityKind]:
    """The sides that this home has; all for an empty home, so that the first one is reported as missing."""
    authorities = AuthorityStore(home.pki)
    return [kind for kind in ISSUING if authorities.exists(kind)] or list(ISSUING)


def _labels(home: Home, rotation: Rotation | None) -> dict[str, str]:
    """The label of each key: A and B of the rotating side, otherwise A."""
    trust = TrustStore(home.pki)
    labels = {}
    for kind in _sides(home):
        for anchor in trust.anchors(kind):
            labels[key_id(anchor)] = f"{kind} A"
        if rotation is not None and (both := rotation.generations.get(kind)) is not None:
            labels |= {both.old: f"{kind} A", both.new: f"{kind} B"}
    return labels


def _describe(holder: TrustHolder, labels: dict[str, str], why: str) -> dict[str, Any]:
    return {
        "source": holder.source,
        "identity": holder.identity,
        "program": holder.program,
        "pid": holder.pid,
        "place": holder.place,
        "presents": labels.get(holder.issuer, "unknown") if holder.issuer else "",
        "usable": holder.usable,
        "trusts": [labels.get(anchor, "unknown") for anchor in holder.anchors],
        "crls": {labels.get(issuer, "unknown"): number for issuer, number in holder.crls},
        "problem": holder.problem,
        "waits_for": why,
    }


def _print_status(document: dict[str, Any]) -> None:
    if document["phase"] is Phase.STEADY:
        typer.echo("no rotation is under way")
    else:
        typer.echo(f"the {document['rotating']} authority is in phase {document['phase']}")
    for holder in document["holders"]:
        who = "files" if holder["source"] == "files" else f"{holder['program']} {holder['pid'] or ''}"
        if holder["source"] == "follower":
            who = f"{who} at {holder['place']}".strip()
        state = holder["problem"] or f"presents {holder['presents']}, trusts {', '.join(holder['trusts'])}"
        lists = "".join(f", {name} list {number}" for name, number in holder["crls"].items())
        expired = "" if holder["usable"] else " (expired)"
        behind = f"  <- {holder['waits_for']}" if holder["waits_for"] and not holder["problem"] else ""
        typer.echo(f"  {holder['identity']:<56} {who:<22} {state}{expired}{lists}{behind}")
    _print_waiting(document["waiting_for"])


def _print_waiting(lines: list[str]) -> None:
    if lines:
        typer.echo(f"the next step waits for {len(lines)}:")
    for line in lines[:MAX_TOLD]:
        typer.echo(f"  {line}")
    if len(lines) > MAX_TOLD:
        typer.echo(f"  and {len(lines) - MAX_TOLD} more")
