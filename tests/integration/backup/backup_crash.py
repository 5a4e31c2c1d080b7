"""Kills backups and restorations at one step after the other, and reports what is left.

    python backup_crash.py DIRECTORY create|restore|replace EVERY

Every EVERY-th of the steps (:data:`tests.crash_injection.STEPS`) gets SIGKILL right before it, and so do
the last ones, in which a home is moved into its place. Prints one JSON object per crash. DIRECTORY contains
a home, its ``backup`` and the key that opens it. Used by test_backup_crash.py.
"""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from sluice.cli.backup.checks import check_home
from sluice.cli.backup.creation import create
from sluice.cli.backup.encryption import Keys, read_identities
from sluice.cli.backup.extraction import extract
from sluice.cli.backup.restoration import Wish, restore
from sluice.core.clock import utc_now
from sluice.core.home import Home
from sluice.pki.config import PkiConfig
from tests.crash_injection import is_step, killed_before

LAST = 8


def quiet(_done: int, _total: int, _path: str) -> None:
    """Report no progress."""


def steps_of(operation: Callable[[], object]) -> int:
    """Run the operation; returns how many steps it has."""
    counting, seen = True, itertools.count()

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if counting and is_step(event, arguments):
            next(seen)

    sys.addaudithook(hook)
    operation()
    counting = False
    return next(seen)


class Crashes:
    """The operations ``create``, ``restore`` and ``replace`` in one directory."""

    def __init__(self, root: Path) -> None:
        self.root, self.home, self.target = root, Home.at(root / "home"), Home.at(root / "target")
        self.keys = Keys(identities=read_identities(root / "key.txt"))

    def create(self) -> None:
        """Create a backup in the file ``made``."""
        recipients = [each.to_public() for each in self.keys.identities]
        create(
            self.home, self.root / "made", "1", (), recipients=recipients, passphrase="", clock=utc_now, progress=quiet
        )

    def restore(self) -> None:
        """Restore the backup to the target, which is absent or holds another home."""
        wish = Wish(accept_lost=True, replace=True)
        restore(
            self.root / "backup",
            self.keys,
            self.target,
            wish,
            configure=lambda _: PkiConfig(),
            clock=utc_now,
            progress=quiet,
        )

    def prepare(self, verb: str) -> None:
        """Reset the directory to its state before each crash."""
        (self.root / "made").unlink(missing_ok=True)
        shutil.rmtree(self.target.root, ignore_errors=True)
        for aside in self.root.glob("target.replaced-*"):
            shutil.rmtree(aside)
        if verb == "replace":
            shutil.copytree(self.home.root, self.target.root, symlinks=True)
            (self.target.root / "mine").touch()

    def state(self) -> str:
        """Return the state that an observer finds now; fails if it is neither the old nor the new state."""
        if (self.root / "made").exists():
            extract(self.root / "made", self.keys, self.root, wanted=lambda _: False, progress=quiet)
            return "made"
        if not self.target.root.exists():
            return "absent"
        check_home(self.target)
        if (self.target.root / "mine").exists():
            return "old"
        assert not (self.target.root / ".restoring").exists()
        return "new"


def main(root: Path, verb: str, every: int) -> None:
    """Crash at each chosen step, and then run the operation to its end if it had not taken effect."""
    crashes = Crashes(root)
    operation = crashes.create if verb == "create" else crashes.restore
    crashes.prepare(verb)
    whole = steps_of(operation)
    for fatal in sorted({*range(1, whole, every), *range(max(1, whole - LAST), whole + 1)}):
        crashes.prepare(verb)
        if not killed_before(fatal, operation):
            continue  # names are random, and so is the number of steps by one or two
        found = crashes.state()
        kept = len(list(root.glob("**/mine")))
        if found in {"absent", "old"}:
            operation()
        left = [path.name for path in root.rglob("*.tmp")]
        sys.stdout.write(
            json.dumps({"step": fatal, "found": found, "then": crashes.state(), "kept": kept, "left": left}) + "\n"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
