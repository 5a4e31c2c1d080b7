"""The result of authentication: the principal that the policy derives from a verified credential."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sluice.gateway.credentials.sessions import SessionRecord
from sluice.pki.assertions import Jti, Principal


@dataclass(frozen=True, slots=True)
class Authenticated:
    """A principal, and facts about its credential.

    Attributes:
        principal: the caller.
        expires_at: when the credential expires, in seconds since the epoch.
        csrf: the CSRF token that unsafe requests must repeat; None when the credential is not a cookie.
        session: the session, when the request presented one.
        access_token_id: the id of the access token, when the request presented one.
    """

    principal: Principal
    expires_at: float = math.inf
    csrf: str | None = None
    session: SessionRecord | None = None
    access_token_id: Jti | None = None
