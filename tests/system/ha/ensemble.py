"""A real ZooKeeper ensemble with mutual TLS everywhere, from pyspark's jars and our export; servers can be killed."""

from __future__ import annotations

import ssl
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from sluice.core.clock import utc_now
from sluice.pki.export.programs.catalogue import Program, export_for
from sluice.pki.spiffe_id import Role, SpiffeId
from tests.free_ports import free_ports
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.integration.programs.ports import client_context, exchange, tail, until
from tests.integration.programs.zookeeper import command

SERVERS = 3
START_SECONDS = 100.0
TICK_MS = 500
"""The shortest session is two ticks, the longest twenty."""


@dataclass
class Ensemble:
    """Three servers; ``hosts`` is what clients are configured with."""

    pki: TestPki
    root: Path
    ports: list[int] = field(default_factory=lambda: free_ports(3 * SERVERS))
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def hosts(self) -> tuple[str, ...]:
        """``host:port`` of each server."""
        return tuple(f"localhost:{port}" for port in self.ports[:SERVERS])

    def start(self) -> None:
        """Start all servers, and wait until they form an ensemble."""
        for number in range(1, SERVERS + 1):
            self._configure(number)
            self.start_server(number)
        self.until_whole()

    def until_whole(self) -> None:
        """Wait until all servers serve."""
        context = client_context(self.pki.directory(SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "asking")))
        until(lambda: all(self.serves(number, context) for number in range(1, SERVERS + 1)), self.logs, START_SECONDS)

    def _configure(self, number: int) -> None:
        self.root.mkdir(exist_ok=True)
        identity = self.pki.directory(SpiffeId.process(TRUST_DOMAIN, Role.ZOOKEEPER, f"zk-{number}"))
        place = self.root / f"server-{number}"
        export_for(Program.ZOOKEEPER, identity, place, now=utc_now())
        data = self.root / f"data-{number}"
        data.mkdir()
        (data / "myid").write_text(str(number))
        quorum, election = self.ports[SERVERS : 2 * SERVERS], self.ports[2 * SERVERS :]
        peers = "".join(f"server.{n}=localhost:{quorum[n - 1]}:{election[n - 1]}\n" for n in range(1, SERVERS + 1))
        exported = (place / "zoo.cfg").read_text().replace("=2281", f"={self.ports[number - 1]}")
        (self.root / f"server-{number}.cfg").write_text(
            f"{exported}dataDir={data}\ntickTime={TICK_MS}\ninitLimit=40\nsyncLimit=10\n{peers}"
        )

    def start_server(self, number: int) -> None:
        """Start one server, or start it again."""
        argv = command("org.apache.zookeeper.server.quorum.QuorumPeerMain", self.root / f"server-{number}.cfg")
        with (self.root / f"server-{number}.log").open("ab") as log:
            self.processes[number] = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.root
            )

    def serves(self, number: int, context: ssl.SSLContext) -> bool:
        """Whether a server is a leader or follower."""
        answer = exchange(self.ports[number - 1], context, b"srvr")
        return b"Mode: leader" in answer or b"Mode: follower" in answer

    def kill(self, number: int) -> None:
        """Kill one server with SIGKILL."""
        process = self.processes.pop(number)
        process.kill()
        process.wait()

    def logs(self) -> str:
        """The ends of the servers' logs."""
        return "\n".join(tail(self.root / f"server-{number}.log") for number in range(1, SERVERS + 1))

    def close(self) -> None:
        """End all servers."""
        for number in list(self.processes):
            self.kill(number)
