"""``sluice audit-log``: verify the audit log, and search it."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from sluice.cli.errors import EXIT_NO, CommandError, RefusedError, UsageError
from sluice.cli.gateway.times import moment
from sluice.cli.options import DEFAULT_HOME, ConfigOption, HomeOption, JsonOption, load_configuration
from sluice.cli.token_uris import key_argument
from sluice.core import REPLACEMENT, Home, printable
from sluice.gateway.audit_log import (
    CHECKPOINT,
    VERIFICATION_KEY,
    AuditLog,
    AuditRecord,
    Filter,
    KeyInToken,
    VerificationKey,
    audit_directory,
    audit_file,
    follow,
    key_place,
    read_records,
    verify_log,
    witness_at,
)

FOLLOW_SECONDS = 0.2
DEFAULT_LINES = 20
MAX_LINES = 100_000

DirectoryOption = Annotated[
    Path | None,
    typer.Option("--directory", help="Directory of another log, or of a copy. Default: the log of the home."),
]

CaOption = Annotated[
    Path | None, typer.Option("--ca", help="Authorities (PEM) of the URL's host. Default: the system's.")
]
TokenFileOption = Annotated[
    Path | None, typer.Option("--token-file", help="File (mode 0600) with a bearer token for the URL.")
]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="The audit log: every decision of the gateway and every administrative act, each line chained to the one "
    "before it, with signed checkpoints.",
)


@app.command(
    epilog="Example: sluice audit-log init --key 'pkcs11:token=sluice?module-path=/usr/lib/softhsm/libsofthsm2.so"
    "&pin-source=file:/etc/sluice/pin'"
)
def init(
    key: Annotated[
        str,
        typer.Option(
            metavar="pkcs11:...",
            help="Token in which the key is made: a PKCS#11 URI (RFC 7512) with module-path and pin-source=file:/FILE.",
        ),
    ],
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Begin the audit log with its key in a token, before anything is recorded in it.

    Without this the log begins by itself, with its key in a file. The key of a log never changes: for another one, stop
    the cluster, and move the log's directory elsewhere.
    """
    located, configuration = load_configuration(home, config)
    place, directory = key_argument(key), audit_directory(located)
    begun = (directory / VERIFICATION_KEY).exists()
    in_token = KeyInToken(place, f"sluice {configuration.pki.trust_domain} audit log")
    with contextlib.closing(AuditLog(audit_file(located), key_in=in_token)):
        found = VerificationKey.read(directory / VERIFICATION_KEY)
    if key_place(directory) != place:
        raise RefusedError(
            f"the audit log in {directory} has begun, and its key is not in {place.name}",
            "the key of a log never changes; stop the cluster, move the directory elsewhere, and begin another log",
        )
    if as_json:
        typer.echo(json.dumps({"begun": not begun, "key_id": found.id, "token": place.token or place.serial}))
    else:
        typer.echo(f"{directory} {'is there' if begun else 'begins'}, signed by key {found.id} in {place.name}")


