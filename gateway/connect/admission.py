"""Admits calls to the relay, for Spark Connect and for Flight SQL: authentication and concurrency limits.

Each call is checked separately. The auth service's assertion names the caller and is valid for this call only.
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
"""Maximum number of concurrent calls of one principal."""


class Admission:
    """Admits calls.

    Args:
        verifier: verifies the auth service's assertions, audience ``sluice-connect``.
        streams: ends calls whose credential is revoked.
    """

    def __init__(self, verifier: AssertionVerifier, streams: OpenStreams) -> None:
        self._verifier = verifier
        self._streams = streams
        self._calls: dict[str, int] = {}

    @contextlib.contextmanager
    def admitted(self, path: str, stream: Stream[bytes, bytes]) -> Iterator[Assertion]:
        """The caller, while the current task serves its call of ``path``. Raises :class:`GRPCError`."""
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
            # Access tokens are accepted as well: each call is authorized, and goes to its principal's session.
            return self._verifier.verify(values, method="POST", target=path).for_operation(OPERATION, changes=False)
        except AssertionRefused as error:
            _LOG.warning("%s refused: %s", path, error)
            raise GRPCError(Status.UNAUTHENTICATED, "this call does not come from the gateway") from error
