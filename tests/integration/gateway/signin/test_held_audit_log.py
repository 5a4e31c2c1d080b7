"""A lock that somebody holds on the audit log holds up the answers that need a record, and no others."""

from __future__ import annotations

import asyncio
import datetime as dt
import fcntl
import os

from gateway.audit_log import audit_file
from gateway.audit_segments import LOCK
from gateway.tokens import create_token
from tests.integration.gateway.signin.conftest import House
from webui.assets import asset_path


async def test_held_lock_delays_no_answer_that_needs_no_record(house: House) -> None:
    token = create_token(house.home, name="ada", role="viewer", lifetime=dt.timedelta(hours=1))
    assert await house.bearer(token) == 200
    before = len(house.audited())
    descriptor = os.open(audit_file(house.home).with_name(LOCK), os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        waiting = [asyncio.create_task(house.bearer(token)) for _ in range(5)]
        refused = asyncio.create_task(house.bearer("slc_unknown"))
        # Asked after those, and answered while they wait: the event loop is free.
        for _ in range(5):
            assert (await house.check("GET", asset_path("sluice.css"))).status == 200
        assert not any(task.done() for task in (*waiting, refused))
        assert len(house.audited()) == before
    finally:
        os.close(descriptor)
    assert await asyncio.gather(*waiting, refused) == [200] * 5 + [401]
    assert len(house.audited()) == before + 6
