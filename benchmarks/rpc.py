"""The cost of an RPC call over mutual TLS, compared with unary calls of ``grpc.aio``.

Both use the same certificates and do the same work: a client process sends a heartbeat of a TaskManager
with four slots to a server process. The server decodes it into the same type and answers with a number.
Each caller sends its next call as soon as the previous one is answered. There are 64 callers on one
connection, and 16 on each of 32 connections of 32 identities; for latency, there is one caller on one
connection. Short runs of ours and of the peer alternate. The throughput ratio is the median of the paired
ratios, for one or many connections, whichever is lower. Latencies are from the quietest run, because the
machines are shared. The figures of one caller on each of 32 connections, where nothing can be batched, are
reported as well.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from benchmarks.report import Result, arguments, emit, progress
from benchmarks.worker import Figures, Worker
from sluice.pki import PkiConfig, Role, SpiffeId
from sluice.pki.issuing import LocalIssuer

BAR = 8.0
WORK = "benchmarks.rpc_work"
PEERS = 32
KINDS = ("grpc", "sluice")
LOADS = {
    "one_peer": {"peers": 1, "callers": 64},
    "many_peers": {"peers": PEERS, "callers": 16 * PEERS},
    "unbatched": {"peers": PEERS, "callers": PEERS},
    "alone": {"peers": 1, "callers": 1},
}
"""Numbers of connections and callers, by name of the load."""


def identities(folder: Path) -> tuple[Path, list[Path]]:
    """Create the identity directories of a JobManager and of :data:`PEERS` TaskManagers."""
    config = PkiConfig()
    issuer = LocalIssuer(folder / "pki", config)
    issuer.ensure_authorities()

    def issue(role: Role, name: str) -> Path:
        identity = SpiffeId.process(config.trust_domain, role, name)
        issuer.issue_to(folder / name, identity, dns=["localhost"], ips=["127.0.0.1"])
        return folder / name

    return issue(Role.JOBMANAGER, "jm"), [issue(Role.TASKMANAGER, f"tm-{number}") for number in range(PEERS)]


def measure(folder: Path, rounds: int, seconds: float) -> dict[tuple[str, str], list[Figures]]:
    """Return all runs, by load and kind."""
    server, clients = identities(folder)
    runs: dict[tuple[str, str], list[Figures]] = defaultdict(list)
    workers: list[Worker] = []
    drivers = {}
    try:
        for kind in KINDS:
            serving = Worker(WORK, "serve", kind, str(server))
            workers.append(serving)
            port = int(serving.read()["port"])
            drivers[kind] = Worker(WORK, "drive", kind, str(port), *map(str, clients))
            workers.append(drivers[kind])
            drivers[kind].ask(**LOADS["many_peers"], seconds=seconds / 2)  # warm
        for number in range(1, rounds + 1):
            progress(f"round {number} of {rounds}")
            for name, load in LOADS.items():
                for kind in KINDS if number % 2 else reversed(KINDS):
                    runs[name, kind].append(drivers[kind].ask(**load, seconds=seconds))
    finally:
        for worker in reversed(workers):
            worker.end()
    return runs


def summarize(runs: dict[tuple[str, str], list[Figures]]) -> tuple[Figures, float, bool]:
    """Return the figures, the throughput ratio, and whether latency is not worse."""
    figures: Figures = {}
    ratios = {}
    for name in LOADS:
        ours, theirs = runs[name, "sluice"], runs[name, "grpc"]
        for kind, each in (("sluice", ours), ("grpc", theirs)):
            if name != "alone":
                figures[f"{name}_{kind}_asks_per_s"] = statistics.median(run["asks_per_s"] for run in each)
                figures[f"{name}_{kind}_client_cpu_us"] = statistics.median(run["cpu_us_per_ask"] for run in each)
            for percentile in ("p50_ms", "p99_ms"):
                figures[f"{name}_{kind}_{percentile}"] = min(run[percentile] for run in each)
        ratios[name] = statistics.median(a["asks_per_s"] / b["asks_per_s"] for a, b in zip(ours, theirs, strict=True))
        if name != "alone":
            figures[f"{name}_ratio"] = ratios[name]
    latency_holds = all(
        figures[f"{name}_sluice_{percentile}"] <= figures[f"{name}_grpc_{percentile}"]
        for name in LOADS
        for percentile in ("p50_ms", "p99_ms")
    )
    return figures, min(ratios["one_peer"], ratios["many_peers"]), latency_holds


def main() -> int:
    """Measure and report."""
    options = arguments(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        runs = measure(Path(folder), 5 if options.quick else 15, 0.6 if options.quick else 1.0)
    figures, ratio, latency_holds = summarize(runs)
    figures["latency_not_worse"] = float(latency_holds)
    goal = f"asks per second at {BAR:g} times grpc.aio or more, on one and on many connections, p50 and p99 not worse"
    holds = ratio >= BAR and latency_holds
    return emit(Result("rpc", figures, ratio, goal, BAR, holds), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
