"""Sign-ins in progress at the identity provider; each is completed at most once, by any auth service.

Sources: RFC 6749 section 10.12 (state), RFC 7636 (PKCE), OpenID Connect Core section 3.1.2.1 (nonce).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

import msgspec

from sluice.gateway.shared_store import SharedStore
from sluice.gateway.signin.pending_requests import PendingRequests

MAX_ATTEMPTS = 10_000
MAX_ATTEMPTS_PER_ADDRESS = 100
"""Several people behind one address may sign in at the same time."""
LIFETIME_SECONDS = 600.0


class Attempt(msgspec.Struct, frozen=True):
    """One sign-in: the values that were sent to the provider, and that must match its response."""

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
    """The sign-ins in progress, bounded in total and per address."""

    def __init__(self, store: SharedStore) -> None:
        self._open = PendingRequests(
            store,
            "sign-ins",
            Attempt,
            lifetime=LIFETIME_SECONDS,
            limit=MAX_ATTEMPTS,
            limit_per_address=MAX_ATTEMPTS_PER_ADDRESS,
        )

    def begin(self, browser: str, return_to: str, address: str, now: float) -> Attempt:
        """Begin a sign-in of ``browser`` (its login cookie) from ``address``; raises :class:`TooManyPending`."""
        attempt = Attempt(
            secrets.token_urlsafe(32), secrets.token_urlsafe(32), secrets.token_urlsafe(48), return_to, browser, now
        )
        self._open.add(attempt.state, attempt, address, now)
        return attempt

    def finish(self, state: str, browser: str, now: float) -> Attempt | None:
        """Remove and return the attempt with this state; None when unknown, used, expired, or of another browser."""
        attempt = self._open.pop(state, now)
        if attempt is None:
            return None
        return attempt if browser and hmac.compare_digest(attempt.browser.encode(), browser.encode()) else None
