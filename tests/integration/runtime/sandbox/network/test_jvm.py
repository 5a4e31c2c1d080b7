"""A JVM in a box with a network of its own: blocking sockets, channels with a selector, and a server."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
from pathlib import Path

from sluice.runtime.sandbox import View, java_paths
from tests.integration.runtime.sandbox.conftest import JOB
from tests.integration.runtime.sandbox.network.conftest import Networked, Server, until

SOURCE = Path(__file__).with_name("Peers.java")


async def test_a_jvm_connects_and_listens_where_the_rules_allow(networked: Networked, server: Server) -> None:
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
    networked.rules.names["api.example.com"] = True
    networked.allow(server)
    networked.allow(server, host="api.example.com", port=443, preamble=b"before: ")
    found = shutil.which("java")
    assert found is not None
    boxes = networked.boxes
    shutil.copy(SOURCE, boxes.work)
    boxes.sandbox.own([boxes.work], JOB)
    view = View(JOB, java_paths(Path(found)), (boxes.work,))
    box = boxes.sandbox.box(view, boxes.sandbox.limits(), network=networked.network.attach("jvm"))
    argv = (found, "-XX:+UseSerialGC", "-Xshare:auto", str(boxes.work / SOURCE.name), str(server.port), str(port))
    child = await boxes.start(*argv, box=box)
    with holder:

        def greeted() -> bool:
            with socket.socket() as outside:
                outside.settimeout(20)
                return outside.connect_ex((host, port)) == 0 and outside.recv(100) == b"from java"

        await until(lambda: not child.running or "unknown" in boxes.output(), 100)
        await until(greeted)
    assert (await child.wait()).code == 0, (boxes.logs / "err").read_text(encoding="utf-8")
    # What the server reads at once it answers at once: the preamble and what the program said, together or not.
    assert re.sub("before: (> )?(hello)?", "before: ", boxes.output()).splitlines() == [
        f"blocking > hello/127.0.0.1:{server.port}",
        "named > before: api.example.com/198.18.1.0:443",
        f"selector > selected/127.0.0.1:{server.port}",
        "inside true",
        "refused 192.0.2.1",
        "unknown denied.example",
        f"accepted /127.0.0.1:{port}",
    ]
    assert await asyncio.to_thread(networked.network.end, lambda _: True, "over") >= 0
