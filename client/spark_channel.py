"""The gRPC channel of a Spark Connect session.

Imports PySpark and gRPC, which clients that only submit jobs do not need.
"""

from __future__ import annotations

from typing import cast

import grpc  # type: ignore[import-untyped]  # the package has no type information
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.connect.client import DefaultChannelBuilder
from pyspark.sql.connect.session import SparkSession as RemoteSparkSession

from sluice.client.errors import UsageError


class GatewayChannelBuilder(DefaultChannelBuilder):
    """Channels to the gateway: TLS with given roots, and a token that is neither in the address nor in a variable."""

    def __init__(self, address: str, token: str, roots: bytes | None) -> None:
        """``roots``: PEM certificates that verify the gateway; None: those of gRPC."""
        super().__init__(address)
        self._access_token = token
        self._roots = roots

    def __repr__(self) -> str:
        return f"GatewayChannelBuilder({self.endpoint!r})"

    @property
    def token(self) -> str | None:
        """The API token."""
        return self._access_token

    def toChannel(self) -> grpc.Channel:  # noqa: N802  PySpark's name
        """A channel that sends the token, only over TLS."""
        credentials = grpc.composite_channel_credentials(
            grpc.ssl_channel_credentials(root_certificates=self._roots),
            grpc.access_token_call_credentials(self._access_token),
        )
        return self._secure_channel(self.endpoint, credentials)


def remote_session(address: str, token: str, roots: bytes | None) -> SparkSession:
    """A new session over such a channel, which becomes the active one.

    Raises:
        UsageError: this process has a classic session, and PySpark allows one kind at a time.
    """
    if SparkContext._active_spark_context is not None:  # noqa: SLF001  PySpark's own check
        raise UsageError("this process has a classic Spark session", "stop it first, or use another process")
    builder = RemoteSparkSession.builder.channelBuilder(GatewayChannelBuilder(address, token, roots))
    return cast("SparkSession", builder.create())
