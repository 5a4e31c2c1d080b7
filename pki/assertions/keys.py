"""The gateway's public keys, in a file of the home for processes that verify assertions."""

from __future__ import annotations

import logging
from pathlib import Path

from sluice.core import CachedFile, Home, SluiceError, read_bounded
from sluice.pki.assertions.tokens import KeySet, decode_jwks

_LOG = logging.getLogger(__name__)

MAX_JWKS_BYTES = 64 << 10


def assertion_keys_file(home: Home) -> Path:
    """Where the public keys are (RFC 7517)."""
    return home.gateway / "assertion-keys.json"


class AssertionKeys:
    """The key set in a file, read again after changes; empty when the file cannot be read."""

    def __init__(self, path: Path) -> None:
        self._file: CachedFile[KeySet] = CachedFile(path, _load, missing={})

    def keys(self, refresh: bool) -> KeySet:  # noqa: ARG002  checking the file is as cheap as a cache
        """The keys as they are now."""
        try:
            return self._file.get()
        except SluiceError as error:
            _LOG.error("no assertion is accepted, because the gateway's keys cannot be read: %s", error)
            return {}


def _load(path: Path) -> KeySet:
    return decode_jwks(read_bounded(path, MAX_JWKS_BYTES))
