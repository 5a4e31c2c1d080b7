"""The gateway's public keys in a file of the home: for whoever verifies assertions."""

from __future__ import annotations

import logging
from pathlib import Path

from sluice.core.errors import SluiceError
from sluice.core.files import read_bounded
from sluice.core.home import Home
from sluice.pki.assertions.tokens import KeySet, decode_jwks

_LOG = logging.getLogger(__name__)

MAX_JWKS_BYTES = 64 << 10


def assertion_keys_file(home: Home) -> Path:
    """Where the public keys are (RFC 7517)."""
    return home.gateway / "assertion-keys.json"


class AssertionKeys:
    """The key set in a file, read again when it changed; without a readable one there are no keys."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._keys: KeySet = {}

    def keys(self, refresh: bool) -> KeySet:  # noqa: ARG002  a look at the file costs no more than remembering when
        """The keys as they are now."""
        try:
            info = self._path.stat()
            stamp = (info.st_ino, info.st_size, info.st_mtime_ns)
            if stamp != self._stamp:
                self._keys = {}
                self._keys = decode_jwks(read_bounded(self._path, MAX_JWKS_BYTES))
                self._stamp = stamp
        except FileNotFoundError:
            self._keys, self._stamp = {}, None
        except (OSError, SluiceError) as error:
            self._stamp = None
            _LOG.error("no assertion is believed, the gateway's keys cannot be read: %s", error)
        return self._keys
