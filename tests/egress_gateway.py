"""An egress gateway for tests: real Envoy, auth service, certificates and DNS, and a REST server that knows jobs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import ssl
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trustme
from aiohttp import web

from sluice.core.clock import utc_now
from sluice.core.egress import EgressConfig, EgressSetting, egress_address
from sluice.core.files import write_secret
from sluice.core.home import Home
from sluice.core.unix_socket import listen_unix
from sluice.gateway.config import EDGE_NAME, ENVOY_NAME, GatewayConfig
from sluice.gateway.service import route_file, run_auth, run_envoy
from sluice.pki.channels import Channel, server_policy
from sluice.pki.config import PkiConfig
from sluice.pki.identities.directory import read_identity
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.revocation.crl import Reason
from sluice.pki.revocation.crl_files import install_crls
from sluice.pki.revocation.store import RevocationTarget
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from sluice.pki.x509.profiles import AuthorityKind
from tests.name_server import NameServer, name_server
from tests.waiting import until

TRUST_DOMAIN = "egress.test"
JOB = "0" * 31 + "1"
OTHER_JOB = "0" * 31 + "2"
DEADLINE_SECONDS = 30.0
POLICY = """
version = 1
[roles.submitter]
allow = []
"""
HELLO = b"hello from outside\n"


@dataclass
class EgressGateway:
    """A running egress gateway, and methods to use it as the process of a job."""

    home: Home
    issuer: LocalIssuer
    names: NameServer
    upstream_authority: trustme.CA = field(default_factory=trustme.CA)
    jobs: dict[str, dict[str, object]] = field(default_factory=dict)
    address: tuple[str, int] = ("", 0)

    def allow(self, rules: str) -> None:
        """Replace the egress rules of the policy."""
        path = self.home.gateway / "policy.toml"
        write_secret(path, (POLICY + rules).encode())

    def identity(self, spiffe_id: SpiffeId) -> Path:
        """Create an identity directory for ``spiffe_id``."""
        directory = Path(tempfile.mkdtemp(dir=self.home.root)) / "identity"
        self.issuer.issue_to(directory, spiffe_id)
        return directory

    def driver(self, job_id: str = JOB) -> Path:
        return self.identity(SpiffeId.driver(TRUST_DOMAIN, job_id))

    def revoke(self, directory: Path) -> None:
        """Revoke the certificate in ``directory``, and install the new CRL for Envoy."""
        self.revoke_serial(read_identity(directory)[0].leaf.serial_number)

    def revoke_serial(self, serial: int) -> None:
        """Revoke the certificate with this serial number, and install the new CRL for Envoy."""
        self.issuer.revocations.revoke(AuthorityKind.INTERNAL, [RevocationTarget(serial)], Reason.SUPERSEDED)
        self.publish_list()

    def publish_list(self) -> None:
        found = self.issuer.revocations.current(AuthorityKind.INTERNAL)
        assert found is not None
        install_crls(self.home.identity(Role.GATEWAY, ENVOY_NAME), found.pem, utc_now())

    def client_context(self, directory: Path) -> ssl.SSLContext:
        policy = server_policy(Channel.EGRESS, TRUST_DOMAIN, role=Role.GATEWAY)
        return TlsIdentity(directory).client_context(policy, alpn=("http/1.1",))

    async def connect(
        self, context: ssl.SSLContext, authority: str, *, head: str = ""
    ) -> tuple[int, bytes, asyncio.StreamReader, asyncio.StreamWriter]:
        """Send CONNECT for ``authority``; returns the status and body of a refusal, or the tunnel."""
        reader, writer = await asyncio.open_connection(*self.address, ssl=context, server_hostname="")
        request = head or f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n"
        writer.write(request.encode("latin-1"))
        answer = await reader.readuntil(b"\r\n\r\n")
        status = int(answer.split(b" ", 2)[1])
        body = b""
        if status != 200:
            length = next(
                (line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0"
            )
            body = await reader.readexactly(int(length.partition(b":")[2]))
            await closed(writer)
        return status, body, reader, writer

    async def refused(self, directory: Path, authority: str) -> tuple[int, str]:
        """Return the status and the reason of a refused CONNECT; fails if it is not refused."""
        status, body, _, _ = await self.connect(self.client_context(directory), authority)
        assert status != 200
        return status, body.decode()

    async def hello(self, directory: Path, authority: str, server_name: str | None) -> bytes:
        """Return what the upstream sends over TLS inside the tunnel; raises ``OSError`` if the tunnel ends before."""
        status, body, reader, writer = await self.connect(self.client_context(directory), authority)
        assert status == 200, body
        return await read_hello(reader, writer, self.upstream_authority, server_name)

    def log_lines(self) -> list[dict[str, Any]]:
        """Return the lines of Envoy's access log about connections of jobs."""
        path = self.home.root / "access" / "access.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return [line for line in lines if line["operation"] == "egress.connect"]

    def decisions(self) -> list[dict[str, Any]]:
        """Return the decisions about connections of jobs from the audit log."""
        lines = [
            json.loads(line)
            for path in sorted((self.home.gateway).rglob("*.jsonl"))
            for line in path.read_text().splitlines()
        ]
        return [each for each in lines if each.get("event") == "decision" and each["operation"] == "egress.connect"]

    @contextlib.asynccontextmanager
    async def tls_upstream(self, *names: str, host: str = "127.0.0.9", port: int = 0) -> AsyncIterator[int]:
        """Run a TLS server that sends a greeting and then echoes; yields its port."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.upstream_authority.issue_cert(*names, host).configure_cert(context)
        async with serving(_echo, host, port, context) as bound:
            yield bound

    @contextlib.asynccontextmanager
    async def plain_upstream(self, host: str = "127.0.0.9", port: int = 0) -> AsyncIterator[int]:
        """Run a plaintext server that sends a greeting and then echoes; yields its port."""
        async with serving(_echo, host, port, None) as bound:
            yield bound


async def read_hello(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, authority: trustme.CA, server_name: str | None
) -> bytes:
    """Do a TLS handshake in a tunnel and read the greeting; raises ``OSError`` if the tunnel ends before.

    ``server_name`` is sent as SNI. If it is None, no SNI is sent and the server's name is not checked.
    """
    context = ssl.create_default_context()
    context.check_hostname = server_name is not None
    authority.configure_trust(context)
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(received, sent, server_hostname=server_name)
    try:
        while True:
            try:
                tls.do_handshake()
                return tls.read()
            except ssl.SSLWantReadError:
                writer.write(sent.read())
                data = await asyncio.wait_for(reader.read(1 << 16), DEADLINE_SECONDS)
                if not data:
                    raise ConnectionResetError("the tunnel has ended") from None
                received.write(data)
    finally:
        await closed(writer)


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@contextlib.asynccontextmanager
async def serving(handler: object, host: str, port: int, context: ssl.SSLContext | None) -> AsyncIterator[int]:
    """Run a stream server within the block; yields its port."""
    server = await asyncio.start_server(handler, host, port, ssl=context)  # type: ignore[arg-type]
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        writer.write(HELLO)
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    await closed(writer)


@contextlib.asynccontextmanager
async def egress_gateway(
    mode: EgressSetting = EgressSetting.ENFORCE, **settings: object
) -> AsyncIterator[EgressGateway]:
    """Run an egress gateway within the block. Its policy allows nothing yet."""
    directory = Path(tempfile.mkdtemp(prefix="slc"))
    home = Home.at(directory).create()
    issuer = LocalIssuer(home.pki, PkiConfig(trust_domain=TRUST_DOMAIN))
    issuer.ensure_authorities()
    issuer.revocations.refresh_all()
    envoy = SpiffeId.process(TRUST_DOMAIN, Role.GATEWAY, ENVOY_NAME)
    issuer.issue_edge_server(home.identity(Role.GATEWAY, EDGE_NAME), envoy, dns=["localhost"], ips=["127.0.0.1"])
    issuer.issue_to(home.identity(Role.GATEWAY, ENVOY_NAME), envoy)
    write_secret(route_file(home), b"[]")
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(shutil.rmtree, directory)
        names = await stack.enter_async_context(name_server())
        gateway = EgressGateway(home, issuer, names)
        gateway.publish_list()
        for job_id, owner, name in ((JOB, "ada", "nightly"), (OTHER_JOB, "bob", "report")):
            gateway.jobs[job_id] = {"id": job_id, "name": name, "owner": owner, "state": "RUNNING", "owner_roles": []}
        gateway.allow("")
        await stack.enter_async_context(_rest(gateway))
        egress = EgressConfig(mode=mode, nameservers=(names.address,), **settings)  # type: ignore[arg-type]
        config = GatewayConfig(port=0, authorization_timeout=5.0)
        for run, ready in (
            (run_auth(home, config, TRUST_DOMAIN, egress=egress), home.sockets / "auth.sock"),
            (run_envoy(home, config, TRUST_DOMAIN, egress=egress), home.run / "endpoints" / "envoy.json"),
        ):
            task = asyncio.create_task(run)
            stack.push_async_callback(_ended, task)
            await _until_ready(task, ready)
        gateway.address = egress_address(egress, home)
        yield gateway


async def _until_ready(task: asyncio.Task[None], path: Path) -> None:
    await until(lambda: path.exists() or task.done(), f"{path.name} does not come up")
    if task.done():
        task.result()


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@contextlib.asynccontextmanager
async def _rest(gateway: EgressGateway) -> AsyncIterator[None]:
    async def answer(request: web.BaseRequest) -> web.Response:
        job = gateway.jobs.get(request.path.rpartition("/")[2])
        return web.json_response(job) if job else web.Response(status=404)

    runner = web.ServerRunner(web.Server(answer, access_log=None), handle_signals=False)
    await runner.setup()
    await web.SockSite(runner, listen_unix(gateway.home.sockets / "rest.sock")).start()
    try:
        yield
    finally:
        await runner.cleanup()
