"""Runs Envoy, or accompanies an externally started one, and serves its secrets until cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import msgspec

from sluice.core import (
    EgressConfig,
    Home,
    clear_stale_socket,
    egress_endpoint,
    make_private_directory,
    utc_now,
    write_secret,
)
from sluice.gateway.acme import ChallengeResources
from sluice.gateway.audit_export import exporting
from sluice.gateway.audit_log import AuditLog, audit_file, maintaining, make_access_log, rotating
from sluice.gateway.config import ENVOY_NAME, GatewayConfig, envoy_names
from sluice.gateway.envoy_config import EGRESS, NO_EGRESS, is_on, load_source
from sluice.gateway.errors import BootstrapError, EnvoyFailed
from sluice.gateway.listening import require_free_port
from sluice.gateway.proxy import (
    SOURCE,
    EnvoyAdmin,
    EnvoyPaths,
    EnvoyProcess,
    ExternalEnvoy,
    LoadedCertificateReports,
    SecretFeed,
    Secrets,
    Side,
    render,
    upstreams_of,
)
from sluice.gateway.service.announcements import envoy_announcement, publish
from sluice.gateway.service.edge_certificate import (
    certificate_files,
    edge_directory,
    renewing,
    require_free_challenge_port,
)
from sluice.gateway.xds import XdsStatus, status_file, xds_service
from sluice.pki import Role

_LOG = logging.getLogger(__name__)


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

    Changes in its identity directories (certificates, trust anchors, CRLs) apply within seconds, without a restart.

    Args:
        home: has the identities, sockets and logs.
        config: the addresses of Envoy and of the auth service, and other settings.
        trust_domain: the trust domain of all identities.
        name: which Envoy of this home; each but the first has its own files below ``envoys``.
        rest: REST's address for mutual TLS; None means its Unix socket.
        elsewhere: another program starts Envoy with the bootstrap written here, and shares ``run`` with this process,
            which contains the sockets for secrets (SDS) and for Envoy's admin interface.
        egress: the egress settings of jobs with the effective mode; None means no egress gateway.

    Raises:
        ListenError: the port is in use.
        EnvoyIdentityError: an identity belongs to another role or to the wrong side.
        EdgeCertificateError: the certificate of another authority is invalid.
        StoreError: an identity is missing or damaged.
        EnvoyFailed: Envoy did not start, or exited unexpectedly.
    """
    if name not in envoy_names(config):
        raise BootstrapError(
            f"gateway.envoys is {config.envoys}, and {name[:80]!r} is not one of {', '.join(envoy_names(config))}",
            "use one of these names, or set gateway.envoys",
        )
    own = home if name == ENVOY_NAME else home.envoy(name).create()
    paths = EnvoyPaths.of(home, name)
    upstreams, outgoing, shared = upstreams_of(config, paths, rest), egress or NO_EGRESS, config.envoys > 1
    # Check the ports before writing files: another gateway of this home may be using them.
    if not elsewhere:
        require_free_port(config.host, config.port, shared=shared)
        if config.http3:
            require_free_port(config.host, config.port, udp=True)
        if is_on(outgoing):
            require_free_port(outgoing.host, outgoing.port, shared=shared)
        require_free_challenge_port(config)
        clear_stale_socket(paths.admin_socket)
    make_private_directory(paths.bootstrap.parent)
    feeds = [SecretFeed(edge_directory(home), Side.EDGE, trust_domain)]
    if upstreams.any_tls or is_on(outgoing):
        feeds.append(SecretFeed(home.identity(Role.GATEWAY, name), Side.INTERNAL, trust_domain))
    first = {feed: given for feed in feeds if (given := feed.update(utc_now())) is not None}
    files = certificate_files(home, config)
    async with xds_service(status_file(home, name), paths.sds_socket) as sds:
        secrets = Secrets(sds, first, files, ChallengeResources.of(home, config))
        document = render(load_source(SOURCE), config, trust_domain, paths, upstreams)
        _prepare_access_log(paths)
        write_secret(paths.bootstrap, msgspec.json.encode(document))
        running = _Running(
            own, config, paths, secrets, outgoing, chains=bool(config.auth_host) or own is not home, status=sds.status
        )
        if elsewhere:
            await _accompany_envoy(running, ExternalEnvoy(paths.admin_socket))
        await _run_envoy(running, home.root)


