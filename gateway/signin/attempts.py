"""Sign-ins that are under way at the identity provider: begun here, and each ended once. No I/O.

Sources: RFC 6749 section 10.12 (state), RFC 7636 (PKCE), OpenID Connect Core section 3.1.2.1 (nonce).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass

MAX_ATTEMPTS = 1000
LIFETIME_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """One sign-in: what was sent to the provider, and what must come back."""

    state: str
    nonce: str
    verifier: str
    return_to: str
    browser: str
    began_at: float

    @property
    def challenge(self) -> str:
        """The code challenge, method S256."""
        digest = hashlib.sha256(self.verifier.encode()).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


class Attempts:
    """Bounded; those of a browser that begins again and again push out the oldest of all."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, Attempt] = OrderedDict()

    def begin(self, browser: str, return_to: str, now: float) -> Attempt:
        """A new attempt of ``browser`` (the value of its login cookie)."""
        attempt = Attempt(
            secrets.token_urlsafe(32), secrets.token_urlsafe(32), secrets.token_urlsafe(48), return_to, browser, now
        )
        self._open[attempt.state] = attempt
        while len(self._open) > MAX_ATTEMPTS:
            self._open.popitem(last=False)
        return attempt

    def finish(self, state: str, browser: str, now: float) -> Attempt | None:
        """The attempt with this state, which ends with it; None: unknown, used, too old, or another browser's."""
        attempt = self._open.pop(state, None)
        if attempt is None or now - attempt.began_at > LIFETIME_SECONDS:
            return None
        return attempt if browser and hmac.compare_digest(attempt.browser.encode(), browser.encode()) else None
