"""Tries one online authority after the other until one answers.

Every request may be repeated at another authority of the same home: an enrolment with the same key gets the same
certificate; a renewal or a job's identity gets a new one, of which the last is valid; a second revocation changes
nothing. What one authority refuses, the others would refuse too, so only an authority that does not answer, or cannot
record an issuance, is skipped.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from sluice.pki.ca import MAX_AUTHORITIES, CaAddress
from sluice.pki.errors import CaUnavailable, LedgerError

Locate = Callable[[], Sequence[CaAddress]]
"""Returns the current addresses of the authorities, the preferred one first; called before each attempt."""
AVOID_SECONDS = 30.0
"""How long an authority that did not answer is tried last: a lost machine costs 10 seconds each time."""
MAX_TRIES = 2 * MAX_AUTHORITIES
"""Most authorities tried for one request."""

_Answer = TypeVar("_Answer")
_PASSED_OVER = (CaUnavailable, LedgerError)


class Failover:
    """The authorities of one client, and their recent failures; thread-safe.

    Args:
        locate: where they are.
        clock: monotonic seconds.
    """

    def __init__(self, locate: Locate, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._locate = locate
        self._clock = clock
        self._failed: dict[CaAddress, float] = {}

    def in_order(self) -> list[CaAddress]:
        """The authorities in the order to try: recently failed ones last, the latest failure at the end.

        Raises:
            CaUnavailable: none is known.
        """
        known, now = list(self._locate()), self._clock()
        if not known:
            raise CaUnavailable("no online authority is known", "start one: `sluice run ca`")
        self._failed = {each: at for each, at in self._failed.items() if each in known and now - at < AVOID_SECONDS}
        return sorted(known, key=lambda each: self._failed.get(each, float("-inf")))

    def failed(self, address: CaAddress) -> None:
        """Try this authority last for a while."""
        self._failed = {**self._failed, address: self._clock()}

    def call(self, ask: Callable[[CaAddress], _Answer]) -> _Answer:
        """The answer of the first authority that answers. Blocking.

        Raises:
            CaUnavailable: none does.
            PkiError: an authority refuses.
        """
        tried: list[CaAddress] = []
        while True:
            address = self._next(tried)
            try:
                return ask(address)
            except _PASSED_OVER as error:
                self._pass_over(tried, error)

    async def ask(self, ask: Callable[[CaAddress], Awaitable[_Answer]]) -> _Answer:
        """An asynchronous :meth:`call`."""
        tried: list[CaAddress] = []
        while True:
            address = self._next(tried)
            try:
                return await ask(address)
            except _PASSED_OVER as error:
                self._pass_over(tried, error)

    def _next(self, tried: list[CaAddress]) -> CaAddress:
        """Choose the next untried authority, and mark it as tried."""
        address = self._untried(tried)[0]
        tried.append(address)
        return address

    def _untried(self, tried: list[CaAddress]) -> list[CaAddress]:
        """The untried authorities; their addresses are looked up again, because one may have moved."""
        return [each for each in self.in_order() if each not in tried]

    def _pass_over(self, tried: list[CaAddress], error: CaUnavailable | LedgerError) -> None:
        """Return to try another one; else raise."""
        self.failed(tried[-1])
        if len(tried) >= MAX_TRIES or not self._untried(tried):
            raise _of_all(error, len(tried)) from error


def _of_all(error: CaUnavailable | LedgerError, count: int) -> CaUnavailable | LedgerError:
    if count == 1:
        return error
    return CaUnavailable(f"none of {count} authorities could answer; the last one: {error.what}", error.remedy)
