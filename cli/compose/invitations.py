"""Join tokens for a known set of processes, each in a directory that only its process can read.

According to the ledger, a joined process gets no further token. So a call at every start of the authority invites only
missing processes.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sluice.cli.errors import UsageError
from sluice.core import Home, is_ip_address, write_secret
from sluice.gateway import EDGE_NAME
from sluice.pki import Role, SpiffeId
from sluice.pki.authorities import AuthorityStore
from sluice.pki.ca import TokenStore
from sluice.pki.identities import mint
from sluice.pki.ledger import ledger_path, read_ledger
from sluice.pki.x509 import AuthorityKind

LIFETIME = dt.timedelta(hours=1)
"""How long an invited process may take to join."""
TOKEN_FILE = "token"  # noqa: S105  the name of a file, not a token
JOINED = frozenset({"enrolment", "edge-enrolment"})


@dataclass(frozen=True, slots=True)
class Invitation:
    """A process to join, with the host names and addresses for its certificate."""

    spiffe_id: SpiffeId
    dns: tuple[str, ...] = ()
    ips: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str, trust_domain: str) -> Invitation:
        """``ROLE/NAME[=HOST[,HOST…]]``; raises :class:`~sluice.core.errors.PkiError`, or :class:`UsageError`."""
        path, named, hosts = text.partition("=")
        if path.count("/") != 1 or (named and not hosts):
            raise UsageError(f"{text[:200]!r} is not an invitation", "as in taskmanager/tm-7=worker7.example.org")
        each = [host.strip() for host in hosts.split(",")] if named else []
        return cls(
            SpiffeId.parse(f"spiffe://{trust_domain}/{path}"),
            tuple(host for host in each if not is_ip_address(host)),
            tuple(host for host in each if is_ip_address(host)),
        )

    @property
    def public(self) -> bool:
        """Whether it is for the gateway's public certificate."""
        return self.spiffe_id.role is Role.GATEWAY and self.spiffe_id.name == EDGE_NAME


def joined_already(home: Home) -> frozenset[str]:
    """The SPIFFE IDs that have joined with a token, from the ledger."""
    path = ledger_path(home.pki)
    if not path.exists():
        return frozenset()
    return frozenset(
        record.identity for record in read_ledger(path) if record.event == "issued" and record.kind in JOINED
    )


def invite(home: Home, invitations: Iterable[Invitation], directory: Path, *, now: dt.datetime) -> list[Path]:
    """Make a token for each of ``invitations``, at ``<directory>/<name>/token`` (0600); returns the paths.

    The directories of the names must exist. An existing token is replaced.
    """
    authority = AuthorityStore(home.pki).certificate(AuthorityKind.INTERNAL)
    store = TokenStore(home.pki)
    written = []
    for each in invitations:
        place = directory / each.spiffe_id.name
        if not place.is_dir():
            raise UsageError(f"there is no directory {place}", f"it is where {each.spiffe_id} looks for its token")
        record, token = mint(
            each.spiffe_id,
            authority,
            dns=each.dns,
            ips=each.ips,
            edge_server=each.public,
            ttl=LIFETIME,
            now=now,
        )
        store.add(record, now=now)
        write_secret(place / TOKEN_FILE, token.encode() + b"\n")
        written.append(place / TOKEN_FILE)
    return written
