"""One job tries every way out of its box, where the gateway enforces: none leads out, and each is in the audit log."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web

from sluice.gateway.authz import DEFAULT_POLICY
from tests.integration.cluster.conftest import LocalCluster, eventually, start_cluster, without_shuffle
from tests.name_server import name_server

from .ways_out import ADDRESSES, DATAGRAMS, SOCKETS, UNIX

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
PLACE = "127.0.71.9"
"""Of all servers: none but these hosts is allowed there."""
NAMES = ("allowed", "nameless", "plain", "proxy", "absolute", "redirect", "kept", "forbidden")
INNER = {"private.suffix.test": "10.0.0.5", "loopback.suffix.test": PLACE, "metadata.suffix.test": "169.254.169.254"}
RULES = """
[[egress]]
to = {tls}
users = ["*"]
addresses = ["127.0.71.0/24"]

[[egress]]
to = ["*.suffix.test:{port}"]
users = ["*"]

[[egress]]
to = ["{kept}.test:{echo}"]
users = ["*"]
protocol = "tcp"
addresses = ["127.0.71.0/24"]
"""
Record = dict[str, Any]
Wanted = Callable[[Record], bool]


@dataclass
class Outside:
    """External servers, and what has reached them; forbidden requests must not."""

    authority: trustme.CA = field(default_factory=trustme.CA)
    heard: list[str] = field(default_factory=list)
    nameserver: str = ""
    tls: int = 0
    plain: int = 0
    echo: int = 0
    asked: list[str] = field(default_factory=list)


async def serve(outside: Outside, ready: threading.Event, stop: threading.Event) -> None:
    async def answer(request: web.BaseRequest) -> web.Response:
        outside.heard.append(f"{request.method} {request.host} {request.path}")
        if request.path == "/redirect":
            raise web.HTTPFound(f"http://elsewhere.test:{outside.plain}/")
        return web.Response(text="hello from outside")

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    async with name_server() as names:
        names.names |= dict.fromkeys((f"{each}.test" for each in NAMES), (PLACE,))
        names.names |= {name: (address,) for name, address in INNER.items()}
        names.names["rebound.test"] = lambda: (PLACE,) if names.asked.count("rebound.test") <= 2 else ("127.0.0.1",)
        outside.asked = names.asked
        context = trustme_context(outside.authority)
        runner = web.ServerRunner(web.Server(answer))
        await runner.setup()
        await web.TCPSite(runner, PLACE, 0).start()
        await web.TCPSite(runner, PLACE, 0, ssl_context=context).start()
        echoing = await asyncio.start_server(echo, PLACE, 0)
        outside.plain, outside.tls = (each[1] for each in runner.addresses)
        outside.echo, outside.nameserver = echoing.sockets[0].getsockname()[1], names.address
        ready.set()
        await asyncio.to_thread(stop.wait)
        echoing.close()
        await runner.cleanup()


def trustme_context(authority: trustme.CA) -> Any:
    import ssl

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    names = (f"{each}.test" for each in (*NAMES, "rebound", "private.suffix", "loopback.suffix", "metadata.suffix"))
    authority.issue_cert(*names).configure_cert(context)
    return context


@pytest.fixture
def outside() -> Iterator[Outside]:
    made, ready, stop = Outside(), threading.Event(), threading.Event()
    serving = threading.Thread(target=lambda: asyncio.run(serve(made, ready, stop)))
    serving.start()
    assert ready.wait(60)
    yield made
    stop.set()
    serving.join()


def write_policy(home: Path, outside: Outside, *, kept: str = "kept") -> None:
    to = [f"{each}.test:{outside.tls}" for each in ("allowed", "nameless", "rebound")]
    to += [f"{each}.test:{outside.plain}" for each in ("plain", "proxy", "absolute", "redirect")]
    rules = RULES.format(tls=json.dumps(to), port=outside.tls, kept=kept, echo=outside.echo)
    staged = home / "gateway" / "policy.new"
    staged.write_text(DEFAULT_POLICY.read_text() + rules)
    staged.chmod(0o600)
    staged.rename(home / "gateway" / "policy.toml")


@pytest.fixture
def cluster(tmp_path: Path, outside: Outside) -> Iterator[LocalCluster]:
    home = without_shuffle(tmp_path / "home")
    settings = home / "sluice.toml"
    settings.write_text(f'{settings.read_text()}\n[egress]\nmode = "enforce"\nnameservers = ["{outside.nameserver}"]\n')
    (home / "gateway").mkdir(mode=0o700)
    write_policy(home, outside)
    running = start_cluster(home)
    yield running
    running.sluice("down")


def at_the_box(method: str, path: str) -> Wanted:
    """Match the denial that the process beside the box records."""
    return lambda told: (told["event"], told["decision"], told["method"], told["path"]) == (
        "egress", "deny", method, path
    )  # fmt: skip


def decided(path: str) -> Wanted:
    """Match the denial by the auth service, which Envoy has asked."""
    return lambda told: (told["event"], told["decision"], told["path"]) == ("decision", "deny", path)


def in_the_tunnel(path: str, shown: str) -> Wanted:
    """Match Envoy's record of the traffic in an allowed tunnel, with the server name that the job sent."""
    return lambda told: (
        (told["event"], told["path"]) == ("traffic", path)
        and (told["decision"] == "deny" or "rbac" in told["reason"])
        and (told.get("detail") or {}).get("server_name", "") == shown
    )


