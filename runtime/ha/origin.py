"""The origin: a random ID of the home that a process runs in, generated once.

Two JobManagers with the same origin share a machine and its processes; with different origins they share nothing.
"""

from __future__ import annotations

import re
import secrets

from sluice.core import Home, StoreError, make_private_directory, read_bounded, write_secret

_ORIGIN = re.compile(r"[0-9a-f]{32}")
_FILE = "origin"


def origin_of(home: Home) -> str:
    """Return the origin of ``home``, generated on first use; raise :class:`StoreError` when its file is damaged."""
    path = make_private_directory(home.root / "ha") / _FILE
    if not path.exists():
        write_secret(path, secrets.token_hex(16).encode())
    text = read_bounded(path, 64).decode("ascii", "replace")
    if not _ORIGIN.fullmatch(text):
        raise StoreError(f"{path} is damaged", "stop all JobManagers of this home, then remove the file")
    return text
