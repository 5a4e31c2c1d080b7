"""A client of REST's session resource, on behalf of a principal."""

from __future__ import annotations

import time
from dataclasses import dataclass

import aiohttp
import msgspec

from sluice.core import BodyTooLarge, Home, read_body, tcp_connector
from sluice.gateway.connect.envoy import OPERATION
from sluice.gateway.connect.sessions import SessionAddress, SessionUnavailable
from sluice.gateway.credentials import AssertionSigner, PassKeys
from sluice.gateway.upstreams import Leg, UnixLeg
from sluice.pki import Channel, Role, server_policy
from sluice.pki.assertions import HEADER, Assertion
from sluice.pki.tls import TlsIdentity

SESSION_PATH = "/v1/connect/session"
ANSWER_SECONDS = 30.0
MAX_ANSWER_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class RestSessions:
    """REST's session resource.

    Attributes:
        home: of the auth service, whose keys sign what is asked.
        identity: of this process, for a REST on another machine.
        leg: where REST is.
    """

    home: Home
    identity: TlsIdentity
    leg: Leg

    async def ask(self, who: Assertion) -> SessionAddress:
        """The session of ``who``, which REST starts; raises :class:`SessionUnavailable`."""
        keys = PassKeys.of(self.home)
        keys.load()
        signer = AssertionSigner(keys, time.time)
        headers = {
            HEADER: signer.sign(
                who.principal, method="POST", target=SESSION_PATH, operation=OPERATION, request_id=who.request_id
            )
        }
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        try:
            async with (
                aiohttp.ClientSession(connector=self._connector(), timeout=timeout) as session,
                session.post(self._url(), headers=headers, server_hostname="", allow_redirects=False) as answer,
            ):
                body = await read_body(answer.content, MAX_ANSWER_BYTES)
                if answer.status not in {200, 202}:
                    raise SessionUnavailable(f"REST answered {SESSION_PATH} with status {answer.status}")
                return msgspec.json.decode(body, type=SessionAddress)
        except (aiohttp.ClientError, OSError, TimeoutError, BodyTooLarge, msgspec.MsgspecError) as error:
            raise SessionUnavailable(f"REST gives no session: {error or type(error).__name__}") from error

    def _connector(self) -> aiohttp.BaseConnector:
        if isinstance(self.leg, UnixLeg):
            return aiohttp.UnixConnector(str(self.leg.path), force_close=True)
        policy = server_policy(Channel.REST, self.identity.spiffe_id.trust_domain, role=Role.JOBMANAGER)
        return tcp_connector(ssl=self.identity.client_context(policy, alpn=("http/1.1",)), force_close=True)

    def _url(self) -> str:
        if isinstance(self.leg, UnixLeg):
            return f"http://rest{SESSION_PATH}"
        host = f"[{self.leg.host}]" if ":" in self.leg.host else self.leg.host
        return f"https://{host}:{self.leg.port}{SESSION_PATH}"