def bracketed(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


SHOWN = {
    "2852039166": "169.254.169.254", "0xa9fea9fe": "169.254.169.254", "::ffff:192.0.2.2": "192.0.2.2"
}  # fmt: skip
"""Notations, and the addresses that they mean."""


def evidence(outside: Outside) -> dict[str, Wanted]:
    """Return for each way out the record that the audit log must contain."""
    found: dict[str, Wanted] = {}
    for name, (family, _, protocol) in SOCKETS.items():
        found[f"socket: {name}"] = lambda told, family=family, protocol=protocol: (  # type: ignore[misc]  # two values
            told["event"] == "egress"
            and told["path"].startswith("socket(")
            and told["path"].endswith(f", {protocol})")
            and {2: "AF_INET,", 10: "AF_INET6,"}.get(family, "") in told["path"]
        )
    found["socketpair: tipc"] = at_the_box("TIPC", "socketpair(AF_TIPC, SOCK_STREAM, 0)")
    for name, (_, host, port) in ADDRESSES.items():
        found[f"connect: {name}"] = at_the_box("TCP", bracketed(SHOWN.get(host, host), port))
    found["connect without waiting"] = at_the_box("TCP", "192.0.2.4:443")
    for name, (_, host, port) in DATAGRAMS.items():
        found[f"datagram: {name}"] = at_the_box("UDP", bracketed(host, port))
    for name, (_, place) in UNIX.items():
        found[f"unix: {name}"] = at_the_box("UNIX", place.replace("\0", "@"))
    calls = {"unshare": "unshare", "setns": "setns", "clone": "clone with new namespaces", "bpf": "bpf"}
    for name, what in (*calls.items(), ("pidfd_getfd", "pidfd_getfd")):
        found[f"call: {name}"] = at_the_box("CALL", what)
    found["call: io_uring"] = at_the_box("IO_URING", "io_uring_setup")
    found["first packet: sendto"] = at_the_box("FAST-OPEN", "192.0.2.5:443")
    found["first packet: sendmsg"] = at_the_box("FAST-OPEN", "192.0.2.6:443")
    found["first packet: first write"] = at_the_box("FAST-OPEN", "setsockopt(TCP_FASTOPEN_CONNECT)")
    found["dns: a forbidden name"] = at_the_box("DNS", "forbidden.test")
    found["dns: a tunnel in names"] = at_the_box("DNS", f"{'a' * 60}.{'b' * 60}.t.tunnel.test")
    found["dns: a tunnel in txt"] = at_the_box("DNS", "txt.tunnel.test")
    found["dns: a tunnel in null"] = at_the_box("DNS", "null.tunnel.test")
    found["dns: by tcp"] = at_the_box("DNS", "tcp.tunnel.test")
    found["an allowed host at another port"] = at_the_box("TCP", "allowed.test:22")
    found["a name of a private address"] = decided(f"private.suffix.test:{outside.tls}")
    found["a name of a loopback address"] = decided(f"loopback.suffix.test:{outside.tls}")
    found["a name of a metadata service"] = decided(f"metadata.suffix.test:{outside.tls}")
    found["a name that is bound again"] = decided(f"rebound.test:{outside.tls}")
    found["tls for another name"] = in_the_tunnel(f"allowed.test:{outside.tls}", "forbidden.test")
    found["tls without a name"] = in_the_tunnel(f"nameless.test:{outside.tls}", "")
    found["a host header of another"] = in_the_tunnel(f"plain.test:{outside.plain}", f"forbidden.test:{outside.plain}")
    found["a proxy for another authority"] = in_the_tunnel(
        f"proxy.test:{outside.plain}", f"forbidden.test:{outside.tls}"
    )
    found["a whole address of another"] = in_the_tunnel(
        f"absolute.test:{outside.plain}", f"forbidden.test:{outside.plain}"
    )
    found["a redirect to a forbidden name"] = at_the_box("DNS", "elsewhere.test")
    found["a tunnel after the policy has changed"] = lambda told: (
        (told["event"], told["path"]) == ("egress", f"kept.test:{outside.echo}")
        and told["reason"] == "the policy does not allow it any more"
    )
    return found


def test_every_way_out_is_blocked_and_each_attempt_is_in_the_audit_log(cluster: LocalCluster, outside: Outside) -> None:
    authority = cluster.shared / "ca.pem"
    outside.authority.cert_pem.write_to_path(authority)
    authority.chmod(0o644)
    told = {"tls": outside.tls, "plain": outside.plain, "echo": outside.echo, "ca": str(authority)}
    job_id = cluster.submit(HERE / "ways_out.py", json.dumps(told))

    def printed() -> str:
        return cluster.sluice("jobs", "logs", job_id, "--source", "driver.stdout").stdout

    eventually(lambda: "OPEN hello" in printed() or None, "the last way is open", 240)
    write_policy(cluster.home, outside, kept="other")
    assert cluster.wait_for_state(job_id, "FINISHED", "FAILED")["state"] == "FINISHED", printed()
    seen = dict(json.loads(line.partition("WAY ")[2]) for line in printed().splitlines() if "WAY [" in line)
    wanted = evidence(outside)
    assert seen.keys() == wanted.keys()
    assert len(seen) >= 40
    assert {name: each for name, each in seen.items() if each == "reached"} == {}
    # Of what was allowed the servers have heard, and of nothing else; and no forbidden name was looked up.
    assert set(outside.heard) <= {f"GET redirect.test:{outside.plain} /redirect"}
    assert {each for each in outside.asked if "tunnel" in each or "forbidden" in each or "elsewhere" in each} == set()

    def missing() -> dict[str, str]:
        lines = cluster.sluice("audit-log", "tail", "-n", "100000", "--operation", "egress.*", "--json").stdout
        records = [each for each in map(json.loads, lines.splitlines()) if each["credential"] == job_id]
        return {name: seen[name] for name, is_it in wanted.items() if not any(map(is_it, records))}

    def nothing_missing() -> bool:
        lacking.clear()
        lacking.update(missing())
        return not lacking

    lacking: dict[str, str] = {}
    try:
        eventually(nothing_missing, "all records are there", 30)
    except AssertionError:
        assert lacking == {}
    assert cluster.json("audit-log", "verify")["verified"] is True
