"""The issuer of a JobManager with an online authority: identities of drivers and executors."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable

from sluice.pki.ca import JOB_PATH, JOB_ROLES, JobRequest
from sluice.pki.enrolment.client import BOTH, checked_chain
from sluice.pki.enrolment.exchange import call, mutual_context
from sluice.pki.enrolment.failover import Failover, Locate
from sluice.pki.errors import CaUnavailable, IssuanceRefused, LedgerError, RateLimited
from sluice.pki.issuing import SignedChain
from sluice.pki.spiffe_id import SpiffeId
from sluice.pki.tls import TlsIdentity

RETRY_SECONDS = 15.0
"""How long to retry while every authority is unavailable or asks to wait: a restart takes less."""
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0


class OnlineIssuer:
    """A :class:`sluice.pki.issuing.issuer.Issuer` for a JobManager: identities of jobs, signed by the online authority.

    Args:
        identity: of the JobManager.
        locate: returns the current addresses of the authorities; called before each attempt, since they may move.
        retry_seconds: how long to retry while none can be reached, none can record what it issues, or one asks to wait.
    """

    def __init__(
        self,
        identity: TlsIdentity,
        locate: Locate,
        *,
        retry_seconds: float = RETRY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._identity = identity
        self._authorities = Failover(locate, clock=clock)
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._sleep = sleep

    def sign_csr(self, csr_pem: bytes, spiffe_id: SpiffeId, *, lifetime: dt.timedelta | None = None) -> SignedChain:
        """Certify the key of a request that asks for exactly this identity.

        Raises:
            IssuanceRefused: not an identity of a job, or longer than its profile.
            CertificateRejected: the request does not ask for just this identity.
            CaUnavailable: the authority stayed unavailable.
        """
        if spiffe_id.role not in JOB_ROLES:
            raise IssuanceRefused(f"{spiffe_id} is not issued online", "only identities of jobs are")
        seconds = 0.0 if lifetime is None else lifetime.total_seconds()
        body = JobRequest(
            spiffe_id=str(spiffe_id), csr_pem=csr_pem.decode("ascii", "replace"), lifetime_seconds=seconds
        )
        return checked_chain(self._ask_with_retries(body), spiffe_id, BOTH)

    def _ask_with_retries(self, body: JobRequest) -> SignedChain:
        deadline = self._clock() + self._retry_seconds
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                return self._authorities.call(
                    lambda address: call(address.mutual, mutual_context(self._identity), JOB_PATH, body, SignedChain)
                )
            except (CaUnavailable, LedgerError, RateLimited) as error:
                wait = max(pause, error.retry_after) if isinstance(error, RateLimited) else pause
                if self._clock() + wait > deadline:
                    raise
            self._sleep(wait)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
