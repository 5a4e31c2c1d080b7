"""Checks extracted backups: authorities with their keys, the ledger's chain, the audit log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sluice.cli.backup.errors import BackupDamaged
from sluice.core import ChainState, Home, SluiceError
from sluice.gateway.audit_log import Verified, audit_directory, verify_log
from sluice.gateway.credentials import Revocations, TokenStore, UserStore
from sluice.pki.authorities import AuthorityStore
from sluice.pki.ledger import ledger_path, verify_ledger
from sluice.pki.x509 import AuthorityKind


@dataclass(frozen=True, slots=True)
class Checked:
    """The verified states of ledger and audit log; None where there is none."""

    ledger: ChainState | None
    audit: Verified | None


def check_home(home: Home, progress: Callable[[int, int], None] | None = None) -> Checked:
    """Check a home extracted from a backup; raises :class:`BackupDamaged` with the first problem."""
    try:
        authorities = AuthorityStore(home.pki)
        for kind in AuthorityKind:
            if authorities.in_token(kind):  # which need not be here
                authorities.reference(kind)
                authorities.certificate(kind)
            elif authorities.has_key(kind) and not authorities.is_encrypted(kind):
                authorities.load(kind)
            elif authorities.exists(kind):
                authorities.certificate(kind)
        for store in (TokenStore(home), UserStore(home)):
            store.read()
        Revocations.of(home).current()
        return check_logs(home, progress)
    except BackupDamaged:
        raise
    except SluiceError as error:
        raise BackupDamaged(f"the backup does not hold: {error.what}", error.remedy) from error


def check_logs(home: Home, progress: Callable[[int, int], None] | None = None) -> Checked:
    """Check only the ledger and the audit log; raises :class:`BackupDamaged`."""
    try:
        ledger, log = ledger_path(home.pki), audit_directory(home)
        return Checked(
            verify_ledger(ledger) if ledger.exists() else None,
            verify_log(log, progress=progress) if (log / "verification-key.pem").exists() else None,
        )
    except SluiceError as error:
        raise BackupDamaged(f"the backup does not hold: {error.what}", error.remedy) from error
