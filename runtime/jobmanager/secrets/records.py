"""The metadata of secrets: the pointer in the HA storage, and the view for administrators."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Annotated

import msgspec

from sluice.runtime.ha import StoredEntry
from sluice.runtime.jobmanager.secrets.envelope import WrappedKey
from sluice.runtime.jobmanager.secrets.errors import InvalidSecret
from sluice.runtime.messages import JobSubmission

MAX_GRANTEE_CHARACTERS = 256
MAX_GRANTS = 64
"""Most grants of one secret."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def check_secret_name(name: str) -> str:
    """Return ``name`` if it is valid for a secret and for a file; raises :class:`InvalidSecret`."""
    if not _NAME.fullmatch(name):
        raise InvalidSecret(
            f"{name[:80]!r} is not the name of a secret", "1 to 64 letters, digits, '_', '.', '-'; no sign first"
        )
    return name


class GranteeKind(enum.StrEnum):
    """The kinds of grantees of a secret."""

    ROLE = "role"
    """Jobs of users who have a role at submission."""
    GROUP = "group"
    """Jobs of users who are in a group of the identity provider at submission."""
    USER = "user"
    """Jobs of a user."""
    JOB = "job"
    """Jobs of a user with this name. The name alone is no protection: everybody may give a job any name."""


_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_GRANTEE_CHARACTERS)]


class Grant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The jobs that get a secret if they ask for it. ``owner`` is set only for kind ``job``: who owns the jobs."""

    kind: GranteeKind
    name: _Name
    owner: Annotated[str, msgspec.Meta(max_length=MAX_GRANTEE_CHARACTERS)] = ""

    def checked(self) -> Grant:
        """Return the grant itself; raises :class:`InvalidSecret` when ``owner`` is missing, or not allowed."""
        if (self.kind is GranteeKind.JOB) != bool(self.owner):
            raise InvalidSecret(
                "a grant to a job names its owner, and no other grant does",
                "write job:OWNER/NAME: everybody may give a job any name",
            )
        return self

    def covers(self, subject: Subject) -> bool:
        """Whether this grant gives the secret to ``subject``."""
        match self.kind:
            case GranteeKind.ROLE:
                return self.name in subject.roles
            case GranteeKind.GROUP:
                return self.name in subject.groups
            case GranteeKind.USER:
                return self.name == subject.owner
            case GranteeKind.JOB:
                return (self.owner, self.name) == (subject.owner, subject.job_name)

    def __str__(self) -> str:
        return f"{self.kind}:{self.owner}/{self.name}" if self.owner else f"{self.kind}:{self.name}"


@dataclass(frozen=True, slots=True)
class Subject:
    """A job that wants secrets: its owner and name, and the owner's roles and groups at submission."""

    owner: str
    job_name: str
    roles: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()

    @classmethod
    def of(cls, submission: JobSubmission) -> Subject:
        """The subject of a submission."""
        return cls(submission.owner, submission.name, submission.owner_roles, submission.owner_groups)


class StoredVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One version: the entry of its value, and its wrapped data key. ``created_at`` is in epoch milliseconds."""

    number: int
    entry: StoredEntry
    key: WrappedKey
    created_at: int
    created_by: str
    masked: bool


class SecretRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The pointer of a secret, the earliest version first. ``latest`` is the highest number ever used."""

    name: str
    incarnation: str
    latest: int = 0
    versions: tuple[StoredVersion, ...] = ()
    grants: tuple[Grant, ...] = ()

    def version(self, number: int) -> StoredVersion | None:
        """The version with this number, or the newest for 0; None when there is none."""
        if number == 0:
            return self.versions[-1] if self.versions else None
        return next((each for each in self.versions if each.number == number), None)

    def granted_to(self, subject: Subject) -> bool:
        """Whether any grant gives the secret to ``subject``."""
        return any(grant.covers(subject) for grant in self.grants)

    def view(self) -> SecretView:
        """The view for administrators."""
        return SecretView(
            name=self.name,
            versions=tuple(
                SecretVersion(
                    number=each.number,
                    created_at=each.created_at,
                    created_by=each.created_by,
                    key_id=each.key.key_id,
                    masked=each.masked,
                )
                for each in self.versions
            ),
            grants=self.grants,
        )


class SecretVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One version, without its value. ``masked``: where jobs print the value, it is masked in their logs."""

    number: int
    created_at: int
    created_by: str
    key_id: str
    masked: bool


class SecretView(msgspec.Struct, frozen=True, kw_only=True):
    """A secret without its values, the earliest version first."""

    name: str
    versions: tuple[SecretVersion, ...]
    grants: tuple[Grant, ...]


@dataclass(frozen=True, slots=True)
class ChosenSecret:
    """The version of a secret that an attempt gets, and its file name. ``executors``: executors get it too."""

    name: str
    version: int
    file: str
    executors: bool
