"""The query of a JobManager to the gateway: may this job have a signed token? Values only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

import msgspec

from sluice.pki.jwt.svid import MAX_AUDIENCES

MAX_NAME_CHARACTERS = 1024
MAX_MEMBERSHIPS = 1000
"""Most roles or groups of an owner."""
MAX_QUERY_BYTES = 1 << 20

_Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARACTERS)]
_Names = Annotated[tuple[_Name, ...], msgspec.Meta(max_length=MAX_MEMBERSHIPS)]


class TokenQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Asks whether the process of a job may have a token.

    Attributes:
        subject: its SPIFFE ID, as the JobManager reports it.
        owner, roles, groups: the submitter of the job at that time.
        audience: whom the token is for.
    """

    job_id: _Name
    job_name: _Name
    subject: _Name
    owner: _Name
    roles: _Names
    groups: _Names
    audience: Annotated[tuple[_Name, ...], msgspec.Meta(min_length=1, max_length=MAX_AUDIENCES)]


class TokenVerdict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The decision of the gateway's policy, which is in the audit log already."""

    allowed: bool
    reason: str


AskForToken = Callable[[TokenQuery], Awaitable[TokenVerdict]]
"""Asks the gateway; raises :class:`~sluice.core.errors.SluiceError` when it cannot decide: then there is no token."""
