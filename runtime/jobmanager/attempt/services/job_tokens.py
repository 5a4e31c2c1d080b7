"""Tokens with which jobs authenticate to other services: the gateway decides, and the online authority signs.

The JobMaster sets the subject of a token, from what it launched. The job chooses only the audience.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from sluice.pki import RateLimiter, SpiffeId
from sluice.pki.ca import TokenKeysAnswer
from sluice.pki.jwt import AskForToken, TokenQuery, TokenRejected, check_audiences
from sluice.runtime.jobmanager.errors import TokenRefused
from sluice.runtime.messages import JobSubmission, JobToken, TokenKeys

TOKENS_PER_JOB = (60.0, 2.0)
"""The burst, and the tokens per second after it, for a job with all its executors. Each process caches its tokens."""
KEYS_SECONDS = 30.0
"""How long the public keys are cached; a new key is published 10 minutes before it signs."""


class TokenSigner(Protocol):
    """Signs tokens; :class:`sluice.pki.enrolment.OnlineTokens`."""

    async def sign_token(self, spiffe_id: SpiffeId, audience: Sequence[str], owner: str) -> str:
        """Sign a JWT-SVID."""
        ...

    async def keys(self) -> TokenKeysAnswer:
        """The public keys."""
        ...


class JobTokens:
    """The tokens of all jobs of a JobManager.

    Args:
        ask: asks the gateway for a decision by its policy.
        clock: monotonic, in seconds.
    """

    def __init__(
        self, ask: AskForToken, signer: TokenSigner, trust_domain: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._signer = signer
        self._trust_domain = trust_domain
        self._clock = clock
        burst, per_second = TOKENS_PER_JOB
        self._per_job = RateLimiter(burst=burst, per_second=per_second, clock=clock)
        self._keys: tuple[float, TokenKeys] | None = None

    async def of_driver(self, job_id: str, submission: JobSubmission, audience: Sequence[str]) -> JobToken:
        """A token for the driver; raises :class:`TokenRefused`, or an error if gateway or authority cannot be asked."""
        return await self._issue(SpiffeId.driver(self._trust_domain, job_id), submission, audience)

    async def of_executor(
        self, job_id: str, number: int, submission: JobSubmission, audience: Sequence[str]
    ) -> JobToken:
        """A token for one executor; raises as :meth:`of_driver` does."""
        return await self._issue(SpiffeId.executor(self._trust_domain, job_id, number), submission, audience)

    async def _issue(self, subject: SpiffeId, submission: JobSubmission, audience: Sequence[str]) -> JobToken:
        # 1. An invalid audience, or too many requests: refused without a record in the audit log.
        try:
            wanted = check_audiences(audience)
        except TokenRejected as error:
            raise TokenRefused(error.what, error.remedy) from error
        if wait := self._per_job.take(subject.job_id):
            raise TokenRefused("the job asks for too many tokens", f"try again in {wait:.1f} s")
        # 2. The policy; the gateway also records its decision.
        verdict = await self._ask(
            TokenQuery(
                job_id=subject.job_id,
                job_name=submission.name,
                subject=str(subject),
                owner=submission.owner,
                roles=submission.owner_roles,
                groups=submission.owner_groups,
                audience=wanted,
            )
        )
        if not verdict.allowed:
            raise TokenRefused(f"the policy gives no token: {verdict.reason}", "see [[audiences]] in the policy")
        # 3. The signature.
        return JobToken(token=await self._signer.sign_token(subject, wanted, submission.owner))

    async def keys(self) -> TokenKeys:
        """The public keys of all tokens of the trust domain; raises an error when they cannot be fetched."""
        now = self._clock()
        if self._keys is None or now - self._keys[0] >= KEYS_SECONDS:
            self._keys = now, TokenKeys(jwks=(await self._signer.keys()).jwks)
        return self._keys[1]
