"""Device codes: how a command without a browser signs in with the help of one. Decisions only; times passed in.

Source: RFC 8628. Both codes are random; the one that people type has 34 bits, counts for minutes, and can be tried by
somebody who has signed in only.
"""

from __future__ import annotations

import enum
import hashlib
import secrets
from dataclasses import dataclass

from sluice.gateway.principal import Subject
from sluice.gateway.signin.pending_requests import PendingRequests

MAX_OPEN = 10_000
MAX_OPEN_PER_ADDRESS = 20
LIFETIME_SECONDS = 600.0
INTERVAL_SECONDS = 2.0
_ALPHABET = "BCDFGHJKLMNPQRSTVWXZ"
"""Consonants: no words, and nothing that reads like something else (RFC 8628 section 6.1)."""


class Answer(enum.StrEnum):
    """Error codes of RFC 8628 section 3.5."""

    PENDING = "authorization_pending"
    SLOW_DOWN = "slow_down"
    DENIED = "access_denied"
    EXPIRED = "expired_token"


@dataclass(slots=True)
class Pending:
    """A waiting command; ``who`` is set once a user has approved it."""

    user_code: str
    address: str
    began_at: float
    interval: float = INTERVAL_SECONDS
    asked_at: float = float("-inf")
    who: Subject | None = None
    denied: bool = False


class DeviceCodes:
    """Commands that wait, by the hash of their device code."""

    def __init__(self) -> None:
        self._open: PendingRequests[Pending] = PendingRequests(LIFETIME_SECONDS, MAX_OPEN, MAX_OPEN_PER_ADDRESS)

    def begin(self, address: str, now: float) -> tuple[str, Pending]:
        """The device code for the command, and what is remembered of it; raises :class:`TooManyPending`."""
        letters = "".join(secrets.choice(_ALPHABET) for _ in range(8))
        code = secrets.token_urlsafe(32)
        pending = Pending(f"{letters[:4]}-{letters[4:]}", address, now)
        self._open.add(_digest(code), pending, address, now)
        return code, pending

    def find(self, user_code: str, now: float) -> Pending | None:
        """The command that shows this code and still waits for a decision."""
        wanted = normalized(user_code)
        waiting = (each for each in self._open.all(now) if each.who is None and not each.denied)
        return next((each for each in waiting if each.user_code == wanted), None)

    def ask(self, device_code: str, now: float) -> Subject | Answer:
        """The answer to a polling command: its subject, once, or why there is none yet."""
        key = _digest(device_code)
        pending = self._open.get(key, now)
        if pending is None:
            return Answer.EXPIRED
        early = now - pending.asked_at < pending.interval
        pending.asked_at = now
        if pending.denied:
            self._open.pop(key, now)
            return Answer.DENIED
        if early:
            pending.interval += 5
            return Answer.SLOW_DOWN
        if pending.who is None:
            return Answer.PENDING
        self._open.pop(key, now)
        return pending.who


def normalized(user_code: str) -> str:
    """As people may type it: small letters, blanks, without the dash."""
    letters = "".join(each for each in user_code.upper() if each in _ALPHABET)
    return f"{letters[:4]}-{letters[4:8]}" if len(letters) == 8 else ""


def _digest(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()
