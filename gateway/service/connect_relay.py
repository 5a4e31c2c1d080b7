"""The relay as a process: ``sluice run connect``, on a Unix socket to which Envoy connects.

It serves Spark Connect, and Flight SQL when ``gateway.flight_sql`` is on. It presents its identity ``gateway/connect``
to the servers of sessions, and to REST on another machine.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING

from grpclib.server import Server

from sluice.core import Home, listen_unix
from sluice.gateway.authn import check_in
from sluice.gateway.config import CONNECT_NAME, GatewayConfig
from sluice.gateway.connect import Admission, ConnectRelay, RawCodec, RawDetails, RestSessions, Sessions, connect_socket
from sluice.gateway.proxy import EnvoyPaths, upstreams_of
from sluice.gateway.rest_client import RestClient
from sluice.pki import Role
from sluice.pki.assertions import (
    ACCESS_TOKEN_AUDIENCE,
    CONNECT_AUDIENCE,
    AssertionKeys,
    AssertionVerifier,
    OpenStreams,
    assertion_keys_file,
)
from sluice.pki.tls import TlsIdentity
from sluice.pki.trust import reporting

if TYPE_CHECKING:
    from sluice.gateway.flight_sql import FlightSqlService

_LOG = logging.getLogger(__name__)

AUDIENCES = frozenset({CONNECT_AUDIENCE, ACCESS_TOKEN_AUDIENCE})


async def run_connect(home: Home, config: GatewayConfig, *, rest: tuple[str, int] | None = None) -> None:
    """Relay Spark Connect until cancelled.

    Raises:
        StoreError: there is no usable identity ``gateway/connect``, or the socket is in use.
    """
    identity = TlsIdentity(home.identity(Role.GATEWAY, CONNECT_NAME))
    upstream = upstreams_of(config, EnvoyPaths.of(home), rest).rest
    path = connect_socket(home)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(reporting(identity, "connect"))
        sessions = Sessions(identity, RestSessions(home, RestClient(upstream, identity)).request_session)
        stack.callback(sessions.close)
        streams = OpenStreams(check_in(home, config))
        verifier = AssertionVerifier(AssertionKeys(assertion_keys_file(home)).keys, AUDIENCES)
        admission = Admission(verifier, streams)
        services: list[ConnectRelay | FlightSqlService] = [ConnectRelay(admission, sessions)]
        if config.flight_sql:
            from sluice.gateway.flight_sql import FlightSqlService, SparkSql, Statements  # it loads Arrow

            spark = SparkSql(sessions)
            stack.push_async_callback(spark.close)
            services.append(FlightSqlService(admission, spark, Statements(time.monotonic)))
        listening = stack.enter_context(contextlib.closing(listen_unix(path)))
        stack.callback(path.unlink, missing_ok=True)
        server = Server(services, codec=RawCodec(), status_details_codec=RawDetails())
        await server.start(sock=listening)
        stack.push_async_callback(server.wait_closed)
        stack.callback(server.close)
        _LOG.info("relaying Spark Connect%s on %s", " and Flight SQL" if config.flight_sql else "", path)
        await streams.watch()
