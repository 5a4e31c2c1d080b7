"""Reads the address on which Spark's gateway JVM listens for Python, from the file of its ``PythonGatewayServer``."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from sluice.runtime.spark.errors import DriverFailed

MAX_GATEWAY_SECRET_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Gateway:
    """The loopback port on which the JVM listens for Python, and the token that it requires."""

    port: int
    secret: str = field(repr=False)


def read_gateway(data: bytes) -> Gateway:
    """Decode the file of PythonGatewayServer: port and length as big-endian integers, then the secret.

    Raises:
        DriverFailed: the data is malformed.
    """
    try:
        port, length = struct.unpack_from(">ii", data)
    except struct.error as error:
        raise DriverFailed("the driver's JVM wrote no gateway address") from error
    secret = data[8:]
    if not 0 < port < 65536 or not 0 < length <= MAX_GATEWAY_SECRET_BYTES or len(secret) != length:
        raise DriverFailed("the driver's JVM wrote a malformed gateway address")
    return Gateway(port, secret.decode())
