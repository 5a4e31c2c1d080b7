"""Where Spark's gateway JVM listens for Python, as its ``PythonGatewayServer`` writes it into a file."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from sluice.runtime.spark.errors import DriverFailed

MAX_GATEWAY_SECRET_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Gateway:
    """The port on loopback on which the JVM listens for Python, and the token that it demands."""

    port: int
    secret: str = field(repr=False)


def read_gateway(data: bytes) -> Gateway:
    """Decode what PythonGatewayServer writes: port and length as big-endian integers, then the secret."""
    try:
        port, length = struct.unpack_from(">ii", data)
    except struct.error as error:
        raise DriverFailed("the driver's JVM wrote no gateway address") from error
    secret = data[8:]
    if not 0 < port < 65536 or not 0 < length <= MAX_GATEWAY_SECRET_BYTES or len(secret) != length:
        raise DriverFailed("the driver's JVM wrote a malformed gateway address")
    return Gateway(port, secret.decode())
