"""Runs one PKI operation repeatedly, killed one step later each time, and reports what it left.

Used by test_crash.py.

    python crash.py DIRECTORY init|issue

The process gets SIGKILL right before a step (:data:`tests.crash_injection.STEPS`). Prints one JSON object
per crash: what a reader finds then, and after the operation is done once more.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import shutil
import sys
from functools import partial
from pathlib import Path

from sluice.core.errors import StoreError
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.config import PkiConfig
from sluice.pki.identities.directory import read_identity
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.profiles import AuthorityKind
from tests.crash_injection import killed_before

IDENTITY = SpiffeId.process("sluice.local", Role.TASKMANAGER, "tm-1")


def leftovers(directory: Path) -> list[str]:
    """Staged files and directories that are still there."""
    return [str(path.relative_to(directory)) for path in directory.rglob("*.tmp")]


def crash_init(directory: Path) -> None:
    """Create authorities in an empty directory, killed at one step after another."""
    for step in itertools.count(1):
        pki = directory / str(step)
        store = AuthorityStore(pki)
        issuer = LocalIssuer(pki, PkiConfig())
        killed = killed_before(step, issuer.ensure_authorities)
        found = {kind: store.load(kind).certificate.serial_number for kind in AuthorityKind if store.exists(kind)}
        made = store.ensure(PkiConfig(), dt.datetime.now(dt.UTC)).made
        kept = all(store.load(kind).certificate.serial_number == serial for kind, serial in found.items())
        issuer.issue_to(pki / "identity", IDENTITY)
        report = {"step": step, "found": len(found), "made": len(made), "kept": kept, "leftovers": leftovers(pki)}
        sys.stdout.write(json.dumps(report) + "\n")
        if not killed:
            return


def crash_issue(directory: Path) -> None:
    """Renew an existing identity, killed at one step after another."""
    issuer = LocalIssuer(directory / "pki", PkiConfig())
    issuer.ensure_authorities()
    identity = directory / "identity"
    for step in itertools.count(1):
        shutil.rmtree(identity, ignore_errors=True)
        issuer.issue_to(identity, IDENTITY)
        before = read_identity(identity)[0].leaf
        killed = killed_before(step, partial(issuer.issue_to, identity, IDENTITY))
        try:
            found = "old" if read_identity(identity)[0].leaf == before else "new"
        except StoreError as error:
            found = error.what
        issuer.issue_to(identity, IDENTITY)
        read_identity(identity)
        sys.stdout.write(json.dumps({"step": step, "found": found, "leftovers": leftovers(directory)}) + "\n")
        if not killed:
            return


if __name__ == "__main__":
    {"init": crash_init, "issue": crash_issue}[sys.argv[2]](Path(sys.argv[1]))
