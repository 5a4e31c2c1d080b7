"""Tokens that say which job its bearer is."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sluice.runtime.messages.base import Message
from sluice.runtime.workload import MAX_TOKEN_FILES, TokenFile

TokenFiles = Annotated[tuple[TokenFile, ...], msgspec.Meta(max_length=MAX_TOKEN_FILES)]


class JobToken(Message, frozen=True):
    """A JWT-SVID of a job's process: whoever has it is that process for its audience, until it expires."""

    token: str

    def __repr__(self) -> str:
        return "JobToken(...)"


class TokenKeys(Message, frozen=True):
    """The public keys of JWT-SVIDs, as a SPIFFE bundle (JWK Set)."""

    jwks: str
