"""Kills the ordering of a certificate at one step after the other, and reports what is left.

    python acme_crash.py DIRECTORY

The process gets SIGKILL right before a step (:data:`tests.crash_injection.STEPS`). Prints one JSON object
per crash. Used by test_acme_crash.py.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import sys
from pathlib import Path

from sluice.core.home import Home
from sluice.gateway.acme.agent import lifetime_in_use
from sluice.gateway.acme.store import AcmeStore, OrderRecord
from tests.crash_injection import killed_before
from tests.public_authority import DAY, Issued, PublicAuthority

NAME = "sluice.example.com"
SERVER = "https://acme.test/dir"


def order(store: AcmeStore, issued: Issued) -> None:
    """Write everything that one order writes, and put its certificate in use."""
    with store.ordering():
        store.account_key(SERVER)
        store.pending_key("ecdsa-p256")
        store.save_order(OrderRecord(directory=SERVER, url="u", names=(NAME,), key_type="ecdsa-p256", csr=""))
        store.activate(store.stage(issued.chain_pem, issued.key))


def crash(directory: Path, fatal: int) -> dict[str, object]:
    """Crash an order before its ``fatal``-th step; returns the state then and after the next order."""
    store, now = AcmeStore(Home.at(directory)), dt.datetime.now(dt.UTC)
    authority = PublicAuthority(now - DAY)
    old, new, next_one = (authority.issue(NAME) for _ in range(3))
    order(store, old)
    account = store.account_key(SERVER)
    was_killed = killed_before(fatal, lambda: order(store, new))
    found = lifetime_in_use(Home.at(directory), (NAME,), now)
    same_account = store.account_key(SERVER) == account or (
        store.account_key(SERVER).public_key() == account.public_key()
    )
    modes = {
        f"{each.stat().st_mode & 0o077:o}" for each in store.directory.rglob("*.pem") if each.name != "fullchain.pem"
    }
    order(store, next_one)
    after = lifetime_in_use(Home.at(directory), (NAME,), now)
    serials = {old.leaf.serial_number: "old", new.leaf.serial_number: "new", next_one.leaf.serial_number: "next"}
    return {
        "killed": was_killed,
        "in_use": "" if found is None else serials[found.serial],
        "same_account": same_account,
        "open_to_others": sorted(modes),
        "after": "" if after is None else serials[after.serial],
        "kept": len(list((store.directory / "certificates").iterdir())),
        "pending": (store.directory / "pending").exists(),
    }


def main() -> None:
    """Crash an order at each step, until one is no longer killed."""
    for fatal in itertools.count(1):
        report = crash(Path(sys.argv[1]) / str(fatal), fatal)
        sys.stdout.write(json.dumps(report) + "\n")
        if not report["killed"]:
            return


if __name__ == "__main__":
    main()
