"""Who is asking: the result of authentication, whatever the credential was."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Literal

from sluice.pki.assertions.credential import Credential

MAX_NAME_CHARACTERS = 128
MAX_GROUPS = 64
"""Groups of one principal; a provider that tells more than these is not believed at all."""
MAX_ROLES = 16

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*")
_ROLE = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_GROUP = re.compile(r"[A-Za-z0-9/][A-Za-z0-9 ._@:/-]*")

Method = Literal["token", "session", "jwt", "certificate", "user"]
"""How a principal was authenticated: API token, browser session, bearer JWT, client certificate, local user file."""


class AccessRole(enum.StrEnum):
    """The roles of the policy that comes with Sluice; a policy file may name others.

    What a person or machine outside the cluster may be; distinct from the roles of processes.
    """

    VIEWER = "viewer"
    SUBMITTER = "submitter"
    OPERATOR = "operator"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller.

    Attributes:
        name: who it is, safe for a header and a log line.
        roles: what decides about permissions.
        method: how it was authenticated; for a session: how it was begun.
        credential: what the request came with.
        groups: what its identity provider or the user file says it belongs to.
        scopes: operations, or patterns of them, that the credential is narrowed to; empty: all that the roles grant.
    """

    name: str
    roles: tuple[str, ...]
    method: Method
    credential: Credential
    groups: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()


def is_name(text: str) -> bool:
    """Whether ``text`` can name a principal: it goes into headers, log lines and file names of others."""
    return len(text) <= MAX_NAME_CHARACTERS and _NAME.fullmatch(text) is not None


def is_role(text: str) -> bool:
    """Whether ``text`` can name a role."""
    return _ROLE.fullmatch(text) is not None


def is_group(text: str) -> bool:
    """Whether ``text`` can name a group: printable, without comma and quotes."""
    return len(text) <= MAX_NAME_CHARACTERS and _GROUP.fullmatch(text) is not None
