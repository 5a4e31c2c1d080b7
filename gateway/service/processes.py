"""The two processes of the gateway: the auth service, and Envoy in front of it. Both run until cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

import msgspec
from aiohttp import web

from sluice.core import (
    SECRET_MODE,
    EgressConfig,
    EgressSetting,
    Home,
    TracingConfig,
    clear_stale_socket,
    egress_endpoint,
    listen_unix,
    make_private_directory,
    utc_now,
    write_atomic,
    write_secret,
)
from sluice.core.grpc import Method
from sluice.gateway.acme import ChallengeResources
from sluice.gateway.audit_export import exporting
from sluice.gateway.audit_log import (
    AuditLog,
    AuditRecord,
    audit_directory,
    audit_file,
    keeping,
    make_access_log,
    read_records,
    rotating,
)
from sluice.gateway.authn import validity_in
from sluice.gateway.config import (
    AUTH_NAME,
    EDGE_NAME,
    ENVOY_NAME,
    GatewayConfig,
    auth_number,
    envoy_names,
)
from sluice.gateway.egress import RestJobs, authorization
from sluice.gateway.egress_evidence import EgressEvidence
from sluice.gateway.envoy_config import EGRESS, collector_of, is_on, load_source
from sluice.gateway.errors import BootstrapError, EnvoyFailed
from sluice.gateway.job_tokens import JobTokenDecisions
from sluice.gateway.listening import ByApplicationProtocol, require_free_port
from sluice.gateway.proxy import (
    SOURCE,
    EnvoyAdmin,
    EnvoyElsewhere,
    EnvoyPaths,
    EnvoyProcess,
    SecretFeed,
    Secrets,
    Side,
    Sources,
    UseReports,
    legs_of,
    of_auth,
    publishing,
    render,
)
from sluice.gateway.rest_client import RestClient
from sluice.gateway.service.assembly import auth_service, egress_checks, route_file
from sluice.gateway.service.edge_certificate import certificate_files, renewing, require_free_challenge_port
from sluice.gateway.service.jobmanager_api import with_jobmanager_api
from sluice.gateway.xds import XdsStatus, status_file, xds_service
from sluice.pki import Channel, Role, client_policy
from sluice.pki.enrolment import Locate
from sluice.pki.tls import MutualTlsListener, TlsIdentity
from sluice.pki.trust import reporting

__all__ = [
    "auth_announcement",
    "edge_directory",
    "envoy_announcement",
    "ext_authz_announcement",
    "route_file",
    "run_auth",
    "run_envoy",
]

_LOG = logging.getLogger(__name__)

MAX_CHECK_LINE_BYTES = 64 << 10
"""Envoy takes up to 32 KiB of headers, target included; they must arrive here whole to be refused properly."""
_SHUTDOWN_SECONDS = 2.0
NO_EGRESS = EgressConfig(mode=EgressSetting.OFF)


def auth_announcement(home: Home, config: GatewayConfig, number: int = 1) -> Path:
    """The path that exists once the auth service answers: its socket, or the file with its address."""
    return (
        home.run / "endpoints" / "auth.json" if config.auth_host else of_auth(EnvoyPaths.of(home).auth_socket, number)
    )


def ext_authz_announcement(home: Home, number: int = 1) -> Path:
    """The file with the address of the gRPC listener, while it serves."""
    return of_auth(home.run / "endpoints" / "ext-authz.json", number)


def envoy_announcement(home: Home, name: str = ENVOY_NAME) -> Path:
    """The file with the address of Envoy ``name``, while it serves."""
    return (home if name == ENVOY_NAME else home.envoy(name)).run / "endpoints" / "envoy.json"


def edge_directory(home: Home) -> Path:
    """Where the public certificate is; in a home of earlier versions it took the place of the internal one."""
    directory = home.identity(Role.GATEWAY, EDGE_NAME)
    return directory if directory.exists() else home.identity(Role.GATEWAY, ENVOY_NAME)


async def run_auth(
    home: Home,
    config: GatewayConfig,
    trust_domain: str,
    name: str = AUTH_NAME,
    *,
    rest: tuple[str, int] | None = None,
    locate_ca: Locate | None = None,
    tracing: TracingConfig | None = None,
    egress: EgressConfig | None = None,
) -> None:
    """Serve Envoy's questions, and its configuration, until cancelled: on sockets, or on ``config.auth_host``.

    ``rest`` is where Envoy finds REST over mutual TLS; None: on its unix socket. ``locate_ca`` tells where the online
    authority is; None: it is announced in ``home``. With ``tracing`` Envoy takes part. ``egress`` is the way out of
    jobs, with the mode that holds; None: there is none.

    Raises ``SluiceError`` when tokens, routes or the audit log are not in order, or there is no
    identity for the network: an auth service that cannot decide does not start.
    """
    paths, number = EnvoyPaths.of(home), auth_number(config, name)
    server_name = "auth" if number == 1 else name
    async with contextlib.AsyncExitStack() as stack:
        service = await stack.enter_async_context(auth_service(home, config, trust_domain, name, locate_ca=locate_ca))
        checks, decides = service.checks, service.checks.authenticator
        await stack.enter_async_context(keeping(home, checks.audit.log))
        await stack.enter_async_context(exporting(home, config.audit_exports))
        if config.auth_host or config.ext_authz is not None:
            identity = TlsIdentity(home.identity(Role.AUTH, name))
            await stack.enter_async_context(reporting(identity, "auth"))
        server = web.Server(
            with_jobmanager_api(
                service.handle,
                decides.pass_keys,
                validity_in(home, config),
                tokens=JobTokenDecisions(decides.policy.get, checks.audit),
                egress=EgressEvidence(
                    decides.policy.get, checks.audit.append_all, partial(_last_records, audit_directory(home))
                ).answer,
                audit=checks.audit,
                identity=identity,
            )
            if config.auth_host
            else service.handle,
            access_log=None,
            max_line_size=MAX_CHECK_LINE_BYTES,
            max_field_size=MAX_CHECK_LINE_BYTES,
        )
        runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=_SHUTDOWN_SECONDS)
        await runner.setup()
        outside = egress or NO_EGRESS
        of_jobs: Mapping[str, Method] = {}
        if is_on(outside):
            asking = TlsIdentity(home.identity(Role.AUTH, name)) if rest is not None else None
            jobs = RestJobs(service.checks.signer, RestClient(legs_of(config, paths, rest).rest, asking))
            of_jobs = authorization(
                await stack.enter_async_context(egress_checks(service, jobs, outside, trust_domain))
            )
        xds = await stack.enter_async_context(
            xds_service(
                status_file(home, server_name),
                None if config.auth_host else of_auth(paths.xds_socket, number),
                of_jobs,
            )
        )
        if config.auth_host:
            peers = client_policy(Channel.AUTH, trust_domain)
            # nginx names no protocol, and means HTTP/1.1.
            serving: dict[str, Callable[[], asyncio.Protocol]] = {
                "h2": xds.server.protocol,
                "http/1.1": server,
                "": server,
            }
            listener = MutualTlsListener(
                identity,
                Channel.AUTH,
                peers,
                lambda: ByApplicationProtocol(serving),
                alpn=("h2", "http/1.1"),
                alpn_required=False,
            )
            stack.push_async_callback(listener.close)
            stack.push_async_callback(runner.cleanup)
            host, port = await listener.start(config.auth_host, config.auth_port)
            stack.push_async_callback(listener.stop_accepting)
            where = f"{host}:{port}"
            config = msgspec.structs.replace(config, auth_port=port)
            stack.callback(_publish(auth_announcement(home, config), host, port))
        else:
            path = of_auth(paths.auth_socket, number)
            listening = stack.enter_context(contextlib.closing(listen_unix(path)))
            stack.callback(path.unlink, missing_ok=True)
            stack.push_async_callback(runner.cleanup)
            await web.SockSite(runner, listening).start()
            where = str(path)
        legs = legs_of(config, paths, rest)
        sources = Sources(checks.routes, decides.policy, decides.pass_keys, decides.revocations)
        copy, collector = paths.configuration, collector_of(tracing) if tracing else None
        await stack.enter_async_context(
            publishing(xds, config, trust_domain, legs, sources, copy=copy, collector=collector, egress=outside)
        )
        if config.ext_authz is not None:
            # Late: importing gRPC takes longer than all else, and few have such a listener.
            from sluice.gateway.service.grpc_server import ext_authz_listener

            asked = ext_authz_listener(
                home, config.ext_authz.of_number(number), checks, identity, users=edge_directory(home), number=number
            )
            address = await stack.enter_async_context(asked)
            stack.callback(_publish(ext_authz_announcement(home, number), *address))
        _LOG.info("auth service ready on %s with %d routes", where, len(checks.routes.get().routes))
        await asyncio.Event().wait()


def _last_records(directory: Path, last: int) -> Iterator[AuditRecord]:
    return read_records(directory, last=last)


async def run_envoy(
    home: Home,
    config: GatewayConfig,
    trust_domain: str,
    name: str = ENVOY_NAME,
    *,
    rest: tuple[str, int] | None = None,
    elsewhere: bool = False,
    egress: EgressConfig | None = None,
) -> None:
    """Run Envoy until cancelled; ``run/endpoints/envoy.json`` has its address once it accepts.

    What changes in its identity directories (certificates, anchors, revocation lists) counts within seconds, without
    a restart.

    Args:
        home: where identities, sockets and logs are.
        config: where it listens, and where it finds the auth service.
        trust_domain: that of all identities.
        name: which of the Envoys of this home; each but the first has files of its own below ``envoys``.
        rest: where it finds REST over mutual TLS; None: on its unix socket.
        elsewhere: somebody else starts Envoy, with the bootstrap that is written here, and shares ``run`` with this
            process: the sockets on which Envoy is given its secrets and is asked.
        egress: the way out of jobs, with the mode that holds; None: there is none.

    Raises:
        ListenError: the port is taken.
        EnvoyIdentityError: an identity is not what it should be.
        EdgeCertificateError: the certificate of another authority is not what it should be.
        StoreError: an identity is missing or damaged.
        EnvoyFailed: Envoy did not start, or ended by itself.
    """
    if name not in envoy_names(config):
        raise BootstrapError(
            f"gateway.envoys is {config.envoys}, and {name[:80]!r} is none of {', '.join(envoy_names(config))}",
            "use one of these names, or set gateway.envoys",
        )
    own = home if name == ENVOY_NAME else home.envoy(name).create()
    paths = EnvoyPaths.of(home, name)
    legs, outside, shared = legs_of(config, paths, rest), egress or NO_EGRESS, config.envoys > 1
    # Before anything is written: another gateway of this home may be using the files.
    if not elsewhere:
        require_free_port(config.host, config.port, shared=shared)
        if config.http3:
            require_free_port(config.host, config.port, udp=True)
        if is_on(outside):
            require_free_port(outside.host, outside.port, shared=shared)
        require_free_challenge_port(config)
        clear_stale_socket(paths.admin_socket)
    make_private_directory(paths.bootstrap.parent)
    feeds = [SecretFeed(edge_directory(home), Side.EDGE, trust_domain)]
    if legs.any_tls or is_on(outside):
        feeds.append(SecretFeed(home.identity(Role.GATEWAY, name), Side.INTERNAL, trust_domain))
    first = {feed: given for feed in feeds if (given := feed.update(utc_now())) is not None}
    files = certificate_files(home, config)
    async with xds_service(status_file(home, name), paths.sds_socket) as sds:
        secrets = Secrets(sds, first, files, ChallengeResources.of(home, config))
        document = render(load_source(SOURCE), config, trust_domain, paths, legs)
        _prepare_access_log(paths)
        write_secret(paths.bootstrap, msgspec.json.encode(document))
        running = _Running(
            own, config, paths, secrets, outside, chains=bool(config.auth_host) or own is not home, status=sds.status
        )
        if elsewhere:
            await _accompany_envoy(running, EnvoyElsewhere(paths.admin_socket))
        await _run_envoy(running, home.root)


@dataclass(frozen=True, slots=True)
class _Running:
    """What an Envoy runs with: ``home`` is its own part of it, and ``chains`` whether it chains its own access log."""

    home: Home
    config: GatewayConfig
    paths: EnvoyPaths
    secrets: Secrets
    egress: EgressConfig
    chains: bool
    status: XdsStatus
    """What Envoy has taken of its secrets."""


def _prepare_access_log(paths: EnvoyPaths) -> None:
    make_private_directory(paths.access_log.parent)
    make_access_log(paths.access_log)


async def _chain_access_log(running: _Running, stack: contextlib.AsyncExitStack) -> None:
    """No auth service reads this access log (it is on another machine, or reads the first one's): it has a chain."""
    if running.chains:
        log = stack.enter_context(contextlib.closing(AuditLog(audit_file(running.home))))
        await stack.enter_async_context(keeping(running.home, log))
        await stack.enter_async_context(exporting(running.home, running.config.audit_exports))


async def _accompany_envoy(running: _Running, envoy: EnvoyElsewhere) -> NoReturn:
    """Announce an Envoy that another process starts, whenever it serves."""
    home, config = running.home, running.config
    async with contextlib.AsyncExitStack() as stack:
        await _chain_access_log(running, stack)
        reports = UseReports(envoy)
        stack.callback(reports.close)
        stack.callback(asyncio.create_task(running.secrets.feed_forever(reports)).cancel)
        await stack.enter_async_context(rotating(running.paths.access_log, envoy))
        while True:
            port = await envoy.until_serving()
            with contextlib.ExitStack() as announced:
                announced.callback(_publish(envoy_announcement(home), config.host, port))
                await _announce_egress(home, envoy, running.egress, announced)
                _LOG.info("Envoy serves https://%s:%d", config.host, port)
                async with renewing(home, config, envoy, running.status, _publish):
                    await envoy.until_gone()
                _LOG.warning("Envoy does not answer any more")


async def _announce_egress(
    home: Home, envoy: EnvoyAdmin, egress: EgressConfig, announced: contextlib.ExitStack | contextlib.AsyncExitStack
) -> None:
    """Say where the listener for jobs is, once it accepts."""
    if is_on(egress):
        port = await envoy.until_listening(EGRESS)
        announced.callback(_publish(egress_endpoint(home), egress.host, port))
        _LOG.info("Envoy takes connections of jobs to destinations outside on %s:%d", egress.host, port)


async def _run_envoy(running: _Running, directory: Path) -> None:
    home, config, paths = running.home, running.config, running.paths
    make_private_directory(home.logs)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(paths.admin_socket.unlink, missing_ok=True)
        await _chain_access_log(running, stack)
        # In the home, where the paths of its configuration begin: that may come from another machine.
        envoy = await EnvoyProcess.start(
            paths.bootstrap, admin_socket=paths.admin_socket, log=home.logs / "envoy-proxy.log", directory=directory
        )
        reports = UseReports(envoy)
        stack.callback(reports.close)
        stack.push_async_callback(envoy.stop)
        feeding = asyncio.create_task(running.secrets.feed_forever(reports))
        stack.callback(feeding.cancel)
        await stack.enter_async_context(rotating(paths.access_log, envoy))
        port = await envoy.listening_port()
        await _announce_egress(home, envoy, running.egress, stack)
        stack.callback(_publish(envoy_announcement(home), config.host, port))
        _LOG.info("Envoy serves https://%s:%d", config.host, port)
        await stack.enter_async_context(renewing(home, config, envoy, running.status, _publish))
        code = await envoy.wait()
        raise EnvoyFailed(f"Envoy ended by itself (exit code {code})", envoy.tail())


def _publish(path: Path, host: str, port: int) -> Callable[[], None]:
    """Announce an address for processes of this home; returns what withdraws it."""
    make_private_directory(path.parent)
    write_atomic(path, msgspec.json.encode({"host": _reachable(host), "port": port}), mode=SECRET_MODE)
    return partial(path.unlink, missing_ok=True)


def _reachable(host: str) -> str:
    """The address for clients on this machine when Envoy listens on all of them."""
    address = ipaddress.ip_address(host)
    if not address.is_unspecified:
        return host
    return "127.0.0.1" if address.version == 4 else "::1"
