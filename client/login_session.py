"""The credential of `sluice login`: one file for each gateway, in the user's configuration directory."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from sluice.core import StoreError, make_private_directory, read_secret, write_secret

MAX_CREDENTIAL_BYTES = 8192


class LoginSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session of the ``sluice`` command at one gateway.

    Attributes:
        expires_at: in seconds since the epoch.
        authorities: SHA-256 of the certificates that verified the gateway; None: the system's did.
    """

    server: str
    name: str
    session: str
    secret: str
    expires_at: float
    authorities: tuple[str, ...] | None

    def __repr__(self) -> str:
        return f"LoginSession({self.server!r}, {self.name!r}, {self.session!r})"


def credential_file(server: str) -> Path:
    """Where the credential for the gateway at ``server`` is kept (XDG base directories)."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    directory = (Path(base) if base else Path.home() / ".config") / "sluice" / "credentials"
    parts = urlsplit(server)
    name = re.sub(r"[^A-Za-z0-9.-]", "_", f"{parts.hostname or 'unknown'}-{parts.port or 443}")
    return directory / f"{name}.json"


def save(credential: LoginSession) -> Path:
    """Save the session, readable by its owner alone; returns its file."""
    path = credential_file(credential.server)
    make_private_directory(path.parent)
    write_secret(path, msgspec.json.encode(credential))
    return path


def find(server: str) -> LoginSession | None:
    """The session for this gateway, if there is one that has not expired."""
    path = credential_file(server)
    if not path.exists():
        return None
    try:
        found = msgspec.json.decode(read_secret(path, MAX_CREDENTIAL_BYTES), type=LoginSession)
    except msgspec.MsgspecError as error:
        raise StoreError(f"{path} is damaged", "`sluice login` creates it again") from error
    return found if found.server == server and time.time() < found.expires_at else None


def forget(server: str) -> None:
    """Remove the session for this gateway."""
    credential_file(server).unlink(missing_ok=True)
