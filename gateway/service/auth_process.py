"""The auth service as a process: answers Envoy's authorization checks, and serves its configuration (xDS)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import msgspec
from aiohttp import web

from sluice.core import EgressConfig, Home, TracingConfig, listen_unix
from sluice.core.grpc import Method
from sluice.gateway.audit_export import exporting
from sluice.gateway.audit_log import AuditRecord, audit_directory, maintaining, read_records
from sluice.gateway.authn import validity_in
from sluice.gateway.config import AUTH_NAME, GatewayConfig, auth_number
from sluice.gateway.egress import RestJobs, authorization
from sluice.gateway.egress_evidence import EgressEvidence
from sluice.gateway.envoy_config import NO_EGRESS, collector_of, is_on
from sluice.gateway.job_tokens import JobTokenDecisions
from sluice.gateway.listening import ByApplicationProtocol
from sluice.gateway.proxy import EnvoyPaths, Sources, auth_service_path, publishing, upstreams_of
from sluice.gateway.rest_client import RestClient
from sluice.gateway.service.announcements import auth_announcement, ext_authz_announcement, publish
from sluice.gateway.service.assembly import auth_service, egress_checks
from sluice.gateway.service.edge_certificate import edge_directory
from sluice.gateway.service.jobmanager_api import with_jobmanager_api
from sluice.gateway.xds import status_file, xds_service
from sluice.pki import Channel, Role, client_policy
from sluice.pki.enrolment import Locate
from sluice.pki.tls import MutualTlsListener, TlsIdentity
from sluice.pki.trust import reporting

_LOG = logging.getLogger(__name__)

MAX_CHECK_LINE_BYTES = 64 << 10
"""Envoy accepts up to 32 KiB of headers, including the target; larger ones must still arrive here to be refused."""
_SHUTDOWN_SECONDS = 2.0


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
    """Serve Envoy's authorization checks and its configuration until cancelled.

    Listens on Unix sockets, or on ``config.auth_host``. ``rest`` is REST's address for mutual TLS; None means its Unix
    socket. ``locate_ca`` returns the address of the online authority; None means it is announced in ``home``. With
    ``tracing``, Envoy exports spans. ``egress`` are the egress settings of jobs with the effective mode; None means no
    egress gateway.

    Raises ``SluiceError`` when tokens, routes or the audit log are unusable, or the identity for the network is
    missing: an auth service that cannot decide does not start.
    """
    paths, number = EnvoyPaths.of(home), auth_number(config, name)
    server_name = "auth" if number == 1 else name
    async with contextlib.AsyncExitStack() as stack:
        service = await stack.enter_async_context(auth_service(home, config, trust_domain, name, locate_ca=locate_ca))
        checks, authenticator = service.checks, service.checks.authenticator
        await stack.enter_async_context(maintaining(home, checks.audit.log))
        await stack.enter_async_context(exporting(home, config.audit_exports))
        if config.auth_host or config.ext_authz is not None:
            identity = TlsIdentity(home.identity(Role.AUTH, name))
            await stack.enter_async_context(reporting(identity, "auth"))
        server = web.Server(
            with_jobmanager_api(
                service.handle,
                authenticator.access_token_keys,
                validity_in(home, config),
                tokens=JobTokenDecisions(authenticator.policy.get, checks.audit),
                egress=EgressEvidence(
                    authenticator.policy.get, checks.audit.append_all, partial(_last_records, audit_directory(home))
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
        egress_config = egress or NO_EGRESS
        egress_methods: Mapping[str, Method] = {}
        if is_on(egress_config):
            rest_identity = TlsIdentity(home.identity(Role.AUTH, name)) if rest is not None else None
            jobs = RestJobs(service.checks.signer, RestClient(upstreams_of(config, paths, rest).rest, rest_identity))
            egress_methods = authorization(
                await stack.enter_async_context(egress_checks(service, jobs, egress_config, trust_domain))
            )
        xds = await stack.enter_async_context(
            xds_service(
                status_file(home, server_name),
                None if config.auth_host else auth_service_path(paths.xds_socket, number),
                egress_methods,
            )
        )
        if config.auth_host:
            peers = client_policy(Channel.AUTH, trust_domain)
            # NGINX offers no protocol (ALPN) and uses HTTP/1.1.
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
            stack.callback(publish(auth_announcement(home, config), host, port))
        else:
            path = auth_service_path(paths.auth_socket, number)
            listening = stack.enter_context(contextlib.closing(listen_unix(path)))
            stack.callback(path.unlink, missing_ok=True)
            stack.push_async_callback(runner.cleanup)
            await web.SockSite(runner, listening).start()
            where = str(path)
        upstreams = upstreams_of(config, paths, rest)
        sources = Sources(
            checks.routes, authenticator.policy, authenticator.access_token_keys, authenticator.revocations
        )
        copy, collector = paths.configuration, collector_of(tracing) if tracing else None
        await stack.enter_async_context(
            publishing(
                xds, config, trust_domain, upstreams, sources, copy=copy, collector=collector, egress=egress_config
            )
        )
        if config.ext_authz is not None:
            # Imported late, because importing gRPC is slow and few clusters have this listener.
            from sluice.gateway.service.grpc_server import ext_authz_listener

            grpc_listener = ext_authz_listener(
                home, config.ext_authz.of_number(number), checks, identity, users=edge_directory(home), number=number
            )
            address = await stack.enter_async_context(grpc_listener)
            stack.callback(publish(ext_authz_announcement(home, number), *address))
        _LOG.info("auth service ready on %s with %d routes", where, len(checks.routes.get().routes))
        await asyncio.Event().wait()


def _last_records(directory: Path, last: int) -> Iterator[AuditRecord]:
    return read_records(directory, last=last)
