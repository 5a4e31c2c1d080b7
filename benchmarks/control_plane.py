"""The cost of a large cluster for its JobManager: 5,000 TaskManagers with 20,000 slots, compared with 500 with 2,000.

The JobManager is a separate process with the real ResourceManager behind the real listener. The TaskManagers are
simulated in two processes. Each has its own identity, mutual TLS connection and RPC endpoint. It registers, reports its
four slots, reserves the requested slots and offers them to the JobMaster. Executors and everything on disk are left
out. At each size, all TaskManagers register and send two rounds of heartbeats. Then one job requires every slot and
gets it, two more rounds of heartbeats report the slots in use, and the job releases everything.

The benchmark measures CPU time of each phase (mostly handshakes in the first) and resident memory of the JobManager.
The peer is the smaller cluster. The ratio is the growth of CPU time or of memory, whichever is worse, divided by the
growth of the cluster; 1 is linear.
"""

from __future__ import annotations

import datetime as dt
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.report import Result, arguments, emit, progress
from benchmarks.worker import Figures, Worker
from sluice.pki import PkiConfig, Role, SpiffeId
from sluice.pki.authorities import AuthorityStore, sign_leaf, to_pem
from sluice.pki.x509 import AuthorityKind, Names, generate_key, key_to_pem, workload_profile

BAR = 1.3
SLOTS = 4
PROCESSES = 2
BEATS = 2
PHASES = ("register", "beat_free", "allocate", "beat_active", "release")
WORK = "benchmarks.control_plane_work"


def identities(folder: Path, count: int) -> None:
    """Create the identity directories ``jm``, ``tm-0`` and so on, with the files that ``TlsIdentity`` reads."""
    config, now = PkiConfig(), dt.datetime.now(dt.UTC)
    authorities = AuthorityStore(folder / "pki")
    authorities.ensure(config, now)
    authority = authorities.load(AuthorityKind.INTERNAL)
    for role, name in [(Role.JOBMANAGER, "jm"), *((Role.TASKMANAGER, f"tm-{number}") for number in range(count))]:
        key, identity = generate_key(), SpiffeId.process(config.trust_domain, role, name)
        names = Names(identity, ("localhost",), ())
        leaf = sign_leaf(
            authority,
            key.public_key(),
            names,
            workload_profile(role, config),
            now=now,
            backdate=dt.timedelta(minutes=5),
        )
        directory = folder / name
        directory.mkdir(mode=0o700)
        (directory / "key.pem").touch(0o600)
        (directory / "key.pem").write_bytes(key_to_pem(key))
        (directory / "chain.pem").write_bytes(to_pem(leaf, authority.certificate))
        (directory / "ca.pem").write_bytes(to_pem(authority.certificate))


def measure(folder: Path, count: int) -> Figures:
    """Run all phases once with ``count`` TaskManagers."""
    manager = Worker(WORK, "jobmanager", str(folder / "jm"))
    begun = before = manager.read()
    members = [Worker(WORK, "taskmanagers", str(int(begun["port"])), str(folder)) for _ in range(PROCESSES)]
    figures: Figures = {}

    def phase(name: str, seconds: float, now: Figures) -> None:
        nonlocal before
        figures[f"{name}_s"] = figures.get(f"{name}_s", 0.0) + seconds
        figures[f"{name}_cpu_s"] = figures.get(f"{name}_cpu_s", 0.0) + now["cpu_s"] - before["cpu_s"]
        figures["rss_mib"] = max(figures.get("rss_mib", 0.0), now["rss_mib"] - begun["rss_mib"])
        before = now

    def all_do(name: str, **order: object) -> None:
        for number, member in enumerate(members):
            share = {"first": count * number // PROCESSES, "last": count * (number + 1) // PROCESSES}
            member.tell(**order, **share)
        phase(name, max(member.read()["seconds"] for member in members), manager.ask(do="nothing"))

    try:
        for member in members:
            member.read()
        all_do("register", do="join")
        for name in ("beat_free", "beat_active"):
            for _ in range(BEATS):
                all_do(name, do="beat")
            verb = "allocate" if name == "beat_free" else "release"
            answer = manager.ask(do=verb, count=SLOTS * count)
            if answer["taskmanagers"] != count:
                raise SystemExit(f"{answer['taskmanagers']:g} of {count} TaskManagers are left")
            phase(verb, answer["seconds"], answer)
    finally:
        for member in members:
            member.end()
        manager.end()
    figures["cpu_s"] = sum(figures[f"{name}_cpu_s"] for name in PHASES)
    return figures


def main() -> int:
    """Measure and report."""
    options = arguments(__doc__)
    small, large, rounds = (150, 1_500, 1) if options.quick else (500, 5_000, 2)
    figures: Figures = {"small_taskmanagers": small, "large_taskmanagers": large, "large_slots": SLOTS * large}
    with tempfile.TemporaryDirectory() as name:
        progress(f"issuing {large} identities")
        identities(Path(name), large)
        runs: dict[str, list[Figures]] = {"small": [], "large": []}
        for number in range(1, rounds + 1):
            progress(f"round {number} of {rounds}: {small}, {large} and {small} TaskManagers")
            for kind, count in (("small", small), ("large", large), ("small", small)):
                runs[kind].append(measure(Path(name), count))
    typical = {
        kind: {name: statistics.median(run[name] for run in each) for name in each[0]} for kind, each in runs.items()
    }
    for kind, count in (("small", small), ("large", large)):
        for name, value in typical[kind].items():
            figures[f"{kind}_{name}"] = value
        figures[f"{kind}_kib_each"] = 1024 * typical[kind]["rss_mib"] / count
        for name in PHASES:
            figures[f"{kind}_{name}_cpu_ms_each"] = 1000 * typical[kind][f"{name}_cpu_s"] / count
    growth = {name: typical["large"][name] / typical["small"][name] / (large / small) for name in ("cpu_s", "rss_mib")}
    figures |= {"cpu_growth_over_linear": growth["cpu_s"], "memory_growth_over_linear": growth["rss_mib"]}
    ratio = max(growth.values())
    goal = f"processor time and memory of the JobManager grow at most {BAR:g} times as fast as the cluster"
    return emit(Result("control_plane", figures, ratio, goal, BAR, ratio <= BAR), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
