"""Asks the auth service on another machine which event streams may stay open."""

from __future__ import annotations

import msgspec

from sluice.core import AssertionRefused
from sluice.pki.assertions import MAX_CHECKED, CheckHolders, Holders
from sluice.runtime.rest.auth_service.client import AuthService

STANDING_PATH = "/auth/standing"
ANSWER_SECONDS = 0.6
"""Timeout of a check. Timeout and check interval together are below a second, and so is the delay of a revocation."""
MAX_ANSWER_BYTES = MAX_CHECKED * 8


def remote_check_holders(auth: AuthService) -> CheckHolders:
    """A check by ``auth``. Holders beyond :data:`MAX_CHECKED` count as invalid."""

    async def check(holders: Holders) -> Holders:
        listed = sorted(holders)[:MAX_CHECKED]
        asked = msgspec.json.encode(listed)
        answer = await auth.request(
            "POST", STANDING_PATH, body=asked, max_bytes=MAX_ANSWER_BYTES, seconds=ANSWER_SECONDS
        )
        try:
            verdicts = msgspec.json.decode(answer, type=list[bool])
        except msgspec.MsgspecError as error:
            raise AssertionRefused("the auth service did not answer with a list of verdicts") from error
        return {holder for holder, good in zip(listed, verdicts, strict=False) if good}

    return check


async def check_nothing(holders: Holders) -> Holders:
    """Keep every stream open, for a JobManager without a gateway."""
    return holders
