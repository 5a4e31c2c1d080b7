"""Records administrative commands in the audit log of the home that they change."""

from __future__ import annotations

import asyncio
import os
import pwd
from collections.abc import Awaitable, Callable, Mapping

from sluice.core import Home
from sluice.gateway.audit_log import record_act


def record(home: Home, kind: str, detail: Mapping[str, object]) -> None:
    """Record that the user of this command did ``kind``: after the act, and before reporting it.

    Raises:
        AuditLogError: it could not be recorded; the command then ends with an error, though the act was done.
    """
    record_act(home, kind, operator(), detail)


def recording(home: Home) -> Callable[[str, str, Mapping[str, str]], Awaitable[None]]:
    """A function that records acts of a JobManager of ``home`` for the owner of a job; raises like :func:`record`."""

    async def record_event(kind: str, principal: str, detail: Mapping[str, str]) -> None:
        await asyncio.to_thread(record_act, home, kind, principal, detail)

    return record_event


def operator() -> str:
    """The operating system's user of this command; no principal of the gateway has such a name."""
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        name = str(os.geteuid())
    return f"local:{name}"
