"""The two processes of the gateway: the auth service, and Envoy in front of it. Both run until cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ipaddress
import logging
import os
from pathlib import Path

import msgspec
from aiohttp import web

from gateway.audit_log import AuditLog, audit_file
from gateway.bootstrap import EnvoyPaths, load_source, render
from gateway.config import GatewayConfig
from gateway.edge_certificate import EdgeCertificateFeed
from gateway.envoy_process import EnvoyProcess
from gateway.errors import EnvoyFailed
from gateway.listening import clear_stale_socket, listen_unix, require_free_port
from gateway.policy import unknown_operations
from gateway.routes import RouteTable
from gateway.service import AuthService
from gateway.snapshot import FileSnapshot
from gateway.tokens import token_snapshot
from pki.errors import SluiceError
from pki.files import SECRET_MODE, make_private_directory, write_atomic, write_secret
from pki.home import Home
from pki.identity import Role
from pki.identity_files import IdentityMaterial
from pki.in_use_reporter import Reporter

_LOG = logging.getLogger(__name__)

MAX_ROUTE_LIST_BYTES = 1 << 20
MAX_CHECK_LINE_BYTES = 64 << 10
"""Envoy takes up to 32 KiB of headers, target included; they must arrive here whole to be refused properly."""
CERTIFICATE_POLL_SECONDS = 0.5
_SHUTDOWN_SECONDS = 2.0


def route_file(home: Home) -> Path:
    """Where the launcher puts the routes that REST publishes."""
    return home.run / "routes.json"


async def run_auth(home: Home, config: GatewayConfig, trust_domain: str) -> None:  # noqa: ARG001  the contract of all processes
    """Serve Envoy's questions on ``auth.sock`` until cancelled.

    Raises :class:`~pki.errors.SluiceError` when tokens, routes or the audit log are not in order: an auth
    service that cannot decide does not start.
    """
    tokens = token_snapshot(home)
    routes = FileSnapshot(route_file(home), RouteTable.decode, limit=MAX_ROUTE_LIST_BYTES)
    tokens.get()
    closed = unknown_operations(route.operation for route in routes.get().routes)
    if closed:
        _LOG.warning("nobody may use these operations, the policy does not know them: %s", ", ".join(closed))
    with contextlib.ExitStack() as stack:
        audit = stack.enter_context(contextlib.closing(AuditLog(audit_file(home))))
        path = EnvoyPaths.of(home).auth_socket
        listener = stack.enter_context(contextlib.closing(listen_unix(path)))
        stack.callback(path.unlink, missing_ok=True)
        service = AuthService(tokens, routes, audit, realm=trust_domain)
        server = web.Server(
            service.handle,
            access_log=None,
            max_line_size=MAX_CHECK_LINE_BYTES,
            max_field_size=MAX_CHECK_LINE_BYTES,
        )
        runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=_SHUTDOWN_SECONDS)
        await runner.setup()
        try:
            await web.SockSite(runner, listener).start()
            _LOG.info("auth service ready on %s with %d routes", path, len(routes.get().routes))
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()


async def run_envoy(home: Home, config: GatewayConfig, trust_domain: str) -> None:
    """Run Envoy until cancelled; ``run/endpoints/envoy.json`` has its address once it accepts.

    A new edge certificate in the identity directory is served within a second, without a restart.

    Raises:
        ListenError: the port is taken.
        EdgeCertificateError: there is no certificate to serve.
        EnvoyFailed: Envoy did not start, or ended by itself.
    """
    paths = EnvoyPaths.of(home)
    state = make_private_directory(paths.edge_secret.parent)
    feed = EdgeCertificateFeed(home.identity(Role.GATEWAY, "envoy"), paths.edge_secret, trust_domain)
    given = feed.update(_now())
    require_free_port(config.host, config.port)
    clear_stale_socket(paths.admin_socket)
    for directory in (home.logs, home.run / "endpoints"):
        make_private_directory(directory)
    bootstrap = state / "bootstrap.json"
    write_secret(bootstrap, msgspec.json.encode(render(load_source(), config, trust_domain, paths)))
    # Envoy would create it readable by everybody.
    os.close(os.open(paths.access_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, SECRET_MODE))
    reporter = Reporter(home.identity(Role.GATEWAY, "envoy"), "envoy")
    published = home.run / "endpoints" / "envoy.json"
    envoy = await EnvoyProcess.start(bootstrap, admin_socket=paths.admin_socket, log=home.logs / "envoy-proxy.log")
    try:
        port = await envoy.listening_port()
        address = {"host": _reachable(config.host), "port": port}
        write_atomic(published, msgspec.json.encode(address), mode=SECRET_MODE)
        _LOG.info("Envoy serves https://%s:%d", config.host, port)
        feeding = asyncio.create_task(_feed_forever(feed, reporter, given))
        try:
            code = await envoy.wait()
        finally:
            feeding.cancel()
            reporter.close()
        raise EnvoyFailed(f"Envoy ended by itself (exit code {code})", envoy.tail())
    finally:
        published.unlink(missing_ok=True)
        await envoy.stop()
        for leftover in (paths.edge_secret, paths.admin_socket):
            leftover.unlink(missing_ok=True)


async def _feed_forever(feed: EdgeCertificateFeed, reporter: Reporter, given: IdentityMaterial | None) -> None:
    """Give each new certificate to Envoy, and tell what Envoy presents: not before it has had time to take it."""
    given_at = _now()
    while True:
        if given is not None:
            reporter.tell(given, given_at, {})
        await asyncio.sleep(CERTIFICATE_POLL_SECONDS)
        try:
            material = feed.update(_now())
        except SluiceError as error:
            _LOG.warning("the new edge certificate is not used, the one before stays: %s", error)
        else:
            if material is not None:
                _LOG.info("Envoy got a new edge certificate, valid until %s", material.leaf.not_valid_after_utc)
                await asyncio.sleep(CERTIFICATE_POLL_SECONDS)
                given, given_at = material, _now()


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _reachable(host: str) -> str:
    """The address for clients on this machine when Envoy listens on all of them."""
    address = ipaddress.ip_address(host)
    if not address.is_unspecified:
        return host
    return "127.0.0.1" if address.version == 4 else "::1"
