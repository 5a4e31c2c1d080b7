"""What is known of a secret besides its values: the pointer in the HA storage, and what administrators see."""

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
"""Grants of one secret."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def check_secret_name(name: str) -> str:
    """``name`` when it can be that of a secret, and of a file; raises :class:`InvalidSecret`."""
    if not _NAME.fullmatch(name):
        raise InvalidSecret(
            f"{name[:80]!r} is not the name of a secret", "1 to 64 letters, digits, '_', '.', '-'; first no sign"
        )
    return name


class GranteeKind(enum.StrEnum):
    """Who may be granted a secret."""

    ROLE = "role"
    """Jobs of whoever has a role at the submission."""
    GROUP = "group"
    """The same with a group of the identity provider."""
    USER = "user"
    """Jobs of a user."""
    JOB = "job"
    """Jobs of that name of a user. A name alone is no protection: everybody may give a job any name."""


_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_GRANTEE_CHARACTERS)]


class Grant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Jobs that get a secret when they ask for it; ``owner`` is that of jobs called ``name``, and of no other kind."""

    kind: GranteeKind
    name: _Name
    owner: Annotated[str, msgspec.Meta(max_length=MAX_GRANTEE_CHARACTERS)] = ""

    def checked(self) -> Grant:
        """Itself; raises :class:`InvalidSecret` when it does not say enough, or too much."""
        if (self.kind is GranteeKind.JOB) != bool(self.owner):
            raise InvalidSecret(
                "a grant to a job names its owner, and no other grant does",
                "write job:OWNER/NAME: everybody may give a job any name",
            )
        return self

    def covers(self, subject: Subject) -> bool:
        """Whether jobs of ``subject`` get the secret by this grant."""
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
    """A job that wants secrets: whose it is, with the roles and groups of the submission."""

    owner: str
    job_name: str
    roles: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()

    @classmethod
    def of(cls, submission: JobSubmission) -> Subject:
        """The job of a submission."""
        return cls(submission.owner, submission.name, submission.owner_roles, submission.owner_groups)


class StoredVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One version: where its value is, and the key that it is encrypted with. ``created_at`` is epoch milliseconds."""

    number: int
    entry: StoredEntry
    key: WrappedKey
    created_at: int
    created_by: str
    masked: bool


class SecretRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The pointer of a secret; the earliest version first. ``latest`` is the highest number that was ever used."""

    name: str
    incarnation: str
    latest: int = 0
    versions: tuple[StoredVersion, ...] = ()
    grants: tuple[Grant, ...] = ()

    def version(self, number: int) -> StoredVersion | None:
        """The version of that number, for 0 the newest; None when there is none."""
        if number == 0:
            return self.versions[-1] if self.versions else None
        return next((each for each in self.versions if each.number == number), None)

    def granted_to(self, subject: Subject) -> bool:
        """Whether jobs of ``subject`` get it."""
        return any(grant.covers(subject) for grant in self.grants)

    def view(self) -> SecretView:
        """What administrators see."""
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
    """One version, without its value; ``masked``: what jobs print of it is masked in their logs."""

    number: int
    created_at: int
    created_by: str
    key_id: str
    masked: bool


class SecretView(msgspec.Struct, frozen=True, kw_only=True):
    """A secret, without its values; the earliest version first."""

    name: str
    versions: tuple[SecretVersion, ...]
    grants: tuple[Grant, ...]


@dataclass(frozen=True, slots=True)
class ChosenSecret:
    """The version of a secret that an attempt of a job gets, and where; ``executors``: on its executors too."""

    name: str
    version: int
    file: str
    executors: bool
