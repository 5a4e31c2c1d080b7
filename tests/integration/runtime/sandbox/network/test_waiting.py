"""The network of a waiting box: until a job is admitted, the broker refuses every request."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import sys
from collections.abc import Sequence
from ipaddress import IPv4Address

from sluice.runtime.job_network import EgressRules, WaitingNetwork
from sluice.runtime.node import ChildProcess
from sluice.runtime.sandbox import View
from sluice.runtime.sandbox.network import Answer, Connect, Decision, HostAddress
from tests.integration.runtime.sandbox.conftest import JOB, Boxes
from tests.integration.runtime.sandbox.network.conftest import Kept, Server

TRY = """
import json, socket, sys, time
def attempt():
    told = {}
    def note(name, call):
        try:
            told[name] = call() or 0
        except OSError as error:
            told[name] = error.errno
    def connect():
        with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as to:
            to.sendall(b"hello")
            return to.recv(100).decode()
    def listen():
        with socket.create_server(("127.0.0.1", 0)):
            pass
    def unix():
        with socket.socket(socket.AF_UNIX) as any:
            any.bind("/tmp/own-%d" % time.monotonic_ns()); any.listen()
    def unix_to():
        with socket.socket(socket.AF_UNIX) as any:
            any.connect("/tmp/nobody")
    for each in (connect, listen, unix, unix_to):
        note(each.__name__, each)
    try:
        told["name"] = socket.getaddrinfo("example.org", 80)[0][4][0] != ""
    except OSError:
        told["name"] = False
    print(json.dumps(told), flush=True)
attempt()
sys.stdin.readline()
attempt()
"""


class ToServer(EgressRules):
    """Sends every connection to one server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.closed = False

    async def decide(self, connect: Connect) -> Decision:
        return HostAddress(IPv4Address(self._server.host), self._server.port)

    async def resolve(self, name: str) -> Answer:
        return True

    def close(self) -> None:
        self.closed = True


async def first_line(boxes: Boxes, child: ChildProcess, number: int) -> dict[str, object]:
    async with asyncio.timeout(60):
        while len(lines := boxes.output().splitlines()) < number:
            assert child.running, boxes.output()
            await asyncio.sleep(0.05)
    found: dict[str, object] = json.loads(lines[number - 1])
    return found


async def nobody(_: int) -> Sequence[str]:
    return ()


async def test_nothing_connects_listens_or_resolves_before_the_job_is_admitted(boxes: Boxes, server: Server) -> None:
    network = await WaitingNetwork.open("127.0.0.1", uid=boxes.sandbox.uid(JOB))
    rows = Kept()
    boxes.sandbox.own([boxes.work], JOB)
    box = boxes.sandbox.box(View(JOB, (), (boxes.work,)), boxes.sandbox.limits(), network=network.attach("executor"))
    with (boxes.logs / "out").open("wb") as out:
        child = await ChildProcess.start(
            (sys.executable, "-c", TRY, str(server.port)),
            env={},
            cwd=boxes.work,
            stdout=out,
            stderr=asyncio.subprocess.STDOUT,
            stdin=asyncio.subprocess.PIPE,
            box=box,
        )
    refused = errno.EACCES
    assert await first_line(boxes, child, 1) == {
        "connect": refused,
        "listen": refused,
        "unix": refused,
        "unix_to": refused,
        "name": False,
    }
    assert (server.accepted, rows.refusals) == (0, [])
    assert network.refused >= 4
    admitted = await network.admit(["rpc"], ask=nobody, egress_rules=ToServer(server), observer=rows)  # type: ignore[arg-type]
    assert child.stdin is not None
    child.stdin.write(b"\n")
    found = await first_line(boxes, child, 2)
    assert (found["listen"], found["unix"], found["unix_to"], found["name"]) == (0, 0, errno.ENOENT, True)
    assert (await child.wait()).code == 0
    await asyncio.to_thread(admitted.close)
    for port in admitted.ports.ports:
        with socket.socket() as free:
            free.bind(("127.0.0.1", port))


async def test_an_admitted_job_reaches_what_its_rules_allow(boxes: Boxes, server: Server) -> None:
    network = await WaitingNetwork.open("127.0.0.1", uid=boxes.sandbox.uid(JOB))
    admitted = await network.admit([], ask=nobody, egress_rules=ToServer(server), observer=Kept())  # type: ignore[arg-type]
    boxes.sandbox.own([boxes.work], JOB)
    box = boxes.sandbox.box(View(JOB, (), (boxes.work,)), boxes.sandbox.limits(), network=admitted.attach("executor"))
    code = "import socket; print(socket.create_connection(('192.0.2.1', 80)).send(b'x'))"
    ended = await boxes.run(sys.executable, "-c", code, box=box)
    assert (ended.out.strip(), ended.err) == ("1", "")
    assert server.accepted == 1
    await asyncio.to_thread(admitted.close)
