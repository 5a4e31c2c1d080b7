"""The facts that the doctor collects; all findings derive from them."""

from __future__ import annotations

import datetime as dt
import stat
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509

from sluice.pki.ca import Refusal
from sluice.pki.x509 import AuthorityKind


@dataclass(frozen=True, slots=True)
class FileFact:
    """One file or directory; ``secret``: only its owner should read it."""

    path: Path
    mode: int
    uid: int
    secret: bool

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""
        return stat.S_ISDIR(self.mode)

    @property
    def permissions(self) -> int:
        """The twelve permission bits."""
        return stat.S_IMODE(self.mode)


@dataclass(frozen=True, slots=True)
class IdentityFact:
    """One identity directory: the bytes of its files, None for those that are not there."""

    directory: Path
    job: bool
    key_pem: bytes | None = field(repr=False, default=None)
    chain_pem: bytes | None = None
    ca_pem: bytes | None = None
    crl_pem: bytes | None = None
    keystore: bytes | None = field(repr=False, default=None)
    password: bytes | None = field(repr=False, default=None)
    written_at: dt.datetime | None = None
    """When ``chain.pem`` was written, by the clock of the file system."""


@dataclass(frozen=True, slots=True)
class AuthorityFact:
    """One authority of the home; the key may be elsewhere (None)."""

    kind: AuthorityKind
    directory: Path
    certificate_pem: bytes | None
    key_pem: bytes | None = field(repr=False, default=None)


@dataclass(frozen=True, slots=True)
class ListFact:
    """One revocation list that an authority of the home has signed."""

    path: Path
    pem: bytes


@dataclass(frozen=True, slots=True)
class HomeFacts:
    """Everything that was read from a home."""

    root: Path
    owner: int
    running: bool
    files: tuple[FileFact, ...] = ()
    identities: tuple[IdentityFact, ...] = ()
    authorities: tuple[AuthorityFact, ...] = ()
    bundles: tuple[bytes, ...] = ()
    """Other certificates (PEM) that are the home's: the other trusted generation during a rotation."""
    lists: tuple[ListFact, ...] = ()
    leftovers: tuple[Path, ...] = ()
    unreadable: tuple[tuple[Path, str], ...] = ()
    ledger: Path | None = None
    ledger_error: str = ""
    refusals: tuple[Refusal, ...] = ()
    """Superseded certificates that were shown to the online authority, and need attention."""


@dataclass(frozen=True, slots=True)
class ListenerFact:
    """One announced listener: the leaf that it presents, and the one in its directory; or why there is none."""

    address: str
    directory: Path
    presented: x509.Certificate | None = None
    expected: x509.Certificate | None = None
    error: str = ""
