"""The two processes of the gateway: the auth service, and Envoy in front of it. Both run until cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ipaddress
import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import msgspec
from aiohttp import web

from gateway.assertion import AssertionSigner, publish_keys
from gateway.audit_log import AuditLog, audit_file
from gateway.bootstrap import EnvoyPaths, legs_of, load_source, render
from gateway.config import AUTH_NAME, EDGE_NAME, ENVOY_NAME, GatewayConfig
from gateway.connect.envoy import connect_operations
from gateway.envoy_process import EnvoyProcess
from gateway.errors import EnvoyFailed
from gateway.key_server import keys_for_jobmanagers
from gateway.listening import clear_stale_socket, listen_unix, require_free_port
from gateway.loaded import UseReports
from gateway.operations import known_operations
from gateway.pass_keys import PassKeys
from gateway.policy_file import PolicyFile, policy_file
from gateway.routes import RouteTable
from gateway.secret_feed import Given, SecretFeed
from gateway.service import AuthService
from gateway.snapshot import FileSnapshot
from gateway.tokens import token_snapshot
from pki.assertion_keys import assertion_keys_file
from pki.channels import Channel, client_policy
from pki.errors import SluiceError
from pki.files import SECRET_MODE, make_private_directory, write_atomic, write_secret
from pki.home import Home
from pki.identity import Role
from pki.in_use_reporter import reporting
from pki.listener import MutualTlsListener
from pki.tls import TlsIdentity

_LOG = logging.getLogger(__name__)

MAX_ROUTE_LIST_BYTES = 1 << 20
MAX_CHECK_LINE_BYTES = 64 << 10
"""Envoy takes up to 32 KiB of headers, target included; they must arrive here whole to be refused properly."""
CERTIFICATE_POLL_SECONDS = 0.5
KEY_CHECK_SECONDS = 10.0
_SHUTDOWN_SECONDS = 2.0


def route_file(home: Home) -> Path:
    """Where the launcher puts the routes that REST publishes."""
    return home.run / "routes.json"


def auth_announcement(home: Home, config: GatewayConfig) -> Path:
    """What is there once the auth service answers: its socket, or the file with its address."""
    return home.run / "endpoints" / "auth.json" if config.auth_host else EnvoyPaths.of(home).auth_socket


def edge_directory(home: Home) -> Path:
    """Where the public certificate is; in a home of earlier versions it took the place of the internal one."""
    directory = home.identity(Role.GATEWAY, EDGE_NAME)
    return directory if directory.exists() else home.identity(Role.GATEWAY, ENVOY_NAME)


async def run_auth(home: Home, config: GatewayConfig, trust_domain: str, name: str = AUTH_NAME) -> None:
    """Serve Envoy's questions until cancelled: on ``auth.sock``, or over mutual TLS on ``config.auth_host``.

    Raises :class:`~pki.errors.SluiceError` when tokens, routes or the audit log are not in order, or there is no
    identity for the network: an auth service that cannot decide does not start.
    """
    tokens = token_snapshot(home)
    routes = FileSnapshot(route_file(home), _decode_routes, limit=MAX_ROUTE_LIST_BYTES)
    policy = PolicyFile(lambda: policy_file(home, config.policy_file), lambda: known_operations(routes.get().routes))
    tokens.get()
    policy.get()
    async with contextlib.AsyncExitStack() as stack:
        audit = stack.enter_context(contextlib.closing(AuditLog(audit_file(home))))
        keys = PassKeys.of(home)
        _refresh_keys(home, keys)
        stack.callback(asyncio.create_task(_refresh_keys_forever(home, keys), name="assertion-keys").cancel)
        service = AuthService(tokens, routes, policy, audit, AssertionSigner(keys), realm=trust_domain)
        server = web.Server(
            keys_for_jobmanagers(service.handle, keys) if config.auth_host else service.handle,
            access_log=None,
            max_line_size=MAX_CHECK_LINE_BYTES,
            max_field_size=MAX_CHECK_LINE_BYTES,
        )
        runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=_SHUTDOWN_SECONDS)
        await runner.setup()
        if config.auth_host:
            identity = TlsIdentity(home.identity(Role.AUTH, name))
            await stack.enter_async_context(reporting(identity, "auth"))
            peers = client_policy(Channel.AUTH, trust_domain)
            listener = MutualTlsListener(identity, Channel.AUTH, peers, server, alpn=("http/1.1",))
            stack.push_async_callback(listener.close)
            stack.push_async_callback(runner.cleanup)
            host, port = await listener.start(config.auth_host, config.auth_port)
            stack.push_async_callback(listener.stop_accepting)
            where = f"{host}:{port}"
            stack.callback(_publish(auth_announcement(home, config), host, port))
        else:
            path = EnvoyPaths.of(home).auth_socket
            listening = stack.enter_context(contextlib.closing(listen_unix(path)))
            stack.callback(path.unlink, missing_ok=True)
            stack.push_async_callback(runner.cleanup)
            await web.SockSite(runner, listening).start()
            where = str(path)
        _LOG.info("auth service ready on %s with %d routes", where, len(routes.get().routes))
        await asyncio.Event().wait()


async def run_envoy(
    home: Home, config: GatewayConfig, trust_domain: str, *, rest: tuple[str, int] | None = None
) -> None:
    """Run Envoy until cancelled; ``run/endpoints/envoy.json`` has its address once it accepts.

    What changes in its identity directories (certificates, anchors, revocation lists) counts within seconds, without
    a restart.

    Args:
        home: where identities, sockets and logs are.
        config: where it listens, and where it finds the auth service.
        trust_domain: that of all identities.
        rest: where it finds REST over mutual TLS; None: on its unix socket.

    Raises:
        ListenError: the port is taken.
        EnvoyIdentityError: an identity is not what it should be.
        StoreError: an identity is missing or damaged.
        EnvoyFailed: Envoy did not start, or ended by itself.
    """
    paths = EnvoyPaths.of(home)
    legs = legs_of(config, paths, rest)
    # Before anything is written: another gateway of this home may be using the files.
    require_free_port(config.host, config.port)
    clear_stale_socket(paths.admin_socket)
    make_private_directory(paths.edge_secret.parent)
    feeds = [SecretFeed.edge(edge_directory(home), paths.edge_secret, trust_domain)]
    if legs.any_tls:
        own = home.identity(Role.GATEWAY, ENVOY_NAME)
        feeds.append(SecretFeed.internal(own, paths.internal_secrets, trust_domain))
    with contextlib.ExitStack() as stack:
        first: dict[SecretFeed, Given] = {}
        for feed in feeds:
            stack.callback(feed.withdraw)
            if (given := feed.update(_now())) is not None:
                first[feed] = given
        document = render(load_source(), config, trust_domain, paths, legs)
        write_secret(_bootstrap_file(paths), msgspec.json.encode(document))
        await _run_envoy(home, config, paths, first)


async def _run_envoy(home: Home, config: GatewayConfig, paths: EnvoyPaths, first: Mapping[SecretFeed, Given]) -> None:
    make_private_directory(home.logs)
    # Envoy would create it readable by everybody.
    os.close(os.open(paths.access_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, SECRET_MODE))
    envoy = await EnvoyProcess.start(
        _bootstrap_file(paths), admin_socket=paths.admin_socket, log=home.logs / "envoy-proxy.log"
    )
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(paths.admin_socket.unlink, missing_ok=True)
        reports = UseReports(envoy)
        stack.callback(reports.close)
        stack.push_async_callback(envoy.stop)
        port = await envoy.listening_port()
        stack.callback(_publish(home.run / "endpoints" / "envoy.json", config.host, port))
        _LOG.info("Envoy serves https://%s:%d", config.host, port)
        feeding = asyncio.create_task(_feed_forever(first, reports))
        stack.callback(feeding.cancel)
        code = await envoy.wait()
        raise EnvoyFailed(f"Envoy ended by itself (exit code {code})", envoy.tail())


def _decode_routes(data: bytes) -> RouteTable:
    """REST's routes, and the methods of Spark Connect."""
    return RouteTable([*RouteTable.decode(data).routes, *connect_operations()])


