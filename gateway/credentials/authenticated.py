"""The result of authentication: a verified credential's subject, and the principal that the policy makes of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sluice.gateway.credentials.sessions import SessionRecord
from sluice.pki.assertions import Jti, Principal


@dataclass(frozen=True, slots=True)
class Authenticated:
    """A principal, and what is known about its credential.

    Attributes:
        principal: the caller.
        expires_at: when the credential expires, in seconds since the epoch.
        csrf: for cookies: what an unsafe request must repeat. None: not a cookie, nothing to repeat.
        session: the session, when the request showed one.
        pass_id: the pass, when the request showed one.
    """

    principal: Principal
    expires_at: float = math.inf
    csrf: str | None = None
    session: SessionRecord | None = None
    pass_id: Jti | None = None
