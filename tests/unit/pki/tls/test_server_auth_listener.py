"""Clients without a certificate cannot make a listener keep memory."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path

from sluice.pki.ca.enrolment_listener import EnrolmentListener
from sluice.pki.spiffe_id import Role
from tests.hostile import TestPki


class Closed(asyncio.Transport):
    """A connection that its client has closed."""

    def is_closing(self) -> bool:
        return True

    def abort(self) -> None:
        pass


async def test_a_closed_connection_does_not_stay_in_memory_until_its_time_is_over(tmp_path: Path) -> None:
    listener = EnrolmentListener(TestPki(tmp_path).process(Role.CA), asyncio.Protocol, alpn=("http/1.1",))
    first = Closed()
    gone = weakref.ref(first)
    listener._opened(first)
    del first
    listener._opened(Closed())  # forgets those that are closed
    gc.collect()
    assert gone() is None
