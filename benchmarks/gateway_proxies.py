"""The four reverse proxies that :mod:`benchmarks.gateway` compares, in front of one cheap upstream.

All except nginx are the same Envoy with the same listener (TLS, limits, header rules, access log). Ours runs as in the
product, ``bare`` without authorization, and ``grpc`` asks the auth service over gRPC about every request.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import datetime as dt
import json
import os
import shutil
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import psutil

from sluice.core import Home, write_secret
from sluice.gateway import EDGE_NAME, GatewayConfig
from sluice.gateway.authz import DEFAULT_POLICY, Route, RouteTable, known_operations, read_policy
from sluice.gateway.credentials import AccessTokenKeys, create_token, issue
from sluice.gateway.envoy_config import (
    SOURCE,
    Grants,
    edge_clusters,
    edge_listener,
    extension,
    load_source,
    rate_limit,
    route_configuration,
)
from sluice.gateway.proxy import EnvoyPaths, EnvoyProcess, upstreams_of
from sluice.gateway.service import route_file, run_envoy
from sluice.pki import PkiConfig, Role, SpiffeId
from sluice.pki.assertions import Credential, Principal
from sluice.pki.issuing import LocalIssuer
from sluice.pki.tls import edge_client_context

TRUST_DOMAIN = "bench.test"
PATH = "/v1/jobs"
LOAD = Path(__file__).resolve().parent.parent / "build" / "load"
WORKERS = 2
CONFIG = GatewayConfig(port=0, address_requests_per_second=1e6, principal_requests_per_second=1e6)
"""Requests count against the rate limits as in production, but the limits are out of reach of this single client."""
READY_SECONDS = 30.0
ROUTES = (
    Route("GET", "/v1/overview", "overview.read"),
    Route("GET", PATH, "jobs.list"),
    Route("POST", PATH, "jobs.submit"),
    Route("GET", "/v1/jobs/{job_id}", "jobs.read"),
    Route("PATCH", "/v1/jobs/{job_id}", "jobs.cancel"),
)

JOBS = {
    "jobs": [
        {
            "id": f"{number:032x}",
            "name": f"pipeline-{number}.py",
            "owner": "bench",
            "state": "FINISHED",
            "submitted_at": "2027-01-01T00:00:00Z",
            "progress": {"tasks_done": 200, "tasks_running": 0, "tasks": 200},
        }
        for number in range(25)
    ]
}
"""A realistic list of jobs, about 5 kB."""

_ROUTER = extension(
    "envoy.filters.http.router", "envoy.extensions.filters.http.router.v3.Router", suppress_envoy_headers=True
)


@dataclass(frozen=True, slots=True)
class ProxyUnderTest:
    """A reverse proxy: its port, the credential of the client, and the processes whose CPU time counts."""

    name: str
    port: int
    credential: str
    pids: Sequence[int]
    asked: Sequence[int] = ()
    upstream: Sequence[int] = ()

    def cpu(self) -> tuple[float, float, float]:
        """CPU seconds so far: of the proxy, of the auth service, and of the upstream."""
        return _cpu(self.pids), _cpu(self.asked), _cpu(self.upstream)


def _cpu(pids: Sequence[int]) -> float:
    total = 0.0
    for pid in pids:
        times = psutil.Process(pid).cpu_times()
        total += times.user + times.system
    return total


@dataclass(slots=True)
class Site:
    """A home with everything that the proxies share."""

    home: Home
    directory: Path
    authority: Path = field(init=False)
    token: str = field(init=False)

    def prepare(self) -> None:
        """Create identities, routes and a token."""
        self.home.create()
        issuer = LocalIssuer(self.directory / "pki", PkiConfig(trust_domain=TRUST_DOMAIN))
        issuer.ensure_authorities()
        identity = SpiffeId.process(TRUST_DOMAIN, Role.GATEWAY, "envoy")
        issuer.issue_edge_server(self.edge, identity, dns=["localhost"], ips=["127.0.0.1"])
        self.authority = self.directory / "pki" / "authorities" / "edge" / "cert.pem"
        write_secret(route_file(self.home), msgspec.json.encode(ROUTES))
        self.token = create_token(self.home, name="bench", role="viewer", lifetime=dt.timedelta(hours=1))

    @property
    def edge(self) -> Path:
        """The identity of all proxies."""
        return self.home.identity(Role.GATEWAY, EDGE_NAME)

    def access_token(self) -> str:
        """Issue a short-lived access token, as the auth service does."""
        keys = AccessTokenKeys.of(self.home)
        keys.load()
        policy = read_policy(DEFAULT_POLICY, known_operations(ROUTES))
        principal = Principal("bench", ("viewer",), "token", Credential("token", "bench"))
        return issue(principal, keys, policy, now=time.time(), lifetime=dt.timedelta(hours=1))[0]

    def tls(self) -> ssl.SSLContext:
        """Return the TLS context of a client."""
        return edge_client_context(self.authority)


@contextlib.asynccontextmanager
async def proxies() -> AsyncIterator[list[ProxyUnderTest]]:
    """Run all proxies within the block."""
    directory = Path(tempfile.mkdtemp(prefix="slb"))
    site = Site(Home.at(directory / "h"), directory)
    try:
        site.prepare()
        async with contextlib.AsyncExitStack() as stack:
            sockets = EnvoyPaths.of(site.home)
            upstream = await stack.enter_async_context(
                _nginx("upstream", directory, _upstream_conf(directory, sockets.rest_socket))
            )
            auth = await stack.enter_async_context(_python("auth", site.home.root))
            await _until(sockets.auth_socket.exists, "the auth service")
            opened = [
                await stack.enter_async_context(_ours(site, auth)),
                await stack.enter_async_context(_bare(site)),
                await stack.enter_async_context(_auth_request(site, auth)),
                await stack.enter_async_context(_per_request_grpc(site)),
            ]
            yield [replace(proxy, upstream=upstream) for proxy in opened]
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.asynccontextmanager
async def _ours(site: Site, auth: int) -> AsyncIterator[ProxyUnderTest]:
    """Envoy as the product runs it."""
    running = asyncio.create_task(run_envoy(site.home, CONFIG, TRUST_DOMAIN))
    endpoint = site.home.run / "endpoints" / "envoy.json"
    try:
        await _until(lambda: endpoint.exists() or running.done(), "Envoy")
        if running.done():
            running.result()
        port = json.loads(endpoint.read_bytes())["port"]
        mine = [child.pid for child in psutil.Process().children() if str(site.home.root) in " ".join(child.cmdline())]
        envoys = [pid for pid in mine if pid != auth and "envoy" in psutil.Process(pid).name()]
        yield ProxyUnderTest("sluice", port, site.access_token(), envoys, [auth])
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@contextlib.asynccontextmanager
async def _bare(site: Site) -> AsyncIterator[ProxyUnderTest]:
    """Envoy with the same listener, limits and upstream, but without authorization."""
    async with _envoy(site, "bare", [*rate_limit(CONFIG), _ROUTER], []) as (port, pid):
        yield ProxyUnderTest("bare Envoy", port, site.access_token(), [pid])


@contextlib.asynccontextmanager
async def _per_request_grpc(site: Site) -> AsyncIterator[ProxyUnderTest]:
    """Envoy with the same listener, which asks the auth service over gRPC about every request."""
    other = site.directory / "g"
    Home.at(other).create()
    shutil.copytree(site.home.gateway, Home.at(other).gateway, dirs_exist_ok=True)
    Home.at(other).gateway.joinpath("audit.jsonl").unlink(missing_ok=True)
    write_secret(route_file(Home.at(other)), msgspec.json.encode(ROUTES))
    socket = site.directory / "ask.sock"
    async with _python("grpc", other, socket) as pid:
        await _until(socket.exists, "the gRPC service")
        ask = extension(
            "ask",
            "envoy.extensions.filters.http.ext_authz.v3.ExtAuthz",
            transport_api_version="V3",
            grpc_service={"envoy_grpc": {"cluster_name": "ask"}, "timeout": "5s"},
        )
        cluster: dict[str, object] = {
            "name": "ask",
            "connect_timeout": "1s",
            "typed_extension_protocol_options": {
                "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                    "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                    "explicit_http_config": {"http2_protocol_options": {}},
                }
            },
            "load_assignment": {
                "cluster_name": "ask",
                "endpoints": [{"lb_endpoints": [{"endpoint": {"address": {"pipe": {"path": str(socket)}}}}]}],
            },
        }
        async with _envoy(site, "grpc", [*rate_limit(CONFIG), ask, _ROUTER], [cluster]) as (port, envoy):
            yield ProxyUnderTest("Envoy, gRPC ext_authz", port, site.token, [envoy], [pid])


@contextlib.asynccontextmanager
async def _auth_request(site: Site, auth: int) -> AsyncIterator[ProxyUnderTest]:
    """nginx, which asks the same auth service about every request."""
    port = _free_port()
    sockets = EnvoyPaths.of(site.home)
    conf = f"""
    upstream auth {{ server unix:{sockets.auth_socket}; keepalive 64; }}
    upstream rest {{ server unix:{sockets.rest_socket}; keepalive 64; }}
    server {{
      listen 127.0.0.1:{port} ssl;
      server_name localhost;
      ssl_certificate {site.edge}/chain.pem;
      ssl_certificate_key {site.edge}/key.pem;
      ssl_protocols TLSv1.3;
      ssl_session_tickets off;
      keepalive_requests 100000000;
      access_log {site.directory}/nginx.access;
      location / {{
        auth_request /_check;
        auth_request_set $assertion $upstream_http_x_sluice_assertion;
        proxy_set_header x-sluice-assertion $assertion;
        proxy_set_header authorization "";
        proxy_http_version 1.1;
        proxy_set_header connection "";
        proxy_pass http://rest;
      }}
      location = /_check {{
        internal;
        proxy_http_version 1.1;
        proxy_set_header connection "";
        proxy_set_header content-length "";
        proxy_pass_request_body off;
        proxy_pass http://auth$request_uri;
      }}
    }}"""
    async with _nginx("proxy", site.directory, conf) as pids:
        yield ProxyUnderTest("nginx, auth_request", port, site.token, pids, [auth])


@contextlib.asynccontextmanager
async def _envoy(
    site: Site, name: str, filters: list[dict[str, object]], more: list[dict[str, object]]
) -> AsyncIterator[tuple[int, int]]:
    """Run an Envoy with the product's listener but these filters, configured from a file; yields its port and pid."""
    config = CONFIG
    paths = EnvoyPaths.of(site.home)
    listener: Any = edge_listener(load_source(SOURCE), config)
    chain = listener["filter_chains"][0]
    secret = {"certificate_chain": {"filename": f"{site.edge}/chain.pem"}}
    secret["private_key"] = {"filename": f"{site.edge}/key.pem"}
    common = chain["transport_socket"]["typed_config"]["common_tls_context"]
    for key in list(common):
        if key.startswith(("tls_certificate_sds", "combined", "validation")):
            del common[key]
    common["tls_certificates"] = [secret]
    manager = chain["filters"][0]["typed_config"]
    del manager["rds"]
    manager["http_filters"] = filters
    manager["access_log"][0]["typed_config"]["path"] = f"{site.directory}/{name}.access"
    routes: Any = copy.deepcopy(route_configuration(config, RouteTable(ROUTES).routes, Grants({})))
    for host in routes["virtual_hosts"]:
        host.pop("typed_per_filter_config", None)
        for route in host["routes"]:
            route.pop("typed_per_filter_config", None)
            route.pop("request_headers_to_add", None)
    manager["route_config"] = routes
    socket = site.directory / f"{name}.sock"
    bootstrap = site.directory / f"{name}.json"
    clusters = edge_clusters(config, TRUST_DOMAIN, upstreams_of(config, paths))
    layer = {"name": "static", "static_layer": {"re2.max_program_size.error_level": 100000}}
    document = {
        "admin": {"address": {"pipe": {"path": str(socket)}}},
        "layered_runtime": {"layers": [layer]},
        "static_resources": {"listeners": [listener], "clusters": [*clusters, *more]},
    }
    bootstrap.write_bytes(msgspec.json.encode(document))
    envoy = await EnvoyProcess.start(bootstrap, admin_socket=socket, log=site.directory / f"{name}.log")
    try:
        yield await envoy.listening_port(), envoy.pid
    finally:
        await envoy.stop()


