"""Who is asking: the result of authentication, whatever the credential was."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class AccessRole(enum.StrEnum):
    """What a person or machine outside the cluster may be; distinct from the roles of processes."""

    VIEWER = "viewer"
    SUBMITTER = "submitter"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller.

    Attributes:
        name: who it is, safe for a header and a log line.
        roles: what decides about permissions.
        method: how it was authenticated (``token``).
        credential: the public identifier of the credential (a token's id), never a secret.
    """

    name: str
    roles: tuple[AccessRole, ...]
    method: str
    credential: str
