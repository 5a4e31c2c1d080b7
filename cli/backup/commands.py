"""``sluice backup``: copies of a home that are encrypted and can be checked, and the way back."""

from __future__ import annotations

import getpass
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.audit_records import record
from sluice.cli.backup.archive import Progress
from sluice.cli.backup.checks import check_logs
from sluice.cli.backup.creation import create as create_backup, left_out, new_backup_id
from sluice.cli.backup.encryption import Keys, new_identity, read_identities, read_recipients
from sluice.cli.backup.extraction import extract
from sluice.cli.backup.manifest import Manifest
from sluice.cli.backup.restoration import Wish, restore as restore_home
from sluice.cli.config import find_config_file
from sluice.cli.errors import EXIT_NO, CommandError, UsageError
from sluice.cli.options import DEFAULT_HOME, ConfigOption, HomeOption, JsonOption, load_configuration
from sluice.cli.progress import bar
from sluice.core import Home, utc_now, write_secret
from sluice.pki import PkiConfig
from sluice.pki.x509 import read_passphrase

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Back up the home of a cluster, check a backup, and restore one.\n\n"
    "sluice backup create 2026-03-01.backup --passphrase-file ~/passphrase\n\n"
    "sluice backup verify 2026-03-01.backup --passphrase-file ~/passphrase\n\n"
    "sluice backup restore 2026-03-01.backup --passphrase-file ~/passphrase --home .sluice\n\n"
    "A backup has the authorities with their keys, the ledger, revocations, users, API tokens, policy, secrets, jobs "
    "and the audit log. It is made while the cluster runs, and is encrypted as an age file. Whoever opens it has the "
    "cluster's keys.",
)

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The backup.")]
PassphraseOption = Annotated[
    Path | None, typer.Option("--passphrase-file", help="File with the passphrase (mode 0600); -: ask.")
]
IdentityOption = Annotated[
    Path | None, typer.Option("--identity", help="File with the age identity that opens it (mode 0600).")
]
Sha256Option = Annotated[
    str, typer.Option("--sha256", help="What `create` printed: refuse any other file, also one that opens.")
]
_WHAT = "the backup"


@app.command(epilog="Example: sluice backup key --output backup-key.txt")
def key(
    output: Annotated[Path, typer.Option("--output", "-o", help="File for the identity (mode 0600).")],
    as_json: JsonOption = False,
) -> None:
    """Create a key pair: with only the recipient, backups can be made but not opened."""
    if output.exists():
        raise CommandError(f"there is a file {output}", "keys are never overwritten", exit_code=EXIT_NO)
    text, recipient = new_identity()
    write_secret(output, text.encode())
    _tell({"identity": str(output), "recipient": recipient}, [f"recipient {recipient}"], as_json=as_json)