@app.command(
    epilog="Examples: sluice audit-log verify; sluice audit-log verify --key-id 0f… --checkpoint kept.json. "
    "Exit code 1: something was removed, changed or forged, and the message says where."
)
def verify(
    home: HomeOption = DEFAULT_HOME,
    directory: DirectoryOption = None,
    key: Annotated[
        Path | None, typer.Option(help="Verify with this public key (PEM) instead of the one in the log's directory.")
    ] = None,
    key_id: Annotated[str, typer.Option(help="Fail unless the key has this id (see `sluice audit-log key`).")] = "",
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE|URL",
            help="A checkpoint that was kept elsewhere; fail unless it is in the log, whose end was cut off otherwise. "
            "Repeatable.",
        ),
    ] = None,
    ca: CaOption = None,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Verify every line, signature and segment of the log.

    Whoever can write the log's files as the cluster's own user can also sign with its key. What that user
    cannot change is what you keep elsewhere: the key's id, and a checkpoint now and then.
    """
    place = _directory(home, directory)
    kept = [_kept(each, ca, token_file) for each in checkpoint or ()]
    proved = verify_log(place, key=key, key_id=key_id, checkpoints=kept)
    last = proved.checkpoint
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "verified": True,
                    "lines": proved.state.count,
                    "digest": proved.state.digest,
                    "unsigned": proved.unsigned,
                    "segments": proved.segments,
                    "requests": proved.requests,
                    "key_id": proved.key,
                    "checkpoint": None if last is None else {"line": last.sequence, "time": last.time},
                    "incomplete_bytes": proved.cut_short,
                }
            )
        )
        return
    typer.echo(f"{proved.state.count} lines in {proved.segments + 1} segments are valid, signed with key {proved.key}")
    if proved.requests:
        typer.echo(f"{proved.requests} requests of the proxy's access log are complete")
    if last is not None:
        typer.echo(f"last checkpoint: line {last.sequence}, {last.time}; {proved.unsigned} lines after it")
    if proved.cut_short:
        typer.echo(
            f"{proved.cut_short} bytes at the end are an incomplete line: it is being written, or a crash left it"
        )


@app.command(epilog="Example: sluice audit-log key > audit-key.pem, kept where the cluster's user cannot write.")
def key(home: HomeOption = DEFAULT_HOME, directory: DirectoryOption = None, as_json: JsonOption = False) -> None:
    """Print the public key that verifies checkpoints, and its id."""
    path = _directory(home, directory) / VERIFICATION_KEY
    found = VerificationKey.read(path)
    if as_json:
        typer.echo(json.dumps({"key_id": found.id, "file": str(path), "pem": path.read_text()}))
    else:
        typer.echo(f"key id {found.id}", err=True)
        typer.echo(path.read_text(), nl=False)


@app.command(
    epilog="Examples: sluice audit-log checkpoint > kept.json; sluice audit-log checkpoint --to "
    "https://witness.example.com/sluice.json --token-file witness.token; then `verify --checkpoint` any time. "
    "Exit code 1: what is kept there is not in this log."
)
def checkpoint(
    home: HomeOption = DEFAULT_HOME,
    directory: DirectoryOption = None,
    to: Annotated[
        str,
        typer.Option(
            metavar="FILE|URL",
            help="Keep it there instead: a file, or an https URL that takes PUT. What is there is replaced only if "
            "this log still contains it.",
        ),
    ] = "",
    ca: CaOption = None,
    token_file: TokenFileOption = None,
) -> None:
    """Print the last signed checkpoint, or keep it elsewhere.

    It later proves that no earlier record was changed, and that the end was not cut off before it.
    """
    place = _directory(home, directory)
    if not to:
        verify_log(place)
        typer.echo((place / CHECKPOINT).read_text(), nl=False)
        return
    witness = witness_at(to, ca_file=ca, token_file=token_file)
    earlier = witness.read()
    proved = verify_log(place, checkpoints=() if earlier is None else (earlier,))
    if proved.checkpoint is None:
        raise CommandError(f"the audit log in {place} has no checkpoint yet", exit_code=EXIT_NO)
    witness.write((place / CHECKPOINT).read_bytes())
    typer.echo(f"kept a checkpoint of {proved.checkpoint.sequence} lines at {to}", err=True)


def _kept(place: str, ca: Path | None, token_file: Path | None) -> bytes:
    found = witness_at(place, ca_file=ca, token_file=token_file).read()
    if found is None:
        raise CommandError(f"there is no checkpoint at {place}", exit_code=EXIT_NO)
    return found


@app.command(
    epilog="Examples: sluice audit-log tail -f; sluice audit-log tail --decision deny --since 1h; "
    "sluice audit-log tail --principal ada --operation jobs.* --json"
)
def tail(
    home: HomeOption = DEFAULT_HOME,
    directory: DirectoryOption = None,
    lines: Annotated[
        int,
        typer.Option("--lines", "-n", min=0, max=MAX_LINES, help="Number of records to show, counted from the end."),
    ] = (DEFAULT_LINES),
    keep_following: Annotated[bool, typer.Option("--follow", "-f", help="Keep running and print new records.")] = False,
    principal: Annotated[str, typer.Option(help="Only records of this principal; `*` matches any text.")] = "",
    operation: Annotated[str, typer.Option(help="Only this operation or kind of act; `*` matches any text.")] = "",
    decision: Annotated[str, typer.Option(help="Only this decision: allow or deny.")] = "",
    since: Annotated[str, typer.Option(help="Only records since: 1h, 7d, or a time such as 2026-03-01T12:00.")] = "",
    until: Annotated[str, typer.Option(help="Only records before this time.")] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print records as in the log, one JSON object per line.")
    ] = False,
) -> None:
    """Print the last records, filtered. Each is checked against the hash chain."""
    place = _directory(home, directory)
    if decision not in {"", "allow", "deny"}:
        raise UsageError(f"--decision {decision!r} is neither allow nor deny")
    now = dt.datetime.now(dt.UTC)
    wanted = Filter(principal, operation, decision, moment("--since", since, now), moment("--until", until, now))
    last: deque[AuditRecord] = deque(maxlen=lines)
    if not keep_following:
        enough = lines if wanted == Filter() else None
        last.extend(record for record in read_records(place, last=enough) if wanted.admits(record))
        _print(iter(last), as_json=as_json)
        return
    records = follow(place, wait=_pause)
    for record in records:
        if record is None:
            _print(iter(last), as_json=as_json)
            break
        if wanted.admits(record):
            last.append(record)
    _print((record for record in records if record is not None and wanted.admits(record)), as_json=as_json)


def _pause() -> None:
    sys.stdout.flush()
    time.sleep(FOLLOW_SECONDS)


def _directory(home: Path, directory: Path | None) -> Path:
    return audit_directory(Home.at(home)) if directory is None else directory


def _print(records: Iterator[AuditRecord], *, as_json: bool) -> None:
    for record in records:
        typer.echo(msgspec.json.encode(record).decode() if as_json else describe(record))


def describe(record: AuditRecord) -> str:
    """Describe a record in one line, without control characters in text of callers."""
    when = record.at if isinstance(record.at, str) else record.time
    detail = record.detail if isinstance(record.detail, dict) else {}
    facts = " ".join(f"{name}={value}" for name, value in detail.items())
    match record.event:
        case "decision" | "traffic" | "egress":
            what = f"{record.decision or '-':<5} {record.status or '-'} {record.principal or '-'}"
            text = f"{what} {record.operation or '-'} {record.method} {record.path} from {record.address or '-'}"
            text += f" ({record.reason})" if record.reason else ""
        case "act":
            kind = record.kind if isinstance(record.kind, str) else "-"
            text = f"act   {kind} by {record.principal or '-'} {facts}"
        case "checkpoint":
            text = "checkpoint"
        case _:
            text = f"{record.event}: {record.reason} {facts}"
    return printable(f"{record.number:>8} {when} {text}".rstrip(), REPLACEMENT)
