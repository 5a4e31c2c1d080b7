"""Asks the auth service on another machine which tokens jobs may have."""

from __future__ import annotations

import msgspec

from sluice.core import AssertionRefused
from sluice.pki.jwt import AskForToken, TokenQuery, TokenVerdict
from sluice.runtime.rest.auth_service.client import AuthService

JOB_TOKENS_PATH = "/auth/job-tokens"
ANSWER_SECONDS = 5.0
MAX_ANSWER_BYTES = 16 << 10


def remote_ask_for_token(auth: AuthService) -> AskForToken:
    """A function that lets ``auth`` decide. Without an answer the job gets no token."""

    async def ask(query: TokenQuery) -> TokenVerdict:
        answer = await auth.request(
            "POST",
            JOB_TOKENS_PATH,
            body=msgspec.json.encode(query),
            max_bytes=MAX_ANSWER_BYTES,
            seconds=ANSWER_SECONDS,
        )
        try:
            return msgspec.json.decode(answer, type=TokenVerdict)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise AssertionRefused("the auth service gave a malformed verdict about a token") from error

    return ask
