"""The listener for external proxies (Envoy Gateway, Istio, Contour): gRPC over mutual TLS, with health checks.

Off unless ``[gateway.ext_authz]`` names the clients. All resources are bounded: connections, handshakes, concurrent
calls, sizes of messages and metadata, the time for a decision, and the age of a connection.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio  # type: ignore[import-untyped]  # the packages have no type information
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_health.v1.health import aio as health  # type: ignore[import-untyped]

from sluice.core import Home, PkiError, clear_stale_socket, make_private_directory
from sluice.gateway.config import ExtAuthzConfig
from sluice.gateway.proxy import auth_service_path
from sluice.gateway.service.checks import CheckService
from sluice.gateway.service.edge_clients import EdgeClients
from sluice.gateway.service.grpc_authz import SERVICE, GrpcAuthorization
from sluice.gateway.service.tls_bridge import Bridge
from sluice.pki import Channel, PeerPolicy, Role, SpiffeId
from sluice.pki.tls import MutualTlsListener, TlsIdentity

_LOG = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 256 << 10
"""Enough for the headers of a request (Envoy accepts up to 60 KiB), a certificate and metadata, without a body."""
MAX_METADATA_BYTES = 16 << 10
"""Maximum metadata of the check call itself, not of the request to check."""
MAX_CALLS = 1024
"""Maximum number of concurrent checks; more get ``RESOURCE_EXHAUSTED``, and Envoy refuses those requests."""
MAX_STREAMS = 256
"""Maximum number of concurrent checks on one connection."""
MAX_CONNECTIONS = 256
CONNECTION_AGE_SECONDS = 600
"""After this time a proxy must reconnect with its current certificate; open calls finish first."""
DRAIN_SECONDS = 2.0
"""How long open calls may take when the service stops."""

_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.max_concurrent_streams", MAX_STREAMS),
    ("grpc.max_connection_age_ms", CONNECTION_AGE_SECONDS * 1000),
    ("grpc.max_connection_age_grace_ms", int(DRAIN_SECONDS * 1000)),
    ("grpc.so_reuseport", 0),
)


def ext_authz_socket(home: Home, number: int = 1) -> Path:
    """The socket of the gRPC server behind the TLS listener, in a directory that only this user can enter."""
    return auth_service_path(home.sockets / "ext-authz.sock", number)


def allowed_clients(config: ExtAuthzConfig, trust_domain: str) -> PeerPolicy:
    """The policy for clients; raises :class:`~sluice.core.errors.PkiError` unless all are gateways of this domain."""
    identities = frozenset(SpiffeId.parse(each) for each in config.clients)
    for each in sorted(identities, key=str):
        if each.trust_domain != trust_domain or each.role is not Role.GATEWAY:
            raise PkiError(
                f"{each} cannot be a client of ext_authz",
                f"use the SPIFFE IDs of gateways: spiffe://{trust_domain}/gateway/NAME",
            )
    return PeerPolicy(trust_domain, frozenset({Role.GATEWAY}), identities=identities)


@contextlib.asynccontextmanager
async def ext_authz_listener(
    home: Home,
    config: ExtAuthzConfig,
    checks: CheckService,
    identity: TlsIdentity,
    *,
    users: Path,
    number: int = 1,
) -> AsyncIterator[tuple[str, int]]:
    """Serve while the context lasts; yields the bound address. On exit, health changes first, and open calls finish.

    Args:
        home: the home of the auth service.
        config: the address to listen on, and the allowed clients.
        checks: makes the decisions.
        identity: the identity of the auth service.
        users: the identity directory with the authority of users' certificates.
        number: the number of this auth service in ``home``.
    """
    policy = allowed_clients(config, identity.spiffe_id.trust_domain)
    path = ext_authz_socket(home, number)
    make_private_directory(path.parent)
    clear_stale_socket(path)
    servicer = health.HealthServicer()
    server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=MAX_CALLS)
    server.add_generic_rpc_handlers((GrpcAuthorization(checks, EdgeClients(users).header).handler(),))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    server.add_insecure_port(f"unix:{path}")
    listener = MutualTlsListener(
        identity, Channel.AUTH, policy, lambda: Bridge(path), alpn=("h2",), max_connections=MAX_CONNECTIONS
    )
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(path.unlink, missing_ok=True)
        await server.start()
        stack.push_async_callback(listener.close)
        stack.push_async_callback(server.stop, DRAIN_SECONDS)
        for service in ("", SERVICE):
            await servicer.set(service, health_pb2.HealthCheckResponse.SERVING)
        host, port = await listener.start(config.host, config.port)
        stack.push_async_callback(listener.stop_accepting)
        stack.push_async_callback(servicer.enter_graceful_shutdown)
        _LOG.info("ext_authz over gRPC on %s:%d for %s", host, port, ", ".join(config.clients))
        yield host, port
