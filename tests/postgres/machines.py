"""Auth services on two machines behind Envoys on a third, with mutual TLS throughout and one database."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import msgspec

from sluice.core import Home, write_secret
from sluice.gateway.config import GatewayConfig, SharedStoreConfig, envoy_names
from sluice.gateway.service import auth_announcement, envoy_announcement, route_file
from sluice.gateway.shared_store import bind
from sluice.pki import Role
from sluice.pki.spiffe_id import SpiffeId
from tests.free_ports import free_ports
from tests.integration.gateway.conftest import ROUTES, TRUST_DOMAIN, BackgroundLoop, EdgeAuthority, eventually
from tests.integration.gateway.network import JOBMANAGER, Generation, Rest, install
from tests.system.gateway.replicated import Member, ReplicatedGateway
from tests.waiting import wait_until

LOOPBACK = "127.0.0.1"
START_SECONDS = 90.0
RUN = """
import asyncio, sys
from pathlib import Path
import msgspec
from sluice.core.home import Home
from sluice.gateway.config import GatewayConfig
from sluice.gateway.service import run_auth, run_envoy

role, name, home, domain, config, port = sys.argv[1:]
run = {"auth": run_auth, "envoy": run_envoy}[role]
config = msgspec.json.decode(config, type=GatewayConfig)
asyncio.run(run(Home.at(Path(home)), config, domain, name, rest=("127.0.0.1", int(port))))
"""


class MachineMember(Member):
    """A process of one of the machines, which reaches REST at ``rest_port``."""

    def __init__(self, role: str, name: str, home: Home, config: GatewayConfig, rest_port: int) -> None:
        ready = auth_announcement(home, config) if role == "auth" else envoy_announcement(home, name)
        super().__init__(role, name, home, config, ready)
        self._command = [sys.executable, "-P", "-c", RUN, *self._argv, str(rest_port)]

    def start(self) -> None:
        self.ready.unlink(missing_ok=True)
        with self._log.open("ab") as log:
            self.process = process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env={**os.environ, **self._environment}
            )
        wait_until(
            lambda: self.ready.exists() or process.poll() is not None, f"{self.name} does not start", START_SECONDS
        )
        assert process.poll() is None, self._log.read_text()[-3000:]


class MachinesGateway(ReplicatedGateway):
    """Two Envoys on one port of ``home``'s machine; each uses both auth services.

    Each auth service has a home of its own. ``home`` is bound to the store, too, so that commands work on any
    machine.
    """

    def __init__(
        self,
        home: Home,
        authority: EdgeAuthority,
        loop: BackgroundLoop,
        generation: Generation,
        store: SharedStoreConfig,
    ) -> None:
        edge, first, second = free_ports(3)
        ports = {"auth-a": first, "auth-b": second}
        config = GatewayConfig(
            port=edge,
            envoys=2,
            auth_host=LOOPBACK,
            auth_port=first,
            auth_addresses=tuple(f"{LOOPBACK}:{port}" for port in ports.values()),
            shared_store=store,
            authorization_timeout=20.0,
            address_requests_per_second=1e6,
            principal_requests_per_second=1e6,
        )
        super().__init__(home, authority, loop, config)
        self.store = store
        self._ports = ports
        self._generation = generation
        self._rest = Rest(home.sockets / "rest.sock", home.identity(Role.JOBMANAGER, JOBMANAGER.name))
        self.homes = {name: Home.at(home.root.parent / name) for name in ports}

    def start(self) -> None:
        self.home.create()
        self.authority.issue(self.identity)
        identities = {(Role.JOBMANAGER, JOBMANAGER.name): self.home}
        identities |= {(Role.GATEWAY, name): self.home for name in envoy_names(self._config)}
        identities |= {(Role.AUTH, name): home for name, home in self.homes.items()}
        for (role, name), home in identities.items():
            home.create()
            directory = home.identity(role, name)
            install(directory, SpiffeId.process(TRUST_DOMAIN, role, name), self._generation, [self._generation])
        bind(self.home, self.store)
        for home in (self.home, *self.homes.values()):
            write_secret(route_file(home), json.dumps(ROUTES).encode())
        serving = self._loop.start(self._rest.serve())
        self._others.append(serving)
        eventually(lambda: self._rest.address or serving.done(), "REST does not come up")
        assert self._rest.address is not None
        port = self._rest.address[1]
        self.auths, self.envoys = [], []
        for name, home in self.homes.items():
            own = msgspec.structs.replace(self._config, auth_port=self._ports[name])
            self.auths.append(MachineMember("auth", name, home, own, port))
        for name in envoy_names(self._config):
            self.envoys.append(MachineMember("envoy", name, self.home, self._config, port))
        for member in (*self.auths, *self.envoys):
            member.start()
