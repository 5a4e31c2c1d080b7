"""Which credential a request came with: its kind and its public id, which mean something only together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CredentialKind = Literal["token", "session", "certificate", "jwt"]
"""API token; session of a browser or of ``sluice login``, however it was begun; client certificate; bearer JWT."""


@dataclass(frozen=True, slots=True, order=True)
class Credential:
    """What authenticated a request; ``id`` is public, never a secret.

    A session that was begun with an API token is a session: the token is in the session's record.
    """

    kind: CredentialKind
    id: str
