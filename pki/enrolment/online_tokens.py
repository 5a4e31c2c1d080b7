"""Tokens of jobs and their public keys, from the online authority."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.pki.ca import (
    JOB_ROLES,
    TOKEN_KEYS_PATH,
    TOKEN_PATH,
    SignedToken,
    TokenKeysAnswer,
    TokenRequest,
)
from sluice.pki.enrolment.exchange import ExchangeLimits, exchange, mutual_context
from sluice.pki.enrolment.failover import Failover, Locate
from sluice.pki.errors import IssuanceRefused
from sluice.pki.jwt import check_audiences, decode_jwks
from sluice.pki.spiffe_id import SpiffeId
from sluice.pki.tls import TlsIdentity

MAX_ANSWER_BYTES = 64 << 10
LIMITS = ExchangeLimits(connect=5.0, read=5.0, total=10.0, answer_bytes=MAX_ANSWER_BYTES)
"""Shorter than for certificates, because the caller asks for a token again."""


class OnlineTokens:
    """Requests JWT-SVIDs of jobs for a JobManager; other identities may only request the keys.

    Args:
        identity: of this process.
        locate: where the authorities are now.
    """

    def __init__(self, identity: TlsIdentity, locate: Locate) -> None:
        self._identity = identity
        self._authorities = Failover(locate)

    async def sign_token(self, spiffe_id: SpiffeId, audience: Sequence[str], owner: str) -> str:
        """A JWT-SVID of a driver or an executor.

        Raises:
            IssuanceRefused: that is no identity of a job, or this is no JobManager.
            TokenRejected: the audiences are not possible.
            CaUnavailable: no answer.
        """
        if spiffe_id.role not in JOB_ROLES:
            raise IssuanceRefused(f"{spiffe_id} has no token", "only drivers and executors have")
        body = TokenRequest(spiffe_id=str(spiffe_id), audience=check_audiences(audience), owner=owner)
        context = mutual_context(self._identity)
        signed = await self._authorities.ask(
            lambda address: exchange(address.mutual, context, TOKEN_PATH, body, SignedToken, LIMITS)
        )
        return signed.token

    async def keys(self) -> TokenKeysAnswer:
        """The public keys of tokens; raises :class:`CaUnavailable`, or :class:`TokenRejected` for damaged ones."""
        context = mutual_context(self._identity)
        answer = await self._authorities.ask(
            lambda address: exchange(address.mutual, context, TOKEN_KEYS_PATH, None, TokenKeysAnswer, LIMITS)
        )
        decode_jwks(answer.jwks.encode())
        return answer
