"""The agent's policy file: the identities of each user.

It is checked as a whole before anything is served. The kernel reports the user id of a caller's connection; a user that
is not named gets nothing.
"""

from __future__ import annotations

import datetime as dt
import stat
import tomllib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sluice.core import PkiError, read_bounded
from sluice.pki.config import PkiConfig
from sluice.pki.spiffe_id import SpiffeId
from sluice.pki.x509 import AuthorityKind, Names, workload_profile

MAX_POLICY_BYTES = 256 << 10
MAX_IDENTITIES = 256
MAX_UIDS = 256
MAX_AUDIENCES = 64
MAX_AUDIENCE_BYTES = 512
MAX_UID = (1 << 32) - 2


class PolicyError(PkiError):
    """The agent's policy file is wrong; nothing is served."""


class IdentityEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One ``[[identity]]`` of the file.

    ``id`` is ROLE/NAME, job/JOB-ID/driver or a whole spiffe:// ID; ``uids`` are the user ids that get it;
    ``audiences`` the allowed audiences of JWT-SVIDs; ``accept`` the SPIFFE patterns of peers, for JVMs.
    """

    id: str
    uids: tuple[int, ...] = ()
    dns: tuple[str, ...] = ()
    ips: tuple[str, ...] = ()
    accept: tuple[str, ...] = ()
    audiences: tuple[str, ...] = ()
    lifetime_minutes: float | None = None
    directory: str = ""


class PolicyFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    identity: tuple[IdentityEntry, ...]
    jwt_minutes: float = 5.0


@dataclass(frozen=True, slots=True)
class ManagedIdentity:
    """An identity that the agent keeps valid, and the users that get it."""

    spiffe_id: SpiffeId
    directory: Path
    uids: frozenset[int] = frozenset()
    dns: tuple[str, ...] = ()
    ips: tuple[str, ...] = ()
    accept: tuple[str, ...] = ()
    audiences: frozenset[str] = frozenset()
    lifetime: dt.timedelta | None = None


@dataclass(frozen=True, slots=True)
class AgentPolicy:
    """The agent's policy; :meth:`of` returns a user's identities."""

    identities: tuple[ManagedIdentity, ...]
    jwt_lifetime: dt.timedelta = dt.timedelta(minutes=5)

    def of(self, uid: int) -> tuple[ManagedIdentity, ...]:
        """The identities of user ``uid``, in the order of the file; empty: refuse."""
        return tuple(identity for identity in self.identities if uid in identity.uids)

    @property
    def uids(self) -> frozenset[int]:
        """The users that may connect."""
        return frozenset().union(*(identity.uids for identity in self.identities))


def load_policy(path: Path, config: PkiConfig, identities: Path) -> AgentPolicy:
    """Read and check a policy file; identity directories are below ``identities`` unless the entry names one.

    Raises:
        PolicyError: names the entry and the rule it breaks; also when others may write the file.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise PolicyError(f"cannot read the policy {path}: {error.strerror or error}", "see --policy") from error
    if mode & 0o022:
        raise PolicyError(f"others may write the policy {path} (mode {mode:04o})", f"chmod go-w {path}")
    try:
        content = msgspec.convert(tomllib.loads(read_bounded(path, MAX_POLICY_BYTES).decode()), PolicyFile, strict=True)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise PolicyError(f"{path}: {error}", "see docs/howto/spiffe-agent.md") from error
    return resolve(content, config, identities)


def resolve(content: PolicyFile, config: PkiConfig, identities: Path) -> AgentPolicy:
    """Check every entry, and the rules between them."""
    if not 0 < len(content.identity) <= MAX_IDENTITIES:
        raise PolicyError(f"the policy names {len(content.identity)} identities", f"1 to {MAX_IDENTITIES} are possible")
    if not 1 <= content.jwt_minutes <= 60:
        raise PolicyError(f"jwt_minutes = {content.jwt_minutes} is not possible", "use 1 to 60")
    managed = tuple(_managed(entry, config, identities) for entry in content.identity)
    policy = AgentPolicy(managed, dt.timedelta(minutes=content.jwt_minutes))
    for what, values in (
        ("SPIFFE ID", [str(one.spiffe_id) for one in managed]),
        ("directory", [str(one.directory) for one in managed]),
    ):
        if len(set(values)) != len(values):
            raise PolicyError(f"two entries of the policy have the same {what}", "remove one of them")
    for uid in policy.uids:
        # A bundle vouches for the whole trust domain: with both authorities in it, either could issue any identity.
        sides = {_side(one.spiffe_id, config) for one in policy.of(uid)}
        if len(sides) > 1:
            raise PolicyError(
                f"user id {uid} gets identities of the internal and of the edge authority",
                "run what needs them under two users",
            )
    return policy


def _side(spiffe_id: SpiffeId, config: PkiConfig) -> AuthorityKind:
    return workload_profile(spiffe_id.role, config).authority


def _managed(entry: IdentityEntry, config: PkiConfig, identities: Path) -> ManagedIdentity:
    text = entry.id if entry.id.startswith("spiffe://") else f"spiffe://{config.trust_domain}/{entry.id}"
    spiffe_id = SpiffeId.parse(text)
    if spiffe_id.trust_domain != config.trust_domain:
        raise PolicyError(f"{spiffe_id} is not of trust domain {config.trust_domain}")
    if len(entry.uids) > MAX_UIDS or not all(0 <= uid <= MAX_UID for uid in entry.uids):
        raise PolicyError(f"the user ids of {spiffe_id} are not possible", f"at most {MAX_UIDS}, 0 to {MAX_UID}")
    if len(entry.audiences) > MAX_AUDIENCES or not all(
        0 < len(audience.encode()) <= MAX_AUDIENCE_BYTES for audience in entry.audiences
    ):
        raise PolicyError(
            f"the audiences of {spiffe_id} are not possible",
            f"at most {MAX_AUDIENCES}, each of 1 to {MAX_AUDIENCE_BYTES} bytes",
        )
    names = Names.checked(spiffe_id, entry.dns, entry.ips)
    names.check_wildcards(workload_profile(spiffe_id.role, config).purposes)
    inside = Path(text.removeprefix(f"spiffe://{config.trust_domain}/"))
    return ManagedIdentity(
        spiffe_id,
        Path(entry.directory).expanduser().absolute() if entry.directory else identities / inside,
        frozenset(entry.uids),
        names.dns,
        names.ips,
        entry.accept,
        frozenset(entry.audiences),
        None if entry.lifetime_minutes is None else dt.timedelta(minutes=entry.lifetime_minutes),
    )
