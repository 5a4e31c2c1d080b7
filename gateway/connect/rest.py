"""A client of REST's session resource that acts on behalf of a principal."""

from __future__ import annotations

import time
from dataclasses import dataclass

import msgspec

from sluice.core import Home
from sluice.gateway.connect.envoy import OPERATION
from sluice.gateway.connect.sessions import SessionAddress, SessionUnavailable
from sluice.gateway.credentials import AccessTokenKeys, AssertionSigner
from sluice.gateway.rest_client import RestClient, RestUnavailable
from sluice.pki.assertions import Assertion

SESSION_PATH = "/v1/connect/session"
ANSWER_SECONDS = 30.0
MAX_ANSWER_BYTES = 64 << 10
EXPECTED = frozenset({200, 202})


@dataclass(frozen=True, slots=True)
class RestSessions:
    """Requests sessions from REST.

    Attributes:
        home: home of the auth service, whose keys sign the requests.
        rest: the HTTP client.
    """

    home: Home
    rest: RestClient

    async def request_session(self, who: Assertion) -> SessionAddress:
        """The session of ``who``; REST starts it if necessary. Raises :class:`SessionUnavailable`."""
        keys = AccessTokenKeys.of(self.home)
        keys.load()
        assertion = AssertionSigner(keys, time.time).sign(
            who.principal,
            method="POST",
            target=SESSION_PATH,
            operation=OPERATION,
            request_id=who.request_id,
            policy=who.policy,
        )
        try:
            body = await self.rest.request(
                "POST", SESSION_PATH, assertion, expected=EXPECTED, seconds=ANSWER_SECONDS, max_bytes=MAX_ANSWER_BYTES
            )
            return msgspec.json.decode(body, type=SessionAddress)
        except (RestUnavailable, msgspec.MsgspecError) as error:
            raise SessionUnavailable(f"REST gives no session: {error}") from error
