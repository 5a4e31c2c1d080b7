"""The manifest of a backup: its last member, with the names and digests of all others."""

from __future__ import annotations

import datetime as dt
from typing import Literal

import msgspec

from sluice.cli.backup.errors import BackupDamaged

MANIFEST = "manifest.json"
MAX_MEMBERS = 200_000
MAX_MANIFEST_BYTES = 64 << 20


class Member(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the home: its path below it, its size in bytes, and its digest."""

    path: str
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of a backup.

    Attributes:
        id: random; audit records and the ledger of a restored home name it.
        created: when its home was read.
        product: the version of Sluice that made it.
        trust_domain: of the authorities in it; empty when there are none.
        left_out: descriptions of what belongs to the cluster but is not in the backup.
        members: every file, in the order of the archive.
    """

    version: Literal[1] = 1
    id: str
    created: dt.datetime
    product: str
    trust_domain: str
    left_out: tuple[str, ...]
    members: tuple[Member, ...]

    def encode(self) -> bytes:
        """Encode it for the archive."""
        return msgspec.json.encode(self) + b"\n"


def decode_manifest(data: bytes) -> Manifest:
    """The inverse of :meth:`Manifest.encode`; raises :class:`BackupDamaged`."""
    try:
        return msgspec.json.decode(data, type=Manifest)
    except msgspec.MsgspecError as error:
        raise BackupDamaged(
            f"the manifest of the backup cannot be read: {error}", "is it of a later version?"
        ) from error