@app.command(epilog="Example: sluice backup create /backups/monday --recipient age1…")
def create(
    file: FileArgument,
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    passphrase_file: PassphraseOption = None,
    recipient: Annotated[
        list[str] | None, typer.Option(help="Recipient (age1…) whose identity opens it; repeatable.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a backup of a home; its cluster may run meanwhile."""
    recipients = read_recipients(recipient or ())
    if not recipients and passphrase_file is None:
        raise UsageError("a backup needs a key", "--passphrase-file FILE (or -), or --recipient age1…")
    passphrase = _passphrase(passphrase_file, new=True)
    located, configuration = load_configuration(home, config)
    outside = left_out(located, configuration, find_config_file(config, located.root))
    identifier = new_backup_id()
    if not located.pki.is_dir():
        raise CommandError(f"there is no home in {located.root}", "see --home", exit_code=EXIT_NO)
    record(located, "backup.begun", {"id": identifier, "file": str(file.absolute())})
    with _progress("backing up") as progress:
        made = create_backup(
            located,
            file,
            identifier,
            outside,
            recipients=recipients,
            passphrase=passphrase,
            clock=utc_now,
            progress=progress,
        )
    record(located, "backup.created", {"id": identifier, "file": str(file.absolute()), "sha256": made.sha256})
    lines = [
        f"wrote {file}: {len(made.manifest.members)} files, {made.size} bytes, backup {made.manifest.id}",
        *(f"not in it: {each}" for each in made.manifest.left_out),
        f"SHA-256 {made.sha256}: keep it elsewhere, for --sha256",
    ]
    _tell(_facts(file, made.manifest) | {"sha256": made.sha256, "bytes": made.size}, lines, as_json=as_json)


@app.command(epilog="Example: sluice backup show /backups/monday --identity backup-key.txt")
def show(
    file: FileArgument,
    passphrase_file: PassphraseOption = None,
    identity: IdentityOption = None,
    files: Annotated[bool, typer.Option("--files", help="List every file in it.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what is in a backup. All of it is decrypted and compared with its manifest, nothing is written."""
    with _progress("reading") as progress:
        manifest = extract(file, _keys(passphrase_file, identity), Path(), wanted=lambda _: False, progress=progress)
    facts = _facts(file, manifest)
    lines = _summary(manifest)
    if files:
        facts["files"] = [{"path": each.path, "size": each.size, "sha256": each.sha256} for each in manifest.members]
        lines += [f"{each.size:>12}  {each.path}" for each in manifest.members]
    _tell(facts, lines, as_json=as_json)


@app.command(epilog="Example: sluice backup verify /backups/monday --identity backup-key.txt")
def verify(
    file: FileArgument,
    passphrase_file: PassphraseOption = None,
    identity: IdentityOption = None,
    sha256: Sha256Option = "",
    as_json: JsonOption = False,
) -> None:
    """Check that a backup opens and is whole, and that the ledger and the audit log in it hold; restore nothing.

    The two logs, without any key, are written to the temporary directory meanwhile. Exit code 1: it is not good.
    """
    keys = _keys(passphrase_file, identity)
    with tempfile.TemporaryDirectory(prefix="sluice-backup-") as place, _progress("verifying") as progress:
        manifest = extract(file, keys, Path(place), wanted=_is_log, progress=progress, sha256=sha256)
        checked = check_logs(Home.at(Path(place)))
    ledger = "none" if checked.ledger is None else str(checked.ledger)
    audit = "none" if checked.audit is None else str(checked.audit.state)
    facts = _facts(file, manifest) | {"ledger": ledger, "audit_log": audit}
    lines = [*_summary(manifest), f"ledger {ledger}", f"audit log {audit}", "the backup is good"]
    _tell(facts, lines, as_json=as_json)


@app.command(
    epilog="Example: sluice backup restore /backups/monday --identity backup-key.txt --revocations /mnt/tm-1/identity"
)
def restore(
    file: FileArgument,
    home: HomeOption = DEFAULT_HOME,
    config: ConfigOption = None,
    passphrase_file: PassphraseOption = None,
    identity: IdentityOption = None,
    revocations: Annotated[
        list[Path] | None,
        typer.Option(
            help="Revocations that were made later: a CRL, an identity directory of another machine, the gateway's "
            "revocations.jsonl, or what is left of the home; repeatable."
        ),
    ] = None,
    accept_lost_revocations: Annotated[
        bool,
        typer.Option(
            "--accept-lost-revocations",
            help="Restore although later revocations may be lost; the command says which.",
        ),
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace an existing home, which is kept beside it.")
    ] = False,
    sha256: Sha256Option = "",
    as_json: JsonOption = False,
) -> None:
    """Restore a backup into an empty or absent home. Everything is restored, or nothing is changed.

    Earlier sessions, access tokens and join tokens are invalid. Earlier certificates are accepted until they expire,
    but not renewed: the processes of this machine get new certificates with `sluice up`, those of others join again.
    """
    wish = Wish(tuple(revocations or ()), accept_lost_revocations, replace, sha256)

    def configure(staged: Home) -> PkiConfig:
        return load_configuration(staged.root, config)[1].pki

    keys = _keys(passphrase_file, identity)
    with _progress("restoring") as progress:
        done = restore_home(file, keys, Home.at(home), wish, configure=configure, clock=utc_now, progress=progress)
    facts = _facts(file, done.manifest) | {
        "home": str(Home.at(home).root),
        "revocations_added": done.added,
        "revocations_uncertain": list(done.uncertain),
        "replaced": "" if done.aside is None else str(done.aside),
        "unusable": list(done.problems),
    }
    lines = [f"restored {Home.at(home).root} as of {done.manifest.created:%Y-%m-%d %H:%M:%S} UTC"]
    lines += [f"added {done.added} revocations that were made later"] if done.added else []
    lines += [f"not used: {each}" for each in done.problems]
    lines += [f"may have been revoked since: {each}" for each in done.uncertain]
    lines += [f"the home of before is {done.aside}"] if done.aside is not None else []
    lines.append("start it with `sluice up`; processes of other machines need new join tokens")
    _tell(facts, lines, as_json=as_json)


def _is_log(path: str) -> bool:
    return path == "pki/ca/ledger.jsonl" or (
        path.startswith("gateway/audit/") and not path.endswith(("/signing-key.pem", "/signing-key.uri"))
    )


def _passphrase(source: Path | None, *, new: bool) -> str:
    if source is None:
        return ""
    try:
        return read_passphrase(source, getpass.getpass, new=new, of=_WHAT).decode()
    except UnicodeDecodeError:
        raise UsageError(f"the passphrase in {source} is not UTF-8") from None


def _keys(passphrase_file: Path | None, identity: Path | None) -> Keys:
    if identity is not None:
        return Keys(identities=read_identities(identity))
    if passphrase_file is None:
        raise UsageError("a backup is opened with its key", "--passphrase-file FILE (or -), or --identity FILE")
    return Keys(passphrase=_passphrase(passphrase_file, new=False))


@contextmanager
def _progress(what: str) -> Iterator[Progress]:
    with bar(what) as shown:
        yield lambda done, total, path: shown.show(done, total or done, path)


def _facts(file: Path, manifest: Manifest) -> dict[str, object]:
    return {
        "file": str(file),
        "id": manifest.id,
        "created": manifest.created.isoformat(timespec="seconds"),
        "version": manifest.product,
        "trust_domain": manifest.trust_domain,
        "members": len(manifest.members),
        "not_included": list(manifest.left_out),
    }


def _summary(manifest: Manifest) -> list[str]:
    size = sum(each.size for each in manifest.members)
    made = f"{manifest.created:%Y-%m-%d %H:%M:%S} UTC by Sluice {manifest.product}"
    files = f"{len(manifest.members)} files, {size} bytes"
    return [
        f"backup {manifest.id} of {manifest.trust_domain or 'a home without authorities'}, made at {made}: {files}",
        *(f"not in it: {each}" for each in manifest.left_out),
    ]


def _tell(facts: dict[str, object], lines: list[str], *, as_json: bool) -> None:
    typer.echo(json.dumps(facts) if as_json else "\n".join(lines))
