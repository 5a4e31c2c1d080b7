"""The relay: forwards calls from Envoy's unix socket to the session of the authenticated principal.

Each call is checked separately; the only state between calls is the channel to the session. The auth service's
assertion names the caller, every message gets that user, and the call goes to that user's own session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from grpclib.server import Stream

from sluice.core import SluiceError, end_tasks
from sluice.gateway.connect.admission import Admission
from sluice.gateway.connect.messages import METHODS, SERVICE, MalformedMessage, bind_user
from sluice.gateway.connect.sessions import Sessions, SessionUnavailable
from sluice.gateway.connect.wire import BoundedStream, receive
from sluice.pki.assertions import Assertion

_LOG = logging.getLogger(__name__)


class ConnectRelay:
    """Serves the methods of Spark Connect.

    Args:
        admission: admits calls.
        sessions: finds the session for a call.
    """

    def __init__(self, admission: Admission, sessions: Sessions) -> None:
        self._admission = admission
        self._sessions = sessions

    def __mapping__(self) -> Mapping[str, Handler]:
        """The served paths, in grpclib's format."""
        return {
            (path := f"/{SERVICE}/{method}"): Handler(
                partial(self.serve, path), Cardinality.STREAM_STREAM, bytes, bytes
            )
            for method in METHODS
        }

    async def serve(self, path: str, stream: Stream[bytes, bytes]) -> None:
        """Serve one call."""
        with self._admission.admitted(path, stream) as who:
            await self._relay(path, stream, who)

    async def _relay(self, path: str, stream: Stream[bytes, bytes], who: Assertion) -> None:
        try:
            channel = await self._sessions.channel(who)
            upstream = channel.call(path, stream.deadline)
            async with upstream:
                await upstream.send_request()
                await self._both_ways(stream, upstream, who)
        except GRPCError:
            raise
        except (SessionUnavailable, SluiceError) as error:
            _LOG.warning("%s has no session: %s", who.name, error)
            self._sessions.drop(who)
            raise GRPCError(Status.UNAVAILABLE, "your Spark Connect session is not available now") from error
        except (StreamTerminatedError, ProtocolError, OSError) as error:
            _LOG.info("lost the connection to the session of %s: %s", who.name, error or type(error).__name__)
            self._sessions.drop(who)
            raise GRPCError(Status.UNAVAILABLE, "the connection to your Spark Connect session was lost") from error

    async def _both_ways(self, stream: Stream[bytes, bytes], upstream: BoundedStream, who: Assertion) -> None:
        sending = asyncio.ensure_future(_send_all(stream, upstream, who.name))
        replying = asyncio.ensure_future(_reply_all(stream, upstream))
        try:
            await asyncio.wait({sending, replying}, return_when=asyncio.FIRST_COMPLETED)
            if not replying.done():  # a complete answer ends the call, even if the client has more to send
                await sending
            await replying
        finally:
            await end_tasks(sending, replying)


async def _send_all(stream: Stream[bytes, bytes], upstream: BoundedStream, principal: str) -> None:
    raw: Any = stream._stream  # noqa: SLF001  grpclib itself accepts messages of any size
    while (message := await receive(raw)) is not None:
        try:
            bound = bind_user(message, principal)
        except MalformedMessage as error:
            raise GRPCError(Status.INVALID_ARGUMENT, "not a message of Spark Connect") from error
        await upstream.send_message(bound)
    await upstream.end()


async def _reply_all(stream: Stream[bytes, bytes], upstream: BoundedStream) -> None:
    while (reply := await upstream.recv_message()) is not None:
        await stream.send_message(reply)
    await upstream.recv_trailing_metadata()
