"""Directories that jobs share: they pass files, but no sockets.

Jobs could pass connections to each other over sockets.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from pathlib import Path

import pytest

from sluice.runtime.sandbox import IsolationConfig, Sandbox, View
from sluice.runtime.sandbox.network.broker import tracker
from tests.integration.runtime.sandbox.conftest import JOB
from tests.integration.runtime.sandbox.network.conftest import Networked, Server, until

MAKE_SOCKETS = """
import json, os, socket, sys
shared, work = sys.argv[1:]
told = {}

def attempt(name, what):
    try:
        what()
        told[name] = 0
    except OSError as error:
        told[name] = error.errno

def bind(kind, directory):
    made = socket.socket(socket.AF_UNIX, kind)
    made.bind(f"{directory}/{kind}.sock")

for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
    attempt(f"shared {kind.name}", lambda: bind(kind, shared))
    attempt(f"work {kind.name}", lambda: bind(kind, work))
    attempt(f"tmp {kind.name}", lambda: bind(kind, "/tmp"))
own = f"{work}/{socket.SOCK_STREAM}.sock"
attempt("rename", lambda: os.rename(own, f"{shared}/moved"))
attempt("link", lambda: os.link(own, f"{shared}/linked"))
attempt("node", lambda: os.mknod(f"{shared}/node", 0o140600))
os.mkdir(f"{shared}/below")
attempt("below", lambda: bind(socket.SOCK_STREAM, f"{shared}/below"))
with open(f"{shared}/below/file", "w") as file:
    file.write("x")
os.rename(f"{shared}/below/file", f"{shared}/file")
told["files"] = sorted(os.listdir(shared))
print(json.dumps(told))
"""
HAND_OVER = """
import json, socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as made, socket.socket(socket.AF_UNIX) as out:
    made.sendall(b"x")
    made.recv(100)
    out.connect(sys.argv[2])
    socket.send_fds(out, [b"."], [made.fileno()])
    out.recv(1)
print(json.dumps("handed over"))
"""


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    path = tmp_path / "shared"
    path.mkdir()
    path.chmod(0o777)
    return path


@pytest.mark.parametrize("by", ["operator", "job"])
async def test_no_unix_socket_is_made_in_a_directory_that_others_write(
    networked: Networked, shared: Path, by: str
) -> None:
    sandbox, work = networked.boxes.sandbox, networked.boxes.work
    own = sandbox
    if by == "operator":
        own = Sandbox.as_tried(sandbox.trial, IsolationConfig(writable=(str(shared),)))
    sandbox.own([work], JOB)
    view = View(JOB, (), (work,), shared=() if by == "operator" else (shared,))
    box = own.box(view, sandbox.limits(), network=networked.network.attach("python"))
    ended = await networked.boxes.run(sys.executable, "-c", MAKE_SOCKETS, str(shared), str(work), box=box)
    assert ended.exit.code == 0, ended.err
    told = json.loads(ended.out)
    assert told.pop("files") == ["below", "file"]
    made_in = {"work"} if shared.is_relative_to("/tmp") else {"work", "tmp"}  # noqa: S108 - the box's own
    made = {name for name, error in told.items() if error == 0}
    assert made == {f"{place} {kind}" for place in made_in for kind in ("SOCK_STREAM", "SOCK_DGRAM", "SOCK_SEQPACKET")}


@pytest.mark.parametrize("seconds", [tracker.END_SECONDS, 0.0], ids=["in_time", "slow_machine"])
async def test_a_connection_that_was_handed_to_another_process_is_ended(
    networked: Networked, server: Server, shared: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """For example to an operator's service whose socket jobs see: its holder loses the connection."""
    monkeypatch.setattr(tracker, "END_SECONDS", seconds)
    networked.allow(server)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as service:
        service.bind(str(shared / "service"))
        (shared / "service").chmod(0o777)
        service.listen()
        service.settimeout(60)
        sandbox, work = networked.boxes.sandbox, networked.boxes.work
        sandbox.own([work], JOB)
        view = View(JOB, (), (work,), shared=(shared,))
        box = sandbox.box(view, sandbox.limits(), network=networked.network.attach("python"))
        running = asyncio.create_task(
            networked.boxes.run(sys.executable, "-c", HAND_OVER, str(server.port), str(shared / "service"), box=box)
        )
        client, _ = await asyncio.to_thread(service.accept)
        with client:
            _, fds, _, _ = await asyncio.to_thread(socket.recv_fds, client, 1, 1)
            client.send(b".")
        ended = await running
        assert (ended.exit.code, ended.out) == (0, '"handed over"\n'), ended.err
    with socket.socket(fileno=fds[0]) as held:
        assert (len(networked.rows.open), networked.rows.ended) == (1, [])
        assert await asyncio.to_thread(networked.network.end, lambda _: True, "revoked") == 1
        await until(lambda: networked.rows.ended)
        assert networked.rows.ended[0][2] == "revoked"
        assert networked.rows.lost == []
        held.setblocking(False)
        with pytest.raises(OSError, match=r"reset|not connected|Broken pipe"):
            held.send(b"x")
