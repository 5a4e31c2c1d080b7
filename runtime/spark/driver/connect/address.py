"""The address of a session's Spark Connect server: the session's program writes it, and the agent reads it.

The file is not trusted: clients verify the driver's certificate when they connect.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from sluice.core import SluiceError, read_untrusted
from sluice.runtime.spark.driver.connect.session import ADDRESS_FILE

MAX_ADDRESS_BYTES = 4096


class _Address(msgspec.Struct, frozen=True):
    port: int


def published_port(work: Path) -> int:
    """The port that the session in the directory ``work`` has published; 0: there is no valid one."""
    try:
        address = msgspec.json.decode(read_untrusted(work, ADDRESS_FILE, limit=MAX_ADDRESS_BYTES), type=_Address)
    except (FileNotFoundError, SluiceError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return 0
    return address.port if 0 < address.port < 65536 else 0
