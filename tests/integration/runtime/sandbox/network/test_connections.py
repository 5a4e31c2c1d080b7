"""Where the connections of programs in a box with its own network lead."""

from __future__ import annotations

import socket

import pytest

from tests.integration.runtime.sandbox.network.conftest import LOOPBACK, Networked, Server, until

ECHO = """
import json, socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20) as peer:
    peer.sendall(b"hello")
    print(json.dumps([peer.recv(100).decode(), peer.getpeername()[1], peer.gettimeout()]))
"""


async def test_a_connection_is_made_to_the_destination_that_the_rules_give(
    networked: Networked, server: Server
) -> None:
    networked.allow(server)

    assert await networked.run(ECHO, "127.0.0.1", server.port) == ["> hello", server.port, 20.0]
    await until(lambda: networked.rows.ended)
    assert server.ended == 1, "the server sees that the program has closed it"
    asked = networked.rules.asked[0]
    assert (asked.box, asked.process[:6], asked.address, asked.name) == ("python", "python", LOOPBACK, None)


async def test_a_connection_to_a_resolved_name_is_judged_by_the_name(networked: Networked, server: Server) -> None:
    networked.rules.names["api.example.com"] = True
    networked.allow(server, host="api.example.com", port=443, preamble=b"to api.example.com:443\n")

    answer, _, _ = await networked.run(ECHO, "API.example.com", 443)

    assert answer.startswith("> to api.example.com:443\n")
    assert networked.rules.asked[0].name == "api.example.com"


async def test_a_connection_that_no_rule_allows_is_refused_and_recorded(networked: Networked, server: Server) -> None:
    code = """
import json, socket, sys
told = []
for host, port in (("127.0.0.1", int(sys.argv[1])), ("192.0.2.1", 80), ("2001:db8::1", 80), ("denied.example", 80)):
    try:
        socket.create_connection((host, port), timeout=20).close()
        told.append(0)
    except OSError as error:
        told.append(error.errno)
print(json.dumps(told))
"""
    refused = await networked.run(code, server.port)

    assert refused == [111, 13, 13, -2], "nobody listens inside; not allowed; not allowed; no such name"
    await until(lambda: {each.protocol for each in networked.rows.refusals} == {"tcp", "dns"})
    assert {each.address for each in networked.rows.refusals if each.protocol == "tcp"} == {"192.0.2.1", "2001:db8::1"}
    assert server.accepted == 0


async def test_a_placeholder_address_without_a_name_is_refused(networked: Networked, server: Server) -> None:
    networked.allow(server, host="198.18.200.1", port=80)
    code = "import json, socket; print(json.dumps(socket.socket().connect_ex(('198.18.200.1', 80))))"

    assert await networked.run(code) == 111
    await until(lambda: any(each.reason == "no_such_name" for each in networked.rows.refusals))
    assert networked.rules.asked == []


async def test_boxes_of_one_network_reach_each_other_and_are_unreachable_from_outside(networked: Networked) -> None:
    listening = await networked.start(
        "import socket; s = socket.create_server(('127.0.0.1', 4711)); c, _ = s.accept(); c.sendall(b'private')"
    )
    code = """
import json, socket, time
while True:
    try:
        print(json.dumps(socket.create_connection(("127.0.0.1", 4711)).recv(100).decode()))
        break
    except ConnectionRefusedError:
        time.sleep(0.01)
"""
    with socket.socket() as outside:
        assert outside.connect_ex(("127.0.0.1", 4711)) != 0
    assert await networked.run(code) == "private"
    assert (await listening.wait()).code == 0


async def test_a_program_accepts_outside_connections_on_its_assigned_port(networked: Networked) -> None:
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.bind(("127.0.0.1", 0))
    host, port = holder.getsockname()

    def fresh() -> socket.socket:
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind((host, port))
        return made

    networked.rules.listeners[port] = fresh
    child = await networked.start(
        "import socket, sys; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); "
        "c, _ = s.accept(); c.sendall(b'welcome')",
        port,
    )
    with holder:

        def welcomed() -> bool:
            with socket.socket() as outside:
                outside.settimeout(20)
                return outside.connect_ex((host, port)) == 0 and outside.recv(100) == b"welcome"

        await until(welcomed)
    assert (await child.wait()).code == 0


@pytest.mark.parametrize("preamble", [b"", b"whose it is and where it goes"])
@pytest.mark.parametrize(
    ("ends", "way"),
    [
        ("by itself", "s.close()"),
        ("half first", "s.shutdown(socket.SHUT_WR); s.recv(1); s.close()"),
    ],
)
async def test_bytes_of_the_shortest_connections_are_counted(
    networked: Networked, server: Server, preamble: bytes, ends: str, way: str
) -> None:
    networked.allow(server, preamble=preamble)
    program = f"""
import json, socket, struct, sys
for size in (1, 100, 100_000):
    s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    if {len(preamble)}:
        got = 0
        while got < {len(preamble) + 2}:
            got += len(s.recv({len(preamble) + 2} - got))
    s.sendall(b"x" * size)
    got = 0
    while got < size:  # the server puts two bytes before each piece that it reads
        got += len(s.recv(1 << 20))
    {way}
print(json.dumps("done"))
"""
    assert await networked.run(program, server.port) == "done"
    await until(lambda: len(networked.rows.ended) == 3)
    sent = [traffic.sent for _, traffic, _ in networked.rows.ended]
    assert sent == [1, 100, 100_000], ends
    received = [traffic.received for _, traffic, _ in networked.rows.ended]
    before = len(preamble) + 2 if preamble else 0
    assert received[:2] == [before + 3, before + 102]
    assert 100_000 < received[2] - before < 101_000
