"""Rate limits of the ACME server, by address and by account. The clock is passed in."""

from __future__ import annotations

from collections.abc import Callable

from sluice.pki.acme.problems import AcmeProblem, ProblemType
from sluice.pki.rate_limit import RateLimiter

REQUESTS_PER_ADDRESS = (400, 20.0)
"""Burst, and requests per second after it: an order for sixteen names is some sixty requests."""
REQUESTS_IN_ALL = (2000, 100.0)
ACCOUNTS_PER_ADDRESS = (20, 1 / 60)
ACCOUNTS_IN_ALL = (200, 0.2)
ORDERS_PER_ACCOUNT = (100, 1 / 30)
VALIDATIONS_PER_ACCOUNT = (400, 0.2)
"""Validations: each connects somewhere, or asks DNS, up to three times."""
REVOCATIONS_PER_ACCOUNT = (100, 1 / 300)
"""Revocations: each adds an entry to the CRL that every gateway reads."""


class Limits:
    """All limits of one server; ``clock`` gives seconds that never go back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        def limiter(rate: tuple[float, float]) -> RateLimiter:
            burst, per_second = rate
            return RateLimiter(burst=burst, per_second=per_second, clock=clock)

        self._per_address = limiter(REQUESTS_PER_ADDRESS)
        self._in_all = limiter(REQUESTS_IN_ALL)
        self._accounts_per_address = limiter(ACCOUNTS_PER_ADDRESS)
        self._accounts = limiter(ACCOUNTS_IN_ALL)
        self._orders = limiter(ORDERS_PER_ACCOUNT)
        self._validations = limiter(VALIDATIONS_PER_ACCOUNT)
        self._revocations = limiter(REVOCATIONS_PER_ACCOUNT)

    def request(self, address: str) -> None:
        """Count a request; :class:`AcmeProblem` (rateLimited) when there are too many, as all of these raise."""
        _take(self._per_address, address, "requests from this address")
        _take(self._in_all, "everybody", "requests")

    def new_account(self, address: str) -> None:
        """Count a new account."""
        _take(self._accounts_per_address, address, "new accounts from this address")
        _take(self._accounts, "everybody", "new accounts")

    def new_order(self, account: str) -> None:
        """Count a new order."""
        _take(self._orders, account, "orders of this account")

    def validation(self, account: str) -> None:
        """Count a validation."""
        _take(self._validations, account, "validations of this account")

    def revocation(self, who: str) -> None:
        """Count a revocation."""
        _take(self._revocations, who, "revocations of this account")


def _take(limiter: RateLimiter, who: str, what: str) -> None:
    if wait := limiter.take(who):
        raise AcmeProblem(ProblemType.RATE_LIMITED, f"too many {what}", retry_after=wait)
