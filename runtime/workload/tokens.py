"""The tokens of one process of a job: requested on demand, and cached for half of their lifetime.

The cache and a rate limit bound the requests to the JobManager, however often the process asks.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from sluice.core import Clock, SluiceError, end_tasks, utc_now
from sluice.pki import RateLimiter, SpiffeId
from sluice.pki.jwt import PublicKey, TokenRejected, check_audiences, decode_jwks, validate_token

_LOG = logging.getLogger(__name__)

ASKED_PER_PROCESS = (20.0, 0.5)
"""Burst and rate per second of token requests to the JobManager for one process."""
MAX_KEPT = 32
"""Maximum number of cached tokens of a process; the least recently used token is dropped first."""
KEYS_SECONDS = 60.0
"""How long the public keys are cached."""

AskToken = Callable[[tuple[str, ...]], Awaitable[str]]
"""Asks the JobManager for a token of this process; raises :class:`~sluice.core.errors.SluiceError`."""
AskKeys = Callable[[], Awaitable[str]]
"""Asks the JobManager for the public keys of tokens, as a SPIFFE bundle."""


class TokenUnavailable(SluiceError):
    """There is no token: the JobManager refused it or could not be reached."""


async def no_token(audience: tuple[str, ...]) -> str:  # noqa: ARG001  an AskToken
    """An :data:`AskToken` for processes without a JobMaster; always raises :class:`TokenUnavailable`."""
    raise TokenUnavailable("there is no JobMaster to ask for a token")


async def no_keys() -> str:
    """An :data:`AskKeys` for processes without a JobMaster; always raises :class:`TokenUnavailable`."""
    raise TokenUnavailable("there is no JobMaster to ask for keys")


class _Times(msgspec.Struct, frozen=True):
    iat: int
    exp: int


@dataclass(frozen=True, slots=True)
class Token:
    """A token. It is handed out until ``fresh_until`` (monotonic seconds), half of its ``lifetime`` (seconds)."""

    text: str
    fresh_until: float
    lifetime: float

    def __repr__(self) -> str:
        return f"Token(fresh_until={self.fresh_until})"


class ProcessTokens:
    """The tokens of one process.

    Args:
        spiffe_id: the identity of the process.
        ask: asks the JobManager for a token.
        ask_keys: asks the JobManager for the public keys.
        clock: the present, for validation.
        monotonic: monotonic clock, in seconds.
    """

    def __init__(
        self,
        spiffe_id: SpiffeId,
        ask: AskToken,
        ask_keys: AskKeys,
        *,
        clock: Clock = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.spiffe_id = spiffe_id
        self._ask = ask
        self._ask_keys = ask_keys
        self._clock = clock
        self._monotonic = monotonic
        burst, per_second = ASKED_PER_PROCESS
        self._limit = RateLimiter(burst=burst, per_second=per_second, clock=monotonic)
        self._kept: OrderedDict[frozenset[str], Token] = OrderedDict()
        self._asking: dict[frozenset[str], asyncio.Task[Token]] = {}
        self._bundle: tuple[float, str, dict[str, PublicKey]] | None = None

    async def token(self, audience: list[str]) -> Token:
        """A token for all of ``audience``; raises :class:`TokenUnavailable`."""
        try:
            wanted = check_audiences(audience)
        except TokenRejected as error:
            raise TokenUnavailable(error.what, error.remedy) from error
        key = frozenset(wanted)
        kept = self._kept.get(key)
        if kept is not None and self._monotonic() < kept.fresh_until:
            self._kept.move_to_end(key)
            return kept
        asking = self._asking.get(key)
        if asking is None:
            if wait := self._limit.take(""):
                raise TokenUnavailable("this process asks for too many tokens", f"try again in {wait:.1f} s")
            asking = self._asking[key] = asyncio.create_task(self._fetch(key, tuple(sorted(wanted))))
            asking.add_done_callback(lambda done: self._answered(key, done))
        return await asyncio.shield(asking)

    async def _fetch(self, key: frozenset[str], audience: tuple[str, ...]) -> Token:
        asked_at = self._monotonic()
        try:
            text = await self._ask(audience)
        except SluiceError as error:
            raise TokenUnavailable(error.what, error.remedy) from error
        lifetime = lifetime_of(text)
        token = self._kept[key] = Token(text, asked_at + lifetime / 2, lifetime)
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return token

    def _answered(self, key: frozenset[str], done: asyncio.Task[Token]) -> None:
        self._asking.pop(key, None)
        if not done.cancelled() and (error := done.exception()) is not None:
            _LOG.info("no token for %s: %s", self.spiffe_id, error)

    async def bundle(self) -> str:
        """The public keys as a SPIFFE bundle; cached ones if the JobManager fails. Raises :class:`TokenUnavailable`."""
        return (await self._keys())[0]

    async def validate(self, token: str, audience: str) -> tuple[SpiffeId, dict[str, Any]]:
        """Subject and claims of a token of the trust domain; raises ``TokenRejected`` or :class:`TokenUnavailable`."""
        _, keys = await self._keys()
        return validate_token(token, audience, keys, trust_domain=self.spiffe_id.trust_domain, now=self._clock())

    async def _keys(self) -> tuple[str, dict[str, PublicKey]]:
        now = self._monotonic()
        if self._bundle is None or now - self._bundle[0] >= KEYS_SECONDS:
            try:
                text = await self._ask_keys()
                self._bundle = now, text, decode_jwks(text.encode())
            except SluiceError as error:
                if self._bundle is None:
                    raise TokenUnavailable(error.what, error.remedy) from error
        _, text, keys = self._bundle
        return text, keys

    async def close(self) -> None:
        """Drop all tokens and cancel pending requests."""
        self._kept.clear()
        await end_tasks(*self._asking.values())


def lifetime_of(token: str) -> float:
    """The lifetime in seconds of a token from the JobManager; raises :class:`TokenUnavailable` if it is malformed."""
    try:
        payload = token.split(".")[1]
        times = msgspec.json.decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)), type=_Times)
    except (IndexError, ValueError, msgspec.MsgspecError) as error:
        raise TokenUnavailable("the JobManager's token cannot be read") from error
    return float(max(0, times.exp - times.iat))
