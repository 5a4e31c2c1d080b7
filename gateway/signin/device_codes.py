"""Device codes: how a command without a browser signs in with the help of one. Times are passed in.

Source: RFC 8628. Both codes are random; the one that people type has 34 bits, counts for minutes, and can be tried by
somebody who has signed in only.
"""

from __future__ import annotations

import enum
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
"""Consonants: no words, and nothing that reads like something else (RFC 8628 section 6.1)."""


class Answer(enum.StrEnum):
    """Error codes of RFC 8628 section 3.5."""

    PENDING = "authorization_pending"
    SLOW_DOWN = "slow_down"
    DENIED = "access_denied"
    EXPIRED = "expired_token"


class Approver(msgspec.Struct, frozen=True):
    """The user that a command was signed in by: the part of a :class:`Subject` that its session needs."""

    name: str
    method: Literal["session", "user"]
    groups: tuple[str, ...] = ()

    @property
    def subject(self) -> Subject:
        """As a subject."""
        return Subject(self.name, self.method, self.groups)


class Pending(msgspec.Struct, frozen=True):
    """A waiting command; ``who`` is set once a user has approved it."""

    user_code: str
    address: str
    began_at: float
    interval: float = INTERVAL_SECONDS
    asked_at: float = 0.0
    """When the command asked last; 0: it has not."""
    who: Approver | None = None
    denied: bool = False

    @property
    def waits(self) -> bool:
        """Whether nobody has decided about it."""
        return self.who is None and not self.denied


class DeviceCodes:
    """Commands that wait, by the hash of their device code."""

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
        """The device code for the command, and what is remembered of it; raises :class:`TooManyPending`."""
        letters = "".join(secrets.choice(_ALPHABET) for _ in range(8))
        code = secrets.token_urlsafe(32)
        pending = Pending(f"{letters[:4]}-{letters[4:]}", address, now)
        self._open.add(code, pending, address, now)
        return code, pending

    def find(self, user_code: str, now: float) -> Pending | None:
        """The command that shows this code and still waits for a decision."""
        wanted = normalized(user_code)
        return next((each for each in self._open.all(now) if each.waits and each.user_code == wanted), None)

    def decide(self, user_code: str, who: Approver | None, now: float) -> Pending | None:
        """Sign the command with this code in as ``who``, or refuse it (None). Of several decisions the first counts.

        Returns the command; None when no command with this code waits any more.
        """
        wanted = normalized(user_code)
        return self._open.change_first(
            lambda each: each.waits and each.user_code == wanted,
            lambda each: msgspec.structs.replace(each, who=who, denied=who is None),
            now,
        )

    def ask(self, device_code: str, now: float) -> Subject | Answer:
        """The answer to a polling command: its subject, once, or why there is none yet."""
        answers: list[Subject | Answer] = []

        def answered(pending: Pending) -> Pending | None:
            answer, left = _answered(pending, now)
            answers.append(answer)
            return left

        self._open.change(device_code, answered, now)
        return answers[0] if answers else Answer.EXPIRED


def _answered(pending: Pending, now: float) -> tuple[Subject | Answer, Pending | None]:
    """The answer, and what is remembered after it."""
    if pending.denied:
        return Answer.DENIED, None
    if pending.asked_at and now - pending.asked_at < pending.interval:
        return Answer.SLOW_DOWN, msgspec.structs.replace(pending, asked_at=now, interval=pending.interval + 5)
    if pending.who is None:
        return Answer.PENDING, msgspec.structs.replace(pending, asked_at=now)
    return pending.who.subject, None


def normalized(user_code: str) -> str:
    """As people may type it: small letters, blanks, without the dash."""
    letters = "".join(each for each in user_code.upper() if each in _ALPHABET)
    return f"{letters[:4]}-{letters[4:8]}" if len(letters) == 8 else ""
