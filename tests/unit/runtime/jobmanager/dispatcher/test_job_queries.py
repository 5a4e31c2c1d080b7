"""Questions about a job whose attempt ends while they wait in its JobMaster's mailbox."""

from __future__ import annotations

import pytest

from sluice.runtime.jobmanager.dispatcher.job_queries import answer_or_record
from sluice.runtime.rpc import EndpointNotFound, EndpointStopped, RpcError, RpcTimeout


async def answering(outcome: RpcError | str) -> str:
    if isinstance(outcome, RpcError):
        raise outcome
    return outcome


async def test_a_running_attempt_answers_itself() -> None:
    assert await answer_or_record(answering("live"), lambda: "on record") == "live"


@pytest.mark.parametrize("error", [EndpointStopped("stopped before checkpoints ran"), EndpointNotFound("gone")])
async def test_what_is_on_record_answers_for_an_attempt_that_ended(error: RpcError) -> None:
    """Otherwise a restart between question and answer is an internal error to whoever asks REST."""
    assert await answer_or_record(answering(error), lambda: "on record") == "on record"


async def test_other_errors_are_no_end_of_an_attempt() -> None:
    with pytest.raises(RpcTimeout):
        await answer_or_record(answering(RpcTimeout("no answer")), lambda: "on record")
