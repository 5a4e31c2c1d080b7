"""Device codes: sign-in of a command without a browser, approved in a browser. Times are passed in.

Source: RFC 8628. Both codes are random. The one that people type has 34 bits, is valid for minutes, and only signed-in
users can try it.
"""

from __future__ import annotations

import enum
import math
import secrets
from typing import Literal

import msgspec

from sluice.gateway.principal import Subject
from sluice.gateway.shared_store import SharedStore
from sluice.gateway.signin.pending_requests import PendingRequests

MAX_OPEN = 10_000
MAX_OPEN_PER_ADDRESS = 20
LIFETIME_SECONDS = 600.0
INTERVAL_SECONDS = 2.0
_ALPHABET = "BCDFGHJKLMNPQRSTVWXZ"
"""Only consonants, so that codes form no words and have no look-alike characters (RFC 8628 section 6.1)."""


class Answer(enum.StrEnum):
    """Error codes of RFC 8628 section 3.5."""

    PENDING = "authorization_pending"
    SLOW_DOWN = "slow_down"
    DENIED = "access_denied"
    EXPIRED = "expired_token"


class Approver(msgspec.Struct, frozen=True):
    """The user who approved a command: the part of a :class:`Subject` that the command's session needs."""

    name: str
    method: Literal["session", "user"]
    groups: tuple[str, ...] = ()
    at: float = 0.0
    """When the user approved."""

    @property
    def subject(self) -> Subject:
        """The approver as a subject."""
        return Subject(self.name, self.method, self.groups, authenticated_at=self.at or math.inf)


class Pending(msgspec.Struct, frozen=True):
    """A waiting command; ``who`` is set once a user has approved it."""

    user_code: str
    address: str
    began_at: float
    interval: float = INTERVAL_SECONDS
    asked_at: float = 0.0
    """When the command last polled; 0 before the first poll."""
    who: Approver | None = None
    denied: bool = False

    @property
    def waits(self) -> bool:
        """Whether the command still waits for a decision."""
        return self.who is None and not self.denied


class DeviceCodes:
    """Waiting commands, by the hash of their device code."""

    def __init__(self, store: SharedStore) -> None:
        self._open = PendingRequests(
            store,
            "device-codes",
            Pending,
            lifetime=LIFETIME_SECONDS,
            limit=MAX_OPEN,
            limit_per_address=MAX_OPEN_PER_ADDRESS,
        )

    def begin(self, address: str, now: float) -> tuple[str, Pending]:
        """Add a waiting command; returns its device code and its record. Raises :class:`TooManyPending`."""
        letters = "".join(secrets.choice(_ALPHABET) for _ in range(8))
        code = secrets.token_urlsafe(32)
        pending = Pending(f"{letters[:4]}-{letters[4:]}", address, now)
        self._open.add(code, pending, address, now)
        return code, pending

    def find(self, user_code: str, now: float) -> Pending | None:
        """The waiting command that shows this user code, if there is one."""
        wanted = normalized(user_code)
        return next((each for each in self._open.all(now) if each.waits and each.user_code == wanted), None)

    def decide(self, user_code: str, who: Approver | None, now: float) -> Pending | None:
        """Approve the command with this code as ``who``, or deny it (None). The first of several decisions wins.

        Returns the command, or None when no command with this code waits.
        """
        wanted = normalized(user_code)
        decided = None if who is None else msgspec.structs.replace(who, at=now)
        return self._open.change_first(
            lambda each: each.waits and each.user_code == wanted,
            lambda each: msgspec.structs.replace(each, who=decided, denied=decided is None),
            now,
        )

    def ask(self, device_code: str, now: float) -> Subject | Answer:
        """Answer a polling command: its subject, once, or an error code."""
        answers: list[Subject | Answer] = []

        def answered(pending: Pending) -> Pending | None:
            answer, left = _answered(pending, now)
            answers.append(answer)
            return left

        self._open.change(device_code, answered, now)
        return answers[0] if answers else Answer.EXPIRED


def _answered(pending: Pending, now: float) -> tuple[Subject | Answer, Pending | None]:
    """The answer to a poll, and the new state of the command; None removes it."""
    if pending.denied:
        return Answer.DENIED, None
    if pending.asked_at and now - pending.asked_at < pending.interval:
        return Answer.SLOW_DOWN, msgspec.structs.replace(pending, asked_at=now, interval=pending.interval + 5)
    if pending.who is None:
        return Answer.PENDING, msgspec.structs.replace(pending, asked_at=now)
    return pending.who.subject, None


def normalized(user_code: str) -> str:
    """Normalize a code that a user typed: lower case, with blanks, without the dash. Empty when it is invalid."""
    letters = "".join(each for each in user_code.upper() if each in _ALPHABET)
    return f"{letters[:4]}-{letters[4:8]}" if len(letters) == 8 else ""
