"""Nonces (RFC 8555, section 6.5): each is accepted once, for ten minutes.

Unused nonces take no memory: each carries a MAC of this process. Only used ones are remembered, and only a request with
a valid signature uses one, so strangers cannot fill the memory. When too many were used, all outstanding nonces become
invalid: the clients get a new one with the error, and retry.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable

from sluice.pki.acme.jwk import encode
from sluice.pki.acme.problems import AcmeProblem, ProblemType

LIFETIME_SECONDS = 600
MAX_USED = 100_000
"""Used nonces remembered."""
_RANDOM_BYTES, _TIME_BYTES, _TAG_BYTES = 16, 8, 16


class Nonces:
    """Nonces of one process; ``clock`` gives seconds that never go back."""

    def __init__(self, clock: Callable[[], float], *, max_used: int = MAX_USED) -> None:
        self._clock = clock
        self._max_used = max_used
        self._key = secrets.token_bytes(32)
        self._used: dict[str, float] = {}

    def make(self) -> str:
        """A new one."""
        body = secrets.token_bytes(_RANDOM_BYTES) + int(self._clock() * 1000).to_bytes(_TIME_BYTES, "big")
        return encode(body + self._tag(body))

    def use(self, nonce: str) -> None:
        """Use a nonce up; raises :class:`AcmeProblem` when it is not ours, is too old, or was used."""
        now = self._clock()
        try:
            data = _decode(nonce)
        except ValueError:
            raise _bad() from None
        body, tag = data[:-_TAG_BYTES], data[-_TAG_BYTES:]
        made = int.from_bytes(body[_RANDOM_BYTES:], "big") / 1000
        if not hmac.compare_digest(tag, self._tag(body)) or now - made > LIFETIME_SECONDS or nonce in self._used:
            raise _bad()
        self._forget(now)
        self._used[nonce] = made + LIFETIME_SECONDS

    def _forget(self, now: float) -> None:
        while self._used and (oldest := next(iter(self._used))) and self._used[oldest] < now:
            del self._used[oldest]
        if len(self._used) >= self._max_used:
            self._key = secrets.token_bytes(32)
            self._used.clear()

    def _tag(self, body: bytes) -> bytes:
        return hmac.digest(self._key, body, hashlib.sha256)[:_TAG_BYTES]


def _decode(nonce: str) -> bytes:
    size = _RANDOM_BYTES + _TIME_BYTES + _TAG_BYTES
    data = base64.b64decode(nonce + "=" * (-len(nonce) % 4), altchars=b"-_", validate=True)
    if len(data) != size or encode(data) != nonce:
        raise ValueError(nonce)
    return data


def _bad() -> AcmeProblem:
    return AcmeProblem(ProblemType.BAD_NONCE, "the nonce was used, is too old, or is not of this server")
