"""Errors of the blob server, its store and its client."""

from __future__ import annotations

from sluice.core import SluiceError


class BlobError(SluiceError):
    """Base of the errors of package ``sluice.runtime.blob``."""


class InvalidBlobName(BlobError):
    """A job id, digest or file name is malformed and could lead outside of the store."""


class BlobNotFound(BlobError):
    """The job has no such blob."""


class BlobTooLarge(BlobError):
    """The content exceeds the limit of the store or of the request."""


class BlobCorrupt(BlobError):
    """The content does not match its digest or size."""


class UploadNotFound(BlobError):
    """The caller has no such upload."""


class UploadConflict(BlobError):
    """The upload is at another offset, or is not complete."""


class TooManyUploads(BlobError):
    """The limit of concurrent uploads is reached."""


class BlobUnavailable(BlobError):
    """The blob server could not be reached, refused this process, or broke off the transfer."""
