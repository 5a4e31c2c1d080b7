"""``sluice backup create``: read a home, and write its backup."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pyrage

from sluice.cli.backup.archive import ArchiveStream, Progress
from sluice.cli.backup.encryption import HashingWriter, encrypt
from sluice.cli.backup.errors import BackupFailed
from sluice.cli.backup.home_files import home_files
from sluice.cli.backup.manifest import Manifest, Member
from sluice.cli.config import Configuration
from sluice.core import SECRET_MODE, Clock, Home, StoreError, staged_name, sync_directory
from sluice.pki.authorities import AuthorityStore, trust_domain_of
from sluice.pki.x509 import AuthorityKind

ID_BYTES = 8
ALWAYS_LEFT_OUT = (
    "certificates and keys of processes: `sluice up` makes new ones, other machines join again",
    "sessions, access tokens and join tokens",
    "checkpoints, savepoints, shuffle data, and logs of jobs and processes",
)


@dataclass(frozen=True, slots=True)
class Created:
    """The result: a written backup; ``sha256`` is of the file."""

    manifest: Manifest
    sha256: str
    size: int


def new_backup_id() -> str:
    """A name for a backup."""
    return secrets.token_hex(ID_BYTES)


def left_out(home: Home, configuration: Configuration, config_file: Path | None) -> tuple[str, ...]:
    """Descriptions of what belongs to the cluster of ``home`` but is not in its backup."""
    found = list(ALWAYS_LEFT_OUT)
    ha = configuration.ha
    if ha.mode == "zookeeper":
        found.append(
            f"jobs, their results and secrets: they are in ZooKeeper below {ha.zookeeper_root}, and in {ha.storage}"
        )
    elif ha.mode == "kubernetes":
        found.append(
            f"jobs, their results and secrets: they are in a ConfigMap of cluster {ha.cluster!r}, and in {ha.storage}"
        )
    elif ha.storage:
        found.append(f"what jobs were submitted with, results, values of secrets: they are in {ha.storage}")
    outside = {
        "the configuration file": config_file,
        "the keys of secrets": Path(configuration.secrets.keys) if configuration.secrets.keys else None,
        "the policy": Path(configuration.gateway.policy_file) if configuration.gateway.policy_file else None,
    }
    for what, path in outside.items():
        if path is not None and not path.expanduser().absolute().is_relative_to(home.root):
            found.append(f"{what}, in {path}: back it up yourself")
    authorities = AuthorityStore(home.pki)
    away = [kind for kind in AuthorityKind if authorities.exists(kind) and not authorities.has_key(kind)]
    found += [f"the key of the {kind} authority, which is kept elsewhere" for kind in away]
    in_token = [kind for kind in AuthorityKind if authorities.in_token(kind)]
    found += [
        f"the key of the {kind} authority, which is in {authorities.reference(kind).name} and does not leave it: back "
        "the token up, or be ready to replace the authority"
        for kind in in_token
    ]
    return tuple(found)


def create(
    home: Home,
    target: Path,
    identifier: str,
    outside: tuple[str, ...],
    *,
    recipients: Sequence[pyrage.x25519.Recipient],
    passphrase: str,
    clock: Clock,
    progress: Progress,
) -> Created:
    """Write the backup ``identifier`` of ``home`` to ``target``: all of it, or no file.

    Raises :class:`BackupFailed` or ``StoreError``.
    """
    if target.absolute().resolve().is_relative_to(home.root.resolve()):
        raise BackupFailed(
            f"{target} is in the home that it is to be a backup of", "write it to another disk or machine"
        )
    if target.exists() or target.is_symlink():
        raise BackupFailed(f"there is a file {target}", "backups are never overwritten: choose another name")
    temporary = target.with_name(staged_name(target.name))
    try:
        descriptor = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, SECRET_MODE
        )
    except OSError as error:
        raise BackupFailed(
            f"cannot write {target}: {error.strerror}", "check the directory and its permissions"
        ) from error
    try:
        created = clock()  # before reading: later changes may be missing
        with os.fdopen(descriptor, "wb") as file, home_files(home) as contents:
            if not contents:
                raise BackupFailed(
                    f"there is nothing to back up in {home.root}", "is it the home of a cluster? see --home"
                )
            made: list[Manifest] = []

            def finish(members: tuple[Member, ...]) -> Manifest:
                made.append(
                    Manifest(
                        id=identifier,
                        created=created,
                        product=version("sluice"),
                        trust_domain=_trust_domain(home),
                        left_out=outside,
                        members=members,
                    )
                )
                return made[0]

            writer = HashingWriter(file)
            encrypt(ArchiveStream(contents, finish, progress), writer, recipients, passphrase)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        _appear(temporary, target)
    except OSError as error:
        raise BackupFailed(
            f"cannot write {target}: {error.strerror or error}", "check the space on the disk"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    return Created(made[0], writer.sha256, size)


def _appear(temporary: Path, target: Path) -> None:
    """Give the file its name, unless another file has it."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        raise BackupFailed(f"there is a file {target}", "backups are never overwritten: choose another name") from None
    except OSError:  # a file system without links
        temporary.rename(target)
    sync_directory(target.parent)


def _trust_domain(home: Home) -> str:
    authorities = AuthorityStore(home.pki)
    for kind in (AuthorityKind.INTERNAL, AuthorityKind.EDGE, AuthorityKind.ROOT):
        if authorities.exists(kind):
            with contextlib.suppress(StoreError):
                return trust_domain_of(authorities.certificate(kind))
    return ""
