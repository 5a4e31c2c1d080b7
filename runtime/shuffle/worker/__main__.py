"""A stand-alone worker without a manager, for tests and benchmarks of the data plane.

``python -m sluice.runtime.shuffle.worker --identity DIRECTORY --directory DIRECTORY --jobs FILE [--port 0]``: each
line of the file has a job's id and its integrity key, and the file is read once. The worker prints
``listening HOST PORT`` to standard output, and ends when its standard input ends. It is not part of a cluster, and
serves only the jobs in the file.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sluice.core import read_secret
from sluice.pki.tls import Engine, TlsIdentity, restart_without_tickets, serving_engine
from sluice.runtime.node import allow_many_files
from sluice.runtime.shuffle.worker.config import Layout, Policy, WorkerConfig
from sluice.runtime.shuffle.worker.worker import ShuffleWorker


def main(argv: Sequence[str] | None = None) -> int:
    """Run until standard input ends.

    The line ``release JOB SHUFFLE`` on standard input removes that shuffle. The worker answers any other line with its
    report as JSON.
    """
    parser = argparse.ArgumentParser(prog="python -m sluice.runtime.shuffle.worker", description=__doc__)
    parser.add_argument("--identity", type=Path, required=True, help="identity directory of role shuffle-worker")
    parser.add_argument("--directory", type=Path, required=True, action="append", help="data directory; repeatable")
    parser.add_argument("--jobs", type=Path, required=True, help="file (mode 0600) with a job id and key on each line")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--memory-bytes", type=int, default=256 << 20)
    parser.add_argument("--metadata-bytes", type=int, default=512 << 20)
    parser.add_argument("--job-quota-bytes", type=int, default=0)
    parser.add_argument("--engine", type=Engine, default=None, choices=list(Engine))
    parser.add_argument("--layout", type=Layout, default=Layout.REDUCE, choices=list(Layout))
    parser.add_argument("--policy", type=Policy, default=Policy.BLOCKING, choices=list(Policy))
    options = parser.parse_args(argv)
    restart_without_tickets()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    allow_many_files()
    config = WorkerConfig(
        tuple(options.directory),
        memory_bytes=options.memory_bytes,
        metadata_bytes=options.metadata_bytes,
        job_quota_bytes=options.job_quota_bytes,
        engine=options.engine or serving_engine(),
        layout=options.layout,
        policy=options.policy,
    )
    worker = ShuffleWorker(config, TlsIdentity(options.identity))
    for line in read_secret(options.jobs).decode("ascii").splitlines():
        job_id, _, key = line.partition(" ")
        worker.allow_job(job_id, bytes.fromhex(key))
    asyncio.run(_serve(worker, options.host, options.port))
    return 0


async def _serve(worker: ShuffleWorker, host: str, port: int) -> None:
    host, port = await worker.start(host, port)
    try:
        _say(f"listening {host} {port}")
        while line := await asyncio.to_thread(sys.stdin.readline):
            match line.split():
                case ["release", job_id, shuffle]:
                    await worker.release_shuffle(job_id, int(shuffle))
                case _:
                    _say(msgspec.json.encode(worker.report()).decode())
    finally:
        await worker.stop()


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