@dataclass(frozen=True, slots=True)
class _Running:
    """The context of one Envoy. ``home`` is its own part of the home; ``chains``: it audits its own access log."""

    home: Home
    config: GatewayConfig
    paths: EnvoyPaths
    secrets: Secrets
    egress: EgressConfig
    chains: bool
    status: XdsStatus
    """Which secrets Envoy has accepted."""


def _prepare_access_log(paths: EnvoyPaths) -> None:
    make_private_directory(paths.access_log.parent)
    make_access_log(paths.access_log)


async def _chain_access_log(running: _Running, stack: contextlib.AsyncExitStack) -> None:
    """Import the access log into a separate audit log when no auth service reads it.

    An auth service on another machine cannot read it, and one on this machine reads the first Envoy's only.
    """
    if running.chains:
        log = stack.enter_context(contextlib.closing(AuditLog(audit_file(running.home))))
        await stack.enter_async_context(maintaining(running.home, log))
        await stack.enter_async_context(exporting(running.home, running.config.audit_exports))


async def _accompany_envoy(running: _Running, envoy: ExternalEnvoy) -> NoReturn:
    """Announce an Envoy that another process starts, whenever it serves."""
    home, config = running.home, running.config
    async with contextlib.AsyncExitStack() as stack:
        await _chain_access_log(running, stack)
        reports = LoadedCertificateReports(envoy)
        stack.callback(reports.close)
        stack.callback(asyncio.create_task(running.secrets.feed_forever(reports)).cancel)
        await stack.enter_async_context(rotating(running.paths.access_log, envoy))
        while True:
            port = await envoy.until_serving()
            with contextlib.ExitStack() as announced:
                announced.callback(publish(envoy_announcement(home), config.host, port))
                await _announce_egress(home, envoy, running.egress, announced)
                _LOG.info("Envoy serves https://%s:%d", config.host, port)
                async with renewing(home, config, envoy, running.status):
                    await envoy.until_gone()
                _LOG.warning("Envoy stopped answering")


async def _announce_egress(
    home: Home, envoy: EnvoyAdmin, egress: EgressConfig, announced: contextlib.ExitStack | contextlib.AsyncExitStack
) -> None:
    """Announce the address of the egress listener once it accepts connections."""
    if is_on(egress):
        port = await envoy.until_listening(EGRESS)
        announced.callback(publish(egress_endpoint(home), egress.host, port))
        _LOG.info("Envoy accepts outgoing connections of jobs on %s:%d", egress.host, port)


async def _run_envoy(running: _Running, directory: Path) -> None:
    home, config, paths = running.home, running.config, running.paths
    make_private_directory(home.logs)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(paths.admin_socket.unlink, missing_ok=True)
        await _chain_access_log(running, stack)
        # Run in the home: paths in the configuration, which may come from another machine, are relative to it.
        envoy = await EnvoyProcess.start(
            paths.bootstrap, admin_socket=paths.admin_socket, log=home.logs / "envoy-proxy.log", directory=directory
        )
        reports = LoadedCertificateReports(envoy)
        stack.callback(reports.close)
        stack.push_async_callback(envoy.stop)
        feeding = asyncio.create_task(running.secrets.feed_forever(reports))
        stack.callback(feeding.cancel)
        await stack.enter_async_context(rotating(paths.access_log, envoy))
        port = await envoy.listening_port()
        await _announce_egress(home, envoy, running.egress, stack)
        stack.callback(publish(envoy_announcement(home), config.host, port))
        _LOG.info("Envoy serves https://%s:%d", config.host, port)
        await stack.enter_async_context(renewing(home, config, envoy, running.status))
        code = await envoy.wait()
        raise EnvoyFailed(f"Envoy exited unexpectedly (exit code {code})", envoy.tail())
