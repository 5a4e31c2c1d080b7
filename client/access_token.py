"""The access token that the gateway issues for a credential: kept in memory, used until shortly before it expires."""

from __future__ import annotations

import msgspec

EXCHANGE_PATH = "/auth/exchange"
CALLS_WITHOUT = 1
"""The first calls send the credential itself: an exchange pays off only with further calls."""
MARGIN_SECONDS = 15.0
"""An access token that expires within this time is no longer used."""
MAX_TOKEN_CHARACTERS = 8192


class _Answer(msgspec.Struct, frozen=True):
    access_token: str = msgspec.field(name="pass")
    expires_in: int


class AccessTokenCache:
    """At most one access token; callers pass the time, in seconds of any monotonic clock."""

    def __init__(self) -> None:
        self._text = ""
        self._until = 0.0
        self._calls = 0
        self._given_up = False

    def __repr__(self) -> str:
        return f"AccessTokenCache(until={self._until})"

    def is_due(self) -> bool:
        """Count a call without an access token; returns whether to request one now."""
        self._calls += 1
        return self._calls > CALLS_WITHOUT and not self._given_up

    def current(self, now: float) -> str | None:
        """The access token, None when there is none or it is about to expire."""
        return self._text if self._text and now < self._until else None

    def take(self, status: int, body: bytes, now: float) -> str | None:
        """Store the answer of an exchange; None: it holds no token, and the credential is sent from then on."""
        try:
            answer = msgspec.json.decode(body, type=_Answer) if status == 200 else None
        except msgspec.MsgspecError:
            answer = None
        if (
            answer is None
            or not answer.access_token.isascii()
            or not 0 < len(answer.access_token) <= MAX_TOKEN_CHARACTERS
        ):
            self._given_up = True
            return None
        self._text, self._until = answer.access_token, now + answer.expires_in - MARGIN_SECONDS
        return self.current(now)

    def drop(self) -> None:
        """Forget a token that was refused: the credential is sent from then on."""
        self._text, self._given_up = "", True
