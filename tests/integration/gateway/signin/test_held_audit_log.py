"""A held lock on a file of the gateway delays only the answers that need that file."""

from __future__ import annotations

import asyncio
import datetime as dt
import fcntl
import os

from sluice.core.pages.assets import asset_path
from sluice.gateway.audit_log.log import audit_file
from sluice.gateway.audit_log.segments import LOCK
from sluice.gateway.credentials.session_store import read_sessions
from sluice.gateway.credentials.token_file import create_token
from sluice.gateway.principal import Subject
from tests.integration.gateway.signin.conftest import House


async def test_a_held_audit_log_lock_delays_only_answers_that_must_be_recorded(house: House) -> None:
    token = create_token(house.home, name="ada", role="viewer", lifetime=dt.timedelta(hours=1))
    assert await house.bearer(token) == 200
    before = len(house.audited())
    descriptor = os.open(audit_file(house.home).with_name(LOCK), os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        waiting = [asyncio.create_task(house.bearer(token)) for _ in range(5)]
        refused = asyncio.create_task(house.bearer("slc_unknown"))
        # AuthRequest after those, and answered while they wait: the event loop is free.
        for _ in range(5):
            assert (await house.check("GET", asset_path("sluice.css"))).status == 200
        assert not any(task.done() for task in (*waiting, refused))
        assert len(house.audited()) == before
    finally:
        os.close(descriptor)
    assert await asyncio.gather(*waiting, refused) == [200] * 5 + [401]
    assert len(house.audited()) == before + 6


async def test_a_held_lock_on_the_gateway_files_delays_only_the_requests_that_need_it(house: House) -> None:
    browser = house.browser()
    assert (await browser.sign_in()).status == 303
    token = create_token(house.home, name="ada", role="viewer", lifetime=dt.timedelta(hours=1))
    descriptor = os.open(house.home.gateway, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Signing out revokes what the session was exchanged for, and waits for the lock of that file.
        csrf = browser.cookies["__Host-sluice-csrf"]
        leaving = asyncio.create_task(browser.post("/auth/logout", {"csrf": csrf}))
        for _ in range(5):
            assert await house.bearer(token) == 200
        assert not leaving.done()
    finally:
        os.close(descriptor)
    assert (await leaving).status == 303


async def test_sessions_that_begin_and_end_concurrently_are_all_stored(house: House) -> None:
    store = house.service.checks.authenticator.sessions
    who = Subject("ada", "session")
    begun = await asyncio.gather(*(asyncio.to_thread(store.begin, who, "browser") for _ in range(20)))
    for record, _ in begun:
        store.used(record.id)
    ended, kept = begun[:10], begun[10:]
    await asyncio.gather(
        *(asyncio.to_thread(store.end, record.id) for record, _ in ended), asyncio.to_thread(store.flush)
    )
    expected = {record.id for record, _ in kept}
    assert {record.id for record in store.records} == expected
    assert {record.id for record in read_sessions(house.home).records} == expected
    store.used(ended[0][0].id)  # one that has just ended
    assert {record.id for record in store.records} == expected
