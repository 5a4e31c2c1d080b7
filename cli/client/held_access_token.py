"""The pass that a command got for its credential: kept in memory alone, shown until shortly before it ends."""

from __future__ import annotations

import msgspec

EXCHANGE_PATH = "/auth/exchange"
CALLS_WITHOUT = 1
"""So many calls show the credential; only then is a pass worth an exchange."""
MARGIN_SECONDS = 15.0
"""A pass that ends so soon is not shown any more."""
MAX_PASS_CHARACTERS = 8192


class _Answer(msgspec.Struct, frozen=True):
    pass_: str = msgspec.field(name="pass")
    expires_in: int


class HeldPass:
    """None at first; whoever shows it looks at the clock."""

    def __init__(self) -> None:
        self._text = ""
        self._until = 0.0
        self._calls = 0
        self._given_up = False

    def __repr__(self) -> str:
        return f"HeldPass(until={self._until})"

    def is_due(self) -> bool:
        """Count a call without a pass; whether it is time to get one."""
        self._calls += 1
        return self._calls > CALLS_WITHOUT and not self._given_up

    def current(self, now: float) -> str | None:
        """The pass, when it is good for some time yet."""
        return self._text if self._text and now < self._until else None

    def take(self, status: int, body: bytes, now: float) -> str | None:
        """Keep what the exchange answered; None when that is no pass: then the credential is shown from now on."""
        try:
            answer = msgspec.json.decode(body, type=_Answer) if status == 200 else None
        except msgspec.MsgspecError:
            answer = None
        if answer is None or not answer.pass_.isascii() or not 0 < len(answer.pass_) <= MAX_PASS_CHARACTERS:
            self._given_up = True
            return None
        self._text, self._until = answer.pass_, now + answer.expires_in - MARGIN_SECONDS
        return self.current(now)

    def drop(self) -> None:
        """It was refused: the credential is shown from now on."""
        self._text, self._given_up = "", True
