"""The cost of storing identities: issuing 10,000 into a store, compared with key generation and signing alone.

The peer runs in the same process. For each entry of the same inventory it generates a key, signs a leaf with the
entry's names by the same authority, and discards both. Ours also checks the existing identities and ends with a store
flushed to disk. The ratio is the fraction of the peer's rate that remains. The runs alternate, and figures are medians.
Memory is the growth of the resident set over our whole run.
"""

from __future__ import annotations

import datetime as dt
import gc
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.report import Result, arguments, emit, progress, spread
from sluice.pki import PkiConfig
from sluice.pki.authorities import Authority, AuthorityStore, sign_leaf
from sluice.pki.identities import IdentityStore
from sluice.pki.issuing import Action, DatabaseDestination, IssuingEngine, check_all, issue_all, parse_inventory
from sluice.pki.x509 import AuthorityKind, generate_key

BAR = 0.8
FLAT_MIB = 16.0
"""The growth of the resident set up to which a run counts as flat. The leaves themselves have 20 MiB."""
INVENTORY = """
[[identity]]
id = "taskmanager/tm-{{n}}"
dns = ["tm-{{n}}.cluster.example"]
ips = ["10.0.0.1"]
count = {count}
"""


def now() -> dt.datetime:
    """Return the current time in UTC."""
    return dt.datetime.now(dt.UTC)


def alone(authority: Authority, inventory: bytes) -> tuple[float, float]:
    """Generate keys and sign leaves without storing them; returns (seconds, CPU seconds)."""
    gc.collect()
    started, cpu = time.perf_counter(), time.process_time()
    for request in parse_inventory(inventory, PkiConfig()):
        key = generate_key()
        sign_leaf(
            authority, key.public_key(), request.names, request.profile, now=now(), backdate=dt.timedelta(minutes=5)
        )
    return time.perf_counter() - started, time.process_time() - cpu


def stored(file: Path, pki: Path, inventory: bytes, action: Action) -> tuple[float, float, float]:
    """Do ``action`` for each identity of ``inventory`` in ``file``; returns (seconds, CPU seconds, MiB of growth)."""
    gc.collect()
    process = psutil.Process()
    before = peak = process.memory_info().rss
    started, cpu = time.perf_counter(), time.process_time()
    requests = parse_inventory(inventory, PkiConfig())
    with IdentityStore(file, create=True) as store:
        destination, engine = DatabaseDestination(store), IssuingEngine(pki, PkiConfig(), clock=now, read_once=True)
        check_all(requests.samples(), destination, engine)
        for number, outcome in enumerate(issue_all(requests, destination, engine)):
            if outcome.action is not action:
                raise SystemExit(f"{outcome} where {action} was expected")
            if number % 1000 == 0:
                peak = max(peak, process.memory_info().rss)
        store.commit()
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    return seconds, cpu, (max(peak, process.memory_info().rss) - before) / (1 << 20)


def main() -> int:
    """Measure and report."""
    options = arguments(__doc__)
    rounds = 5 if options.quick else 15
    count = 10_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pki = folder / "pki"
        authorities = AuthorityStore(pki)
        authorities.ensure(PkiConfig(), now())
        internal = authorities.load(AuthorityKind.INTERNAL)
        inventory = INVENTORY.format(count=count).encode()
        few = INVENTORY.format(count=500).encode()
        alone(internal, few)
        stored(folder / "warm", pki, few, Action.ISSUED)
        ours, theirs = [], []
        for number in range(1, rounds + 1):
            progress(f"round {number} of {rounds}")
            theirs.append(alone(internal, inventory))
            ours.append(stored(folder / str(number), pki, inventory, Action.ISSUED))
        progress("one more run, in which no identity is due for renewal")
        again, *_ = stored(folder / "1", pki, inventory, Action.KEPT)
    growth = max(run[2] for run in ours)
    figures = {"leaves_in_one_run": float(count)}
    for label, runs in (("store", [run[0] for run in ours]), ("keygen_and_signing_alone", [run[0] for run in theirs])):
        for statistic, value in spread([count / seconds for seconds in runs]).items():
            figures[f"{label}_{statistic}_leaves_per_s"] = value
    figures |= {"nothing_due_leaves_per_s": count / again, "resident_growth_mib": growth}
    ratio = statistics.median(other[0] / mine[0] for mine, other in zip(ours, theirs, strict=True))
    # CPU time is steadier than wall time if there is other load on the machine.
    figures["cpu_ratio"] = statistics.median(other[1] / mine[1] for mine, other in zip(ours, theirs, strict=True))
    goal = (
        f"issuing {count} leaves into a store at {BAR:.0%} or more of the rate of keygen plus signing alone, "
        f"with at most {FLAT_MIB:.0f} MiB more memory"
    )
    holds = ratio >= BAR and growth <= FLAT_MIB
    return emit(Result("issuance", figures, ratio, goal, BAR, holds), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
