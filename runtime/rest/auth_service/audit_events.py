"""Records events in the gateway's audit log through an auth service on another machine."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from sluice.runtime.jobmanager.attempt import Record
from sluice.runtime.rest.auth_service.client import AuthService

EVENTS_PATH = "/auth/events"
ANSWER_SECONDS = 10.0
MAX_ANSWER_BYTES = 1 << 10


def remote_record(auth: AuthService) -> Record:
    """A function that lets ``auth`` record events; it raises ``AssertionRefused`` unless ``auth`` confirms them."""

    async def record(kind: str, principal: str, detail: Mapping[str, str]) -> None:
        body = msgspec.json.encode({"kind": kind, "principal": principal, "detail": detail})
        await auth.request("POST", EVENTS_PATH, body=body, max_bytes=MAX_ANSWER_BYTES, seconds=ANSWER_SECONDS)

    return record
