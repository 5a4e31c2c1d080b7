"""The cost of the gateway: Envoy with short-lived access tokens and policy, compared with three other reverse proxies.

    scripts/get-load-programs
    .venv/bin/python -m benchmarks.gateway [--quick] [--json]

The others are bare Envoy, nginx with auth_request, and Envoy with gRPC ext_authz.

wrk keeps connections busy (HTTP/1.1, TLS 1.3). It is never the bottleneck: it needs a fraction of a proxy's time for a
request. The upstream is the same nginx for all, which answers at once. The proxies take turns in a rotating order, and
each ratio is the median over the rounds. ``nginx`` and ``gRPC`` get an API token, the cheapest credential for the auth
service; ours gets a short-lived access token, for which an API token is exchanged.

Requests/s and CPU are measured on a saturated machine. There, p99 would measure the queue in front of the cores, so p99
is compared at an offered rate that both proxies can serve: half of the highest rate that bare Envoy has just served.
Each connection waits between its requests for an exponentially distributed time whose mean results in that rate.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
import statistics
import sys
from dataclasses import dataclass

from benchmarks.gateway_proxies import LOAD, PATH, ProxyUnderTest, proxies
from benchmarks.report import Result, arguments, emit, progress

GOAL = (
    "requests/s at least 0.75 of bare Envoy, 1.2 times nginx with auth_request, 3 times gRPC ext_authz; "
    "p99 at most 1.5 times bare Envoy's, at half of its highest rate"
)
BAR, NGINX_BAR, GRPC_BAR, P99_BAR = 0.75, 1.2, 3.0, 1.5
CONNECTIONS = 64
OFFERED = 0.5
"""The offered rate for p99, as a fraction of bare Envoy's highest rate."""
PAUSES = LOAD / "pauses.lua"
_UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


@dataclass(frozen=True, slots=True)
class Round:
    """The figures of one proxy in one round."""

    requests_per_second: float
    p99_ms: float
    proxy_us: float
    asked_us: float
    both_ends_us: float
    """CPU time of client and upstream per request."""

    @property
    def total_us(self) -> float:
        """CPU time of all processes per request."""
        return self.proxy_us + self.asked_us + self.both_ends_us


async def load(proxy: ProxyUnderTest, seconds: int, rate: float = 0.0) -> Round:
    """Keep ``proxy`` busy, or offer it ``rate`` requests per second at random times."""
    pauses = ("-s", str(PAUSES)) if rate else ()
    before = (*proxy.cpu(), _children())
    process = await asyncio.create_subprocess_exec(
        str(LOAD / "usr/bin/wrk"),
        *("-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "--latency", *pauses),
        *("-H", "Host: localhost", "-H", f"Authorization: Bearer {proxy.credential}"),
        f"https://127.0.0.1:{proxy.port}{PATH}",
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(LOAD / "usr/lib/x86_64-linux-gnu"),
            "PAUSE_MS": str(1e3 * CONNECTIONS / rate if rate else 0),
        },
        stdout=asyncio.subprocess.PIPE,
    )
    text = (await process.communicate())[0].decode()
    after = (*proxy.cpu(), _children())
    if "Non-2xx" in text or "Socket errors" in text:
        raise RuntimeError(f"{proxy.name} failed requests:\n{text}")
    count = int(_found(r"(\d+) requests in", text)[0])
    value, unit = _found(r"99%\s+([\d.]+)(us|ms|s)", text)
    proxied, asked, upstream, client = ((now - then) * 1e6 / count for now, then in zip(after, before, strict=True))
    speed = float(_found(r"Requests/sec:\s+([\d.]+)", text)[0])
    return Round(speed, float(value) * _UNITS[unit], proxied, asked, upstream + client)