def _refresh_keys(home: Home, keys: PassKeys) -> None:
    if keys.refresh(time.time()) or not assertion_keys_file(home).exists():
        publish_keys(home, keys)


async def _refresh_keys_forever(home: Home, keys: PassKeys) -> None:
    while True:
        await asyncio.sleep(KEY_CHECK_SECONDS)
        try:
            await asyncio.to_thread(_refresh_keys, home, keys)
        except (SluiceError, OSError):
            _LOG.exception("cannot look after the keys of assertions now; trying again")


def _bootstrap_file(paths: EnvoyPaths) -> Path:
    return paths.edge_secret.with_name("bootstrap.json")


def _publish(path: Path, host: str, port: int) -> Callable[[], None]:
    """Announce an address for processes of this home; returns what withdraws it."""
    make_private_directory(path.parent)
    write_atomic(path, msgspec.json.encode({"host": _reachable(host), "port": port}), mode=SECRET_MODE)
    return partial(path.unlink, missing_ok=True)


async def _feed_forever(first: Mapping[SecretFeed, Given], reports: UseReports) -> None:
    for feed, given in first.items():
        reports.await_loading(feed, given)
    while True:
        await reports.look(_now())
        await asyncio.sleep(CERTIFICATE_POLL_SECONDS)
        for feed in first:
            _feed(feed, reports)


def _feed(feed: SecretFeed, reports: UseReports) -> None:
    try:
        given = feed.update(_now())
    except SluiceError as error:
        _LOG.warning("the new %s identity is not used, the one before stays: %s", feed.side, error)
        return
    if given is not None:
        reports.await_loading(feed, given)
        _LOG.info(
            "Envoy got its %s identity, valid until %s, %d trust anchors, revocation lists %s",
            feed.side,
            given.material.leaf.not_valid_after_utc,
            len(given.anchors),
            ", ".join(str(each.number) for each in given.lists) or "none",
        )


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _reachable(host: str) -> str:
    """The address for clients on this machine when Envoy listens on all of them."""
    address = ipaddress.ip_address(host)
    if not address.is_unspecified:
        return host
    return "127.0.0.1" if address.version == 4 else "::1"
