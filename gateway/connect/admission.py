"""Who may make a call of the relay, and how many: the same for Spark Connect and for Flight SQL.

Each call is checked by itself: the assertion of the auth service says who it is, and is good for this call alone.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.server import Stream

from sluice.core import AssertionRefused
from sluice.gateway.connect.envoy import OPERATION
from sluice.pki.assertions import HEADER, Assertion, AssertionVerifier, OpenStreams, StreamEnded

_LOG = logging.getLogger(__name__)

MAX_CALLS_OF_ONE = 128
"""Calls of one principal at the same time."""


class Admission:
    """Lets calls in.

    Args:
        verifier: of the auth service's assertions, audience ``sluice-connect``.
        streams: ends calls whose credential is revoked.
    """

    def __init__(self, verifier: AssertionVerifier, streams: OpenStreams) -> None:
        self._verifier = verifier
        self._streams = streams
        self._calls: dict[str, int] = {}

    @contextlib.contextmanager
    def admitted(self, path: str, stream: Stream[bytes, bytes]) -> Iterator[Assertion]:
        """The caller, while the current task serves its call of ``path``; raises :class:`GRPCError`."""
        who = self._authenticated(path, stream)
        if self._calls.get(who.name, 0) >= MAX_CALLS_OF_ONE:
            raise GRPCError(Status.RESOURCE_EXHAUSTED, "too many calls at the same time")
        self._calls[who.name] = self._calls.get(who.name, 0) + 1
        try:
            with self._streams.entered(who):
                yield who
        except StreamEnded as error:
            raise GRPCError(Status.UNAUTHENTICATED, "the credential is not valid any more") from error
        finally:
            self._calls[who.name] -= 1
            if not self._calls[who.name]:
                del self._calls[who.name]

    def _authenticated(self, path: str, stream: Stream[bytes, bytes]) -> Assertion:
        values = [str(value) for value in stream.metadata.getall(HEADER, [])] if stream.metadata else []
        try:
            # A pass does, too: a call is decided about by itself, and goes to the session of whoever it names.
            return self._verifier.verify(values, method="POST", target=path).for_operation(OPERATION, changes=False)
        except AssertionRefused as error:
            _LOG.warning("%s refused: %s", path, error)
            raise GRPCError(Status.UNAUTHENTICATED, "this call does not come from the gateway") from error
