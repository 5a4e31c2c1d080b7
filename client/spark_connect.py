"""Spark Connect through the gateway: the session of a user, over TLS, with the user's API token."""

from __future__ import annotations

import asyncio
import importlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sluice.client.access import CredentialSource, GatewayCredential, edge_bundle, held_credential, locate_gateway
from sluice.client.errors import UnreachableError, UsageError
from sluice.client.submission import secret_references
from sluice.core import Home, host_port, read_bounded
from sluice.pki.authorities import AuthorityStore
from sluice.pki.x509 import AuthorityKind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sluice.client.rest_client import GatewayClient

SESSION_PATH = "/v1/connect/session"
SESSIONS_PATH = "/v1/connect/sessions"
START_SECONDS = 240.0
_POLL_SECONDS = 0.5


def connection_string(url: str) -> str:
    """The address for ``SparkSession.builder.remote``, without the token."""
    address = urlsplit(url)
    return f"sc://{host_port(address.hostname or '', address.port or 443)}/;use_ssl=true"


def local_roots(home: Home) -> bytes:
    """The certificates (PEM) with which gRPC verifies the gateway of ``home``.

    gRPC requires a chain up to a self-signed certificate. The other trust anchors of clients are intermediates, so the
    root is added.
    """
    root = AuthorityStore(home.pki).certificate_file(AuthorityKind.ROOT)
    return read_bounded(edge_bundle(home)) + read_bounded(root)


def require_api_token(credential: GatewayCredential) -> GatewayCredential:
    """Return ``credential`` unless it is the session of `sluice login`, which Spark Connect cannot use.

    Raises:
        UsageError: it is one.
    """
    if credential.source is CredentialSource.LOGIN:
        raise UsageError(
            "Spark Connect needs an API token, and `sluice login` has a session",
            "make one with `sluice token create`, and name it with --token-file",
        )
    return credential


async def start_session(
    client: GatewayClient, secrets: Sequence[str] = (), executor_secrets: Sequence[str] = ()
) -> Any:  # noqa: ANN401  JSON is what it is
    """Start the caller's session unless it runs, and wait until it is ready; returns the document of REST.

    Args:
        secrets: for the driver, as for :func:`~sluice.client.submission.build_submission`. With any, a session that
            runs already is an error.
        executor_secrets: the same for driver and executors.

    Raises:
        UnreachableError: it has not started within :data:`START_SECONDS`.
        UsageError: something does not name a secret.
    """
    if references := secret_references(secrets, executor_secrets):
        await client.post(SESSIONS_PATH, {"secrets": references})
    deadline = time.monotonic() + START_SECONDS
    while True:
        session = await client.post(SESSION_PATH)
        if session["port"]:
            return session
        if time.monotonic() > deadline:
            raise UnreachableError(
                f"the session did not start within {START_SECONDS:.0f} s: {session['pending_reason']}",
                f"see `sluice jobs logs {session['job_id']}`",
            )
        await asyncio.sleep(_POLL_SECONDS)


def spark_session(
    server: str | None = None,
    *,
    home: str | Path | None = None,
    ca: str | Path | None = None,
    token_file: str | Path | None = None,
) -> SparkSession:
    """A Spark Connect session on the cluster, through the gateway, as the principal of the token.

    The arguments and their defaults are those of :class:`sluice.client.client.Client`. The token is sent only over TLS,
    after verifying the gateway's certificate. The cluster starts the session with the first query; that takes some
    seconds.

    Needs PySpark's client requirements: ``pip install "pyspark[connect]"`` of the cluster's version.

    Args:
        ca: PEM file with a chain up to a self-signed root, which gRPC requires.

    Raises:
        UsageError: no API token belongs to this gateway, PySpark's requirements are missing, or this process has a
            classic Spark session.
        UnreachableError: no cluster runs in ``home`` and no ``server`` is given.
    """
    from sluice.client.settings import ClientSettings

    settings = ClientSettings.of(server, home, ca, token_file)
    url, authorities = locate_gateway(settings.home, settings.server, settings.ca)
    token = require_api_token(held_credential(settings.home, url, authorities, settings.token_file)).secret
    if authorities is None:
        roots = None
    elif settings.server or settings.ca:
        roots = read_bounded(authorities)
    else:
        roots = local_roots(settings.home)
    try:
        for required in ("grpc_status", "google.rpc", "zstandard"):  # else PySpark ends `python -c`
            importlib.import_module(required)
        from sluice.client.spark_channel import remote_session
    except ImportError as error:
        raise UsageError(f"Spark Connect is not installed: {error}", 'pip install "pyspark[connect]"') from error
    # PySpark's functions read this variable to decide whether to build plans for Spark Connect.
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    return remote_session(connection_string(url), token, roots)
