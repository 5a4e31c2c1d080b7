"""Errors of the blob server, its store and its client."""

from __future__ import annotations

from sluice.core import SluiceError


class BlobError(SluiceError):
    """Base of the errors of package ``sluice.runtime.blob``."""


class InvalidBlobName(BlobError):
    """A job id, digest or file name that is not well-formed (and could lead outside the store)."""


class BlobNotFound(BlobError):
    """The job has no such blob."""


class BlobTooLarge(BlobError):
    """The content is larger than the store or the request allows."""


class BlobCorrupt(BlobError):
    """The content is not what its digest or size promises."""


class UploadNotFound(BlobError):
    """The caller has no such upload."""


class UploadConflict(BlobError):
    """The upload has another offset, or is not complete."""


class TooManyUploads(BlobError):
    """The limit of concurrent uploads is reached."""


class BlobUnavailable(BlobError):
    """The blob server could not be reached, refused us, or broke off."""