def _upstream_conf(directory: Path, socket: Path) -> str:
    (directory / "jobs.json").write_bytes(msgspec.json.encode(JOBS))
    socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return f"""
    server {{
      listen unix:{socket};
      access_log off;
      keepalive_requests 100000000;
      root {directory};
      open_file_cache max=10;
      location / {{ default_type application/json; try_files /jobs.json =404; }}
    }}"""


@contextlib.asynccontextmanager
async def _nginx(name: str, directory: Path, server: str) -> AsyncIterator[list[int]]:
    """Run an nginx with this server; yields the pids of its workers."""
    prefix = directory / f"nginx-{name}"
    prefix.mkdir()
    conf = prefix / "nginx.conf"
    workers = 1 if name == "upstream" else WORKERS
    temporary = "".join(
        f"  {each}_temp_path {prefix}/{each};\n" for each in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    # As root, nginx would switch to another user, which may not open the sockets.
    user = "user root root;\n" if os.geteuid() == 0 else ""
    conf.write_text(
        f"{user}daemon off;\nworker_processes {workers};\npid {prefix}/pid;\nerror_log {prefix}/error.log warn;\n"
        f"events {{ worker_connections 1024; }}\nhttp {{\n{temporary}{server}\n}}\n"
    )
    process = await asyncio.create_subprocess_exec(
        str(LOAD / "usr/sbin/nginx"), "-p", str(prefix), "-c", str(conf), "-e", f"{prefix}/error.log"
    )
    try:
        master = psutil.Process(process.pid)
        await _until(lambda: len(master.children()) >= workers, f"nginx ({name})")
        yield [child.pid for child in master.children()]
    finally:
        process.terminate()
        await process.wait()


@contextlib.asynccontextmanager
async def _python(kind: str, home: Path, *more: Path) -> AsyncIterator[int]:
    """Run an auth service in a separate process; yields its pid."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.gateway_auth", kind, str(home), *map(str, more)
    )
    try:
        yield process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} does not come up")
        await asyncio.sleep(0.05)


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
