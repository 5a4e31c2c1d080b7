"""One shuffle worker compared with a minimal loop: CPU seconds per GB for the same bytes on the same core.

The peer is one thread with ``ssl.SSLSocket.recv_into`` and ``os.write`` (for fetches ``os.readv`` and ``sendall``),
without index, checksums, credits and partitions. Ours has all of these. Both use TLS 1.3 with AES-128-GCM and mutual
authentication. Both servers are pinned to one core, and the load driver to another. Rounds alternate, and the best
round of each counts.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import Result, arguments, emit, progress
from benchmarks.shuffle_worker_load import FRAME_BYTES, JOB
from benchmarks.worker import Worker
from sluice.pki import PkiConfig, Role, SpiffeId
from sluice.pki.issuing import LocalIssuer

GB = 1e9
BAR = 1.0
CONNECTIONS = (8, 64)
WAYS = ("push", "fetch")


class Bench:
    """The three processes: both servers and the load driver."""

    def __init__(self, directory: Path) -> None:
        config = PkiConfig()
        issuer = LocalIssuer(directory / "pki", config)
        issuer.ensure_authorities()
        worker = SpiffeId.process(config.trust_domain, Role.SHUFFLE_WORKER, "worker-1")
        executor = SpiffeId.executor(config.trust_domain, JOB, 1)
        for name, identity in (("worker", worker), ("executor", executor)):
            issuer.issue_to(directory / name, identity, dns=["localhost"], ips=["127.0.0.1"])
        first, *others = sorted(os.sched_getaffinity(0))
        load = "benchmarks.shuffle_worker_load"
        self._servers = {
            name: Worker(load, name, str(directory), str(others[0] if others else first))
            for name in ("sluice", "barest")
        }
        self._ports = {name: int(server.read()["port"]) for name, server in self._servers.items()}
        self._driver = Worker(load, "drive", str(directory), str(first))
        self._driver.read()
        self._shuffle = 0

    def round(self, server: str, way: str, size: int, connections: int = 1) -> dict[str, float]:
        """Push or fetch ``size`` bytes; returns MB/s and the server's CPU seconds per GB."""
        before = self._servers[server].ask()["cpu"]
        if server == "sluice" and way == "push":
            self._servers[server].ask(release=True)
            before = self._servers[server].ask()["cpu"]
        what = way if server == "sluice" else f"barest-{way}"
        done = self._driver.ask(
            what=what, port=self._ports[server], bytes=size, connections=connections, shuffle=self._shuffle
        )
        cpu = self._servers[server].ask()["cpu"] - before
        return {"mb_per_s": size / 1e6 / done["seconds"], "cpu_s_per_gb": cpu / size * GB}

    def peaks(self) -> dict[str, float]:
        """Return the peak memory of our worker."""
        answer = self._servers["sluice"].ask()
        return {
            "sluice_managed_memory_peak_mib": answer["memory_peak_bytes"] / 2**20,
            "sluice_rss_peak_mib": answer["rss_peak_kib"] / 1024,
        }

    def close(self) -> None:
        """End the processes."""
        for worker in (*self._servers.values(), self._driver):
            worker.end()


def measure(*, quick: bool) -> Result:
    """Run all rounds."""
    size = (512 if quick else 1024) << 20
    size -= size % (FRAME_BYTES * 64)
    rounds = 4 if quick else 7
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        try:
            return _measure(bench, size, rounds)
        finally:
            bench.close()


def _measure(bench: Bench, size: int, rounds: int) -> Result:
    figures: dict[str, float] = {}
    seen: dict[tuple[str, str], list[dict[str, float]]] = {}
    for number in range(rounds):
        for way in WAYS:
            for server in ("sluice", "barest"):
                seen.setdefault((server, way), []).append(bench.round(server, way, size))
        progress(
            f"round {number + 1} of {rounds}: "
            + ", ".join(
                f"{server} {way} {values[-1]['cpu_s_per_gb']:.2f} CPU s/GB" for (server, way), values in seen.items()
            )
        )
    # Kernel work for the disk and for other processes can only add to a round, so the best round counts.
    for (server, way), values in seen.items():
        cpu = [each["cpu_s_per_gb"] for each in values]
        figures[f"{server}_{way}_mb_per_s"] = max(each["mb_per_s"] for each in values)
        figures[f"{server}_{way}_cpu_s_per_gb"] = min(cpu)
        figures[f"{server}_{way}_cpu_s_per_gb_median"] = statistics.median(cpu)
    ratios = {way: figures[f"sluice_{way}_cpu_s_per_gb"] / figures[f"barest_{way}_cpu_s_per_gb"] for way in WAYS}
    figures |= {f"{way}_ratio": ratio for way, ratio in ratios.items()}
    for connections in CONNECTIONS:
        for way in WAYS:
            many = bench.round("sluice", way, size, connections)
            figures |= {f"sluice_{way}_{connections}_connections_{name}": value for name, value in many.items()}
    figures |= bench.peaks()
    ratio = max(ratios.values())
    return Result(
        benchmark="shuffle_worker",
        figures=figures,
        ratio=ratio,
        goal=f"CPU seconds per GB of a worker, push and fetch each: at most {BAR} times the barest loop's",
        bar=BAR,
        holds=ratio <= BAR,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and report."""
    options = arguments(__doc__, argv)
    return emit(measure(quick=options.quick), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
