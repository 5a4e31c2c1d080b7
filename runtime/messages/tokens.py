"""Messages about the tokens that identify a job."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sluice.runtime.messages.base import Message
from sluice.runtime.workload import MAX_TOKEN_FILES, TokenFile

TokenFiles = Annotated[tuple[TokenFile, ...], msgspec.Meta(max_length=MAX_TOKEN_FILES)]


class JobToken(Message, frozen=True):
    """A JWT-SVID of a job's process. Its bearer can act as that process towards its audience until it expires."""

    token: str

    def __repr__(self) -> str:
        return "JobToken(...)"


class TokenKeys(Message, frozen=True):
    """The public keys that verify JWT-SVIDs, as a SPIFFE bundle (JWK Set)."""

    jwks: str
