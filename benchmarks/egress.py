"""The cost of egress: a socket through the relay, compared with a client that does CONNECT and TLS.

    .venv/bin/python -m benchmarks.egress [--quick] [--json]

Both reach the same upstream through the same listener of the same Envoy, with the same job certificate and
the same cipher. Ours connects like a process of a job: over plain TCP to the relay of its TaskManager,
which encrypts. The peer is a program that knows the proxy and encrypts by itself. It uses Python's ``ssl``:
OpenSSL does the work, without the GIL and one record at a time. The loop around it is the same as in the
relay, so both pay the same for Python's socket wrapper. ``openssl s_client`` would add two pipes, and curl
its own buffers. Upstream and clients are separate processes. The pairs alternate, and the ratio is the
median over pairs.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec

from benchmarks.egress_work import Measured
from benchmarks.report import Result, arguments, emit, progress, spread
from sluice.core import EgressConfig, egress_address
from sluice.runtime.egress_relay import EgressRelay
from tests.egress_gateway import TRUST_DOMAIN, egress_gateway

GOAL = "bytes/s through relay and Envoy at least 0.9 of CONNECT with the same TLS by the client itself"
BAR = 0.9
RULES = """
[[egress]]
to = ["upstream.test:*"]
users = ["ada"]
protocol = "tcp"
addresses = ["127.0.0.0/8"]
"""


async def measure(pairs: int, size: int) -> Result:
    """Run all pairs, with ``size`` bytes in each direction."""
    ours: dict[str, list[float]] = {"down": [], "up": []}
    peers: dict[str, list[float]] = {"down": [], "up": []}
    async with egress_gateway() as gateway:
        gateway.allow(RULES)
        gateway.names.names["upstream.test"] = ("127.0.0.9",)
        identity = gateway.driver()
        locate = partial(egress_address, EgressConfig(), gateway.home)
        upstream = await _python("upstream")
        relay = EgressRelay(Path(tempfile.mkdtemp(dir=gateway.home.root)) / "r", TRUST_DOMAIN, locate)
        try:
            line = await upstream.stdout.readline() if upstream.stdout is not None else b""
            authority = f"upstream.test:{int(line)}"
            async with relay.attempt(identity) as route:
                through = {"address": route.address, "first": route.preamble(authority).hex()}
                itself = {"address": gateway.address, "identity": str(identity), "authority": authority}
                for number in range(pairs):
                    order = [(ours, through), (peers, itself)]
                    for found, how in order if number % 2 else reversed(order):
                        for direction in ("down", "up"):
                            measured = await _client({**how, "direction": direction, "bytes": size})
                            found[direction].append(measured.bytes_per_second / 1e6)
                    progress(
                        f"pair {number + 1}/{pairs}: MB/s "
                        + ", ".join(f"{each} {ours[each][-1]:.0f} / {peers[each][-1]:.0f}" for each in ours)
                    )
        finally:
            upstream.terminate()
            await upstream.wait()
            await relay.close()
    figures: dict[str, float] = {}
    ratios = []
    for direction, mine in ours.items():
        pairwise = [one / other for one, other in zip(mine, peers[direction], strict=True)]
        ratios.append(statistics.median(pairwise))
        figures[f"{direction} ratio"] = ratios[-1]
        for name, rates in (("relay", mine), ("itself", peers[direction])):
            figures |= {f"{direction} {name} MB/s {key}": value for key, value in spread(rates).items()}
    ratio = min(ratios)
    return Result("egress", figures, ratio, GOAL, BAR, ratio >= BAR)


async def _python(*arguments: str, stdin: int | None = None) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.egress_work", *arguments), stdin=stdin, stdout=asyncio.subprocess.PIPE
    )


async def _client(task: Mapping[str, object]) -> Measured:
    process = await _python("client", stdin=asyncio.subprocess.PIPE)
    out, _ = await process.communicate(json.dumps(task).encode())
    return msgspec.json.decode(out, type=Measured)


if __name__ == "__main__":
    options = arguments(__doc__)
    sys.exit(emit(asyncio.run(measure(*((5, 128 << 20) if options.quick else (11, 512 << 20)))), as_json=options.json))
