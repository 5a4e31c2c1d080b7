"""The record in a home of the shared store that it belongs to."""

from __future__ import annotations

from pathlib import Path

import msgspec

from sluice.core import read_secret
from sluice.gateway.config import SharedStoreConfig
from sluice.gateway.errors import SharedStoreError

RECORD = "shared-store.json"
"""The settings, in the home's ``gateway`` directory; a home without it shares nothing."""
STATE = "shared-store-state.json"
"""The revision of the copies in the same directory."""
MAX_RECORD_BYTES = 64 << 10


def read_record(path: Path) -> SharedStoreConfig:
    """Read the settings from a home's record."""
    try:
        return msgspec.json.decode(read_secret(path, MAX_RECORD_BYTES), type=SharedStoreConfig)
    except msgspec.MsgspecError as error:
        raise SharedStoreError(f"{path} is damaged", "remove it and start the auth service") from error
