"""Asks the auth service on another machine to record and decide about outbound connections of jobs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from sluice.core import EGRESS_PATH, MAX_EGRESS_ANSWER_BYTES, AssertionRefused, EgressAnswer, EgressQuestion
from sluice.runtime.rest.auth_service.client import AuthService

ANSWER_SECONDS = 3.0
"""Timeout of a request, which is then repeated."""


def remote_ask_egress(auth: AuthService) -> Callable[[EgressQuestion], Awaitable[EgressAnswer]]:
    """A function that asks ``auth``; it raises :class:`~sluice.core.errors.AssertionRefused` without an answer."""

    async def ask(question: EgressQuestion) -> EgressAnswer:
        body = msgspec.json.encode(question)
        answer = await auth.request(
            "POST", EGRESS_PATH, body=body, max_bytes=MAX_EGRESS_ANSWER_BYTES, seconds=ANSWER_SECONDS
        )
        try:
            return msgspec.json.decode(answer, type=EgressAnswer)
        except msgspec.MsgspecError as error:
            raise AssertionRefused("the auth service gave a malformed answer about connections of jobs") from error

    return ask
