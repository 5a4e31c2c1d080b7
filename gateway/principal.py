"""Subjects, roles and groups: the identity that a credential names, and the syntax of these names."""

from __future__ import annotations

import enum
import math
import re
from dataclasses import dataclass, field

from sluice.pki.assertions import Credential, Method

MAX_NAME_CHARACTERS = 128
MAX_GROUPS = 64
"""Groups of one principal; a subject with more groups than this is refused."""
MAX_ROLES = 16

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*")
_ROLE = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_GROUP = re.compile(r"[A-Za-z0-9/][A-Za-z0-9 ._@:/-]*")


class AccessRole(enum.StrEnum):
    """The roles of the policy that comes with Sluice; a policy file may define others.

    These are roles of people and machines outside the cluster, distinct from the roles of processes (``pki.Role``).
    """

    VIEWER = "viewer"
    SUBMITTER = "submitter"
    OPERATOR = "operator"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Subject:
    """The identity that a verified credential names, before the policy assigns roles to it.

    Attributes:
        name: the principal's name.
        method: how it was authenticated.
        groups: its groups according to its identity provider or the user file.
        credential: the credential; None for a password or an identity provider's code.
        issuer: the identity provider, when one authenticated the subject.
        expires_at: when the credential expires, in seconds since the epoch.
        authenticated_at: when it was authenticated, if that was before its session begins.
    """

    name: str
    method: Method
    groups: tuple[str, ...] = ()
    credential: Credential | None = None
    issuer: str = ""
    expires_at: float = math.inf
    authenticated_at: float = field(default=math.inf, compare=False)


def is_name(text: str) -> bool:
    """Whether ``text`` is a valid principal name, safe in headers, log lines and file names."""
    return len(text) <= MAX_NAME_CHARACTERS and _NAME.fullmatch(text) is not None


def is_role(text: str) -> bool:
    """Whether ``text`` is a valid role name."""
    return _ROLE.fullmatch(text) is not None


def is_group(text: str) -> bool:
    """Whether ``text`` is a valid group name: printable, without comma and quotes."""
    return len(text) <= MAX_NAME_CHARACTERS and _GROUP.fullmatch(text) is not None