def _children() -> float:
    """CPU seconds of child processes that have ended, which are the runs of wrk."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _found(pattern: str, text: str) -> tuple[str, ...]:
    match = re.search(pattern, text)
    if match is None:
        raise RuntimeError(f"the output of wrk does not match {pattern!r}:\n{text}")
    return match.groups()


@dataclass(frozen=True, slots=True)
class Measured:
    """All rounds: of every proxy when saturated, and pairs of ours and bare Envoy at the same rate."""

    saturated: dict[str, list[Round]]
    paired: list[tuple[Round, Round]]


async def measure(rounds: int, seconds: int) -> Measured:
    """Measure all proxies in turn."""
    PAUSES.write_text(
        "local mean = tonumber(os.getenv('PAUSE_MS'))\n"
        "function delay() return math.floor(0.5 - math.log(1 - math.random()) * mean) end\n"
    )
    async with proxies() as opened:
        found = Measured({proxy.name: [] for proxy in opened}, [])
        for proxy in opened:
            await load(proxy, 1)
        for number in range(rounds):
            turn = number % len(opened)
            for proxy in [*opened[turn:], *opened[:turn]]:
                each = await load(proxy, seconds)
                found.saturated[proxy.name].append(each)
                progress(
                    f"{number + 1}/{rounds} {proxy.name}: {each.requests_per_second:.0f}/s, "
                    f"p99 {each.p99_ms:.1f} ms, CPU us: proxy {each.proxy_us:.0f}, asked {each.asked_us:.0f}, "
                    f"both ends {each.both_ends_us:.0f}"
                )
            ours, bare = opened[:2]
            # The rate of this round, because the machine may be slower than in the last one.
            rate = OFFERED * found.saturated[bare.name][-1].requests_per_second
            for order in ((ours, bare), (bare, ours)):
                both = {proxy.name: await load(proxy, seconds, rate) for proxy in order}
                found.paired.append((both[ours.name], both[bare.name]))
                told = (
                    f"{name} {each.requests_per_second:.0f}/s p99 {each.p99_ms:.2f} ms" for name, each in both.items()
                )
                progress(f"{number + 1}/{rounds} at {rate:.0f}/s offered: " + ", ".join(told))
        return found


def result_of(found: Measured) -> Result:
    """Return medians and ratios."""
    measured = found.saturated
    ours, bare, nginx, grpc = (measured[name] for name in measured)

    def speed(peer: list[Round]) -> float:
        return statistics.median(a.requests_per_second / b.requests_per_second for a, b in zip(ours, peer, strict=True))

    ratio, over_nginx, over_grpc = speed(bare), speed(nginx), speed(grpc)
    p99 = statistics.median(a.p99_ms / b.p99_ms for a, b in found.paired)
    # CPU time of all processes, which other load on the machine does not change.
    spent = [statistics.median(each.total_us for each in rounds) for rounds in measured.values()]
    figures = {
        "times_nginx": over_nginx,
        "times_grpc": over_grpc,
        "p99_over_bare": p99,
    }
    for name, place in (("sluice", 0), ("bare", 1)):
        figures[f"{name}_p99_ms"] = statistics.median(pair[place].p99_ms for pair in found.paired)
        figures[f"{name}_served_per_second"] = statistics.median(
            pair[place].requests_per_second for pair in found.paired
        )
    for name, total in zip(("bare", "nginx", "grpc"), spent[1:], strict=True):
        figures[f"by_cpu_times_{name}"] = total / spent[0]
    for name, rounds in zip(("sluice", "bare", "nginx", "grpc"), measured.values(), strict=True):
        for key in ("requests_per_second", "proxy_us", "asked_us", "both_ends_us"):
            figures[f"{name}_{key}"] = statistics.median(getattr(each, key) for each in rounds)
        figures[f"{name}_saturated_p99_ms"] = statistics.median(each.p99_ms for each in rounds)
    holds = ratio >= BAR and over_nginx >= NGINX_BAR and over_grpc >= GRPC_BAR and p99 <= P99_BAR
    return Result("gateway", figures, ratio, GOAL, BAR, holds)


def main() -> int:
    """Measure and report."""
    options = arguments(__doc__)
    if not (LOAD / "usr/bin/wrk").exists():
        progress("wrk and nginx are missing: run scripts/get-load-programs")
        return 2
    # Many short rounds: other load on the machine spoils some of them, but hardly affects the medians.
    rounds, seconds = (7, 1) if options.quick else (7, 5)
    return emit(result_of(asyncio.run(measure(rounds, seconds))), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
