"""Logging of failed requests: our own faults as errors, temporary conditions as a short note."""

from __future__ import annotations

import logging

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from sluice.runtime.ha.errors import (
    LeadershipLost,
    OutcomeUnknown,
    PointersFull,
    StorageUnavailable,
)
from sluice.runtime.rest.protocol.problems import problems


@pytest.mark.parametrize(
    ("error", "status", "level"),
    [
        pytest.param(LeadershipLost("another one leads"), 503, logging.INFO, id="no-leader"),
        pytest.param(OutcomeUnknown("nobody knows"), 503, logging.INFO, id="unknown"),
        pytest.param(StorageUnavailable("away"), 503, logging.INFO, id="storage"),
        pytest.param(PointersFull("900 KiB"), 503, logging.INFO, id="full"),
        pytest.param(RuntimeError("a fault"), 500, logging.ERROR, id="fault"),
    ],
)
async def test_only_faults_are_errors_in_the_log(
    error: Exception, status: int, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_: web.Request) -> web.StreamResponse:
        raise error

    with caplog.at_level(logging.INFO, "sluice.runtime.rest.protocol.problems"):
        answer = await problems(make_mocked_request("GET", "/v1/jobs"), fail)
    assert answer.status == status
    (record,) = caplog.records
    assert record.levelno == level
    assert (record.exc_info is not None) is (level == logging.ERROR)
