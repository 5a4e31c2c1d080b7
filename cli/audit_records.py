"""Administrative commands, recorded in the audit log of the home that they change."""

from __future__ import annotations

import asyncio
import os
import pwd
from collections.abc import Awaitable, Callable, Mapping

from sluice.core import Home
from sluice.gateway.audit_log import record_act


def record(home: Home, kind: str, detail: Mapping[str, object]) -> None:
    """Record that the user of this command did ``kind``: after it was done, and before anybody is told.

    Raises:
        AuditLogError: it is not on record; the command ends with an error then, though the act was done.
    """
    record_act(home, kind, operator(), detail)


def recording(home: Home) -> Callable[[str, str, Mapping[str, str]], Awaitable[None]]:
    """Records what a JobManager of ``home`` does for the owner of a job; raises as :func:`record` does."""

    async def record_event(kind: str, principal: str, detail: Mapping[str, str]) -> None:
        await asyncio.to_thread(record_act, home, kind, principal, detail)

    return record_event


def operator() -> str:
    """Who runs this command, by the operating system's word; no principal of the gateway is called so."""
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        name = str(os.geteuid())
    return f"local:{name}"
