"""Converts errors to RFC 9457 problems with a status. A problem with status 500 discloses no details."""

from __future__ import annotations

import logging
from http import HTTPStatus

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from sluice.core import AssertionRefused, SluiceError
from sluice.runtime.blob import (
    BlobCorrupt,
    BlobTooLarge,
    InvalidBlobName,
    TooManyUploads,
    UploadConflict,
    UploadNotFound,
)
from sluice.runtime.checkpoint import CheckpointsUnavailable, NotStreaming, SavepointFailed, SavepointNotFound
from sluice.runtime.ha import EntryDamaged, LeadershipLost, PointersFull, StorageUnavailable
from sluice.runtime.jobmanager import (
    ConnectSessionRuns,
    JobAlreadyTerminal,
    JobNotFound,
    LogNotFound,
    QueueNotFound,
    QuotaExceeded,
    SubmissionRejected,
    TaskManagerLeaves,
    TaskManagerNotFound,
    TooManyJobs,
    UiNotFound,
    UiNotReady,
)
from sluice.runtime.jobmanager.secrets import InvalidSecret, SecretKeyMissing, SecretRefused, SecretsFull, SecretUnknown
from sluice.runtime.node import LogUnreadable
from sluice.runtime.receipts import ReceiptNotRecorded, ReceiptUnavailable
from sluice.runtime.rpc import EndpointNotFound, EndpointStopped, MailboxFull, PeerUnreachable, RpcTimeout
from sluice.runtime.shuffle.control_plane import NoShuffleService, ShuffleNotEnabled, WorkerUnknown
from sluice.runtime.spark import ForbiddenSparkConf, PackageRefused

_LOG = logging.getLogger(__name__)

TYPE_PREFIX = "urn:sluice:problem:"
CONTENT_TYPE = "application/problem+json"


class BadRequest(SluiceError):
    """The request is malformed or has invalid values."""


class ArtifactRefused(SluiceError):
    """A file that the request names is not in an allowed store, or cannot be read."""


class NotYours(SluiceError):
    """The resource belongs to another user."""


class TooManyStreams(SluiceError):
    """The maximum number of open event streams is reached."""


class NotAsserted(AssertionRefused):
    """The request does not come from the gateway. Only the log contains the reason."""


STATUS: tuple[tuple[type[SluiceError], int], ...] = (
    (BadRequest, 400),
    (InvalidBlobName, 400),
    (ForbiddenSparkConf, 400),
    (ArtifactRefused, 400),
    (PackageRefused, 400),
    (SubmissionRejected, 400),
    (InvalidSecret, 400),
    (AssertionRefused, 401),
    (NotYours, 403),
    (SecretRefused, 403),
    (SecretUnknown, 404),
    (JobNotFound, 404),
    (LogNotFound, 404),
    (LogUnreadable, 409),
    (TaskManagerNotFound, 404),
    (QueueNotFound, 404),
    (SavepointNotFound, 404),
    (NotStreaming, 409),
    (SavepointFailed, 409),
    (UiNotFound, 404),
    (WorkerUnknown, 404),
    (JobAlreadyTerminal, 409),
    (ReceiptUnavailable, 409),
    (ReceiptNotRecorded, 503),
    (TaskManagerLeaves, 409),
    (ConnectSessionRuns, 409),
    (UploadNotFound, 404),
    (UploadConflict, 409),
    (BlobCorrupt, 422),
    (BlobTooLarge, 413),
    (TooManyUploads, 429),
    (TooManyStreams, 429),
    (QuotaExceeded, 413),
    (SecretsFull, 409),
    (UiNotReady, 503),
    (SecretKeyMissing, 503),
    (EntryDamaged, 503),
    (TooManyJobs, 503),
    (ShuffleNotEnabled, 409),
    (NoShuffleService, 503),
    (LeadershipLost, 503),
    (StorageUnavailable, 503),
    (PointersFull, 503),
    (CheckpointsUnavailable, 503),
    (MailboxFull, 503),
    (EndpointStopped, 503),
    (EndpointNotFound, 503),
    (PeerUnreachable, 503),
    (RpcTimeout, 503),
)
"""The status of each error that a caller can act on. All other errors have status 500 and no details."""

EVERYWHERE: tuple[type[SluiceError], ...] = (
    BadRequest,
    NotAsserted,
    LeadershipLost,
    MailboxFull,
    EndpointStopped,
    EndpointNotFound,
    PeerUnreachable,
    RpcTimeout,
)
"""Errors that every route may raise."""


def status_of(error: type[SluiceError]) -> int:
    """The HTTP status for ``error``; 500 if it is not in :data:`STATUS`."""
    return next((status for kind, status in STATUS if issubclass(error, kind)), 500)


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an error response (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str


def problem_of(error: Exception) -> Problem:
    """The problem that describes ``error``."""
    for kind, status in STATUS:
        if isinstance(error, kind):
            return Problem(
                type=TYPE_PREFIX + type(error).__name__,
                title=HTTPStatus(status).phrase,
                status=status,
                detail=str(error),
            )
    if isinstance(error, web.HTTPException):
        phrase = HTTPStatus(error.status).phrase
        return Problem(type="about:blank", title=phrase, status=error.status, detail=error.reason)
    return Problem(type="about:blank", title=HTTPStatus(500).phrase, status=500, detail="see the JobManager's log")


def problem_response(problem: Problem) -> web.Response:
    """The HTTP response for ``problem``."""
    return web.Response(body=msgspec.json.encode(problem), status=problem.status, content_type=CONTENT_TYPE)


@web.middleware
async def problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware that turns every exception of a handler into a problem."""
    try:
        return await handler(request)
    except web.HTTPNotModified:
        raise
    except Exception as error:  # noqa: BLE001  # outermost handler: no exception may reach the client as it is
        problem = problem_of(error)
        if problem.status == 500:
            _LOG.error("%s %s failed: %s", request.method, request.path, type(error).__name__, exc_info=error)
        elif problem.status > 500:  # temporary, and the client is told so
            _LOG.info("%s %s: %s", request.method, request.path, error)
        response = problem_response(problem)
        if isinstance(error, web.HTTPMethodNotAllowed):
            response.headers["allow"] = ", ".join(sorted(error.allowed_methods))
        return response
