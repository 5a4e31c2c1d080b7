"""Asks one online authority after the other, until one answers.

Every request may be repeated at another authority of the same home: an enrolment with the same key gets the same
certificate, a renewal or the identity of a job another one of which the last counts, a revocation changes nothing the
second time. What an authority refuses, the others would refuse too: only one that does not answer, or cannot record
what it would issue, is passed over.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from sluice.pki.ca import MAX_AUTHORITIES, CaAddress
from sluice.pki.errors import CaUnavailable, LedgerError

Locate = Callable[[], Sequence[CaAddress]]
"""Where the authorities are now, the preferred one first; asked before each attempt."""
AVOID_SECONDS = 30.0
"""How long an authority that did not answer is asked last: one whose machine is gone costs 10 seconds each time."""
MAX_TRIES = 2 * MAX_AUTHORITIES
"""Most authorities that one request is sent to."""

_Answer = TypeVar("_Answer")
_PASSED_OVER = (CaUnavailable, LedgerError)


class Failover:
    """The authorities of one client, with what it knows about them; for several threads.

    Args:
        locate: where they are.
        clock: monotonic seconds.
    """

    def __init__(self, locate: Locate, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._locate = locate
        self._clock = clock
        self._failed: dict[CaAddress, float] = {}

    def in_order(self) -> list[CaAddress]:
        """In the order in which they are to be asked: those last that did not answer lately, the latest at the end.

        Raises:
            CaUnavailable: nobody knows of any.
        """
        known, now = list(self._locate()), self._clock()
        if not known:
            raise CaUnavailable("no online authority is known", "start one: `sluice run ca`")
        self._failed = {each: at for each, at in self._failed.items() if each in known and now - at < AVOID_SECONDS}
        return sorted(known, key=lambda each: self._failed.get(each, float("-inf")))

    def failed(self, address: CaAddress) -> None:
        """Ask this one last for a while."""
        self._failed = {**self._failed, address: self._clock()}

    def call(self, ask: Callable[[CaAddress], _Answer]) -> _Answer:
        """What the first one answers that answers at all. Blocking.

        Raises:
            CaUnavailable: none does.
            PkiError: what an authority refuses.
        """
        tried: list[CaAddress] = []
        while True:
            address = self._next(tried)
            try:
                return ask(address)
            except _PASSED_OVER as error:
                self._pass_over(tried, error)

    async def ask(self, ask: Callable[[CaAddress], Awaitable[_Answer]]) -> _Answer:
        """As :meth:`call`, for what is awaited."""
        tried: list[CaAddress] = []
        while True:
            address = self._next(tried)
            try:
                return await ask(address)
            except _PASSED_OVER as error:
                self._pass_over(tried, error)

    def _next(self, tried: list[CaAddress]) -> CaAddress:
        """One that was not asked yet, which is noted."""
        address = self._untried(tried)[0]
        tried.append(address)
        return address

    def _untried(self, tried: list[CaAddress]) -> list[CaAddress]:
        """Where they are is asked each time: one may have come back elsewhere meanwhile."""
        return [each for each in self.in_order() if each not in tried]

    def _pass_over(self, tried: list[CaAddress], error: CaUnavailable | LedgerError) -> None:
        """Return if another one is to be asked."""
        self.failed(tried[-1])
        if len(tried) >= MAX_TRIES or not self._untried(tried):
            raise _of_all(error, len(tried)) from error


def _of_all(error: CaUnavailable | LedgerError, count: int) -> CaUnavailable | LedgerError:
    if count == 1:
        return error
    return CaUnavailable(f"none of {count} authorities could answer; the last one: {error.what}", error.remedy)
