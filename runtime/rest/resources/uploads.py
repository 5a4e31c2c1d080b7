"""Resumable uploads of large files, before the job that uses them is submitted."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from aiohttp import ClientPayloadError, web

from sluice.runtime.blob import (
    BlobCorrupt,
    BlobTooLarge,
    InvalidBlobName,
    TooManyUploads,
    Upload,
    UploadConflict,
    UploadNotFound,
)
from sluice.runtime.jobmanager import QuotaExceeded
from sluice.runtime.messages import Message
from sluice.runtime.rest.cluster import Cluster
from sluice.runtime.rest.protocol import BINARY, BadRequest, Call, NoQuery, Nothing, Query, Route
from sluice.runtime.rest.submissions import CHUNK_BYTES, STALL_SECONDS

OPERATION = "jobs.submit"
"""Users who may submit jobs may upload files."""
_OffsetBytes = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]


class UploadOrder(Message, frozen=True):
    """A file to be uploaded: its name in the job, its size in bytes, and its SHA-256 in hexadecimal."""

    name: str
    size: _OffsetBytes
    sha256: str


class UploadList(Message, frozen=True):
    """All uploads of the caller."""

    uploads: tuple[Upload, ...]


class OffsetQuery(Query, frozen=True, kw_only=True):
    """The offset at which the piece begins."""

    offset: Annotated[int, msgspec.Meta(ge=0, le=1 << 53, description="the current `offset` of the upload")]


async def announce_upload(cluster: Cluster, call: Call[NoQuery], body: UploadOrder) -> Upload:
    """Announce a file that will be uploaded in pieces."""
    owner, quota = call.who.name, cluster.config.limits.max_blob_bytes_per_user

    def check(size: int) -> None:
        if 0 < quota < size:
            raise QuotaExceeded(f"the uploads of {owner} would have {size} bytes in total", f"at most {quota}")

    return await asyncio.to_thread(cluster.store.uploads.create, owner, body.name, body.size, body.sha256, check=check)


async def list_uploads(cluster: Cluster, call: Call[NoQuery]) -> UploadList:
    """List the caller's uploads."""
    return UploadList(uploads=await asyncio.to_thread(cluster.store.uploads.owned, call.who.name))


async def get_upload(cluster: Cluster, call: Call[NoQuery]) -> Upload:
    """Get one of the caller's uploads, with its offset."""
    return cluster.store.uploads.get(call.path["upload_id"], call.who.name)


async def continue_upload(cluster: Cluster, call: Call[OffsetQuery]) -> Upload:
    """Append the next piece to an upload.

    If the connection breaks, the bytes that arrived are kept: get the upload, and continue at its `offset`. After the
    last piece the digest is checked; an upload with another digest than announced is deleted. A new request for an
    upload ends a request that is still running.
    """
    uploads, upload_id, owner = cluster.store.uploads, call.path["upload_id"], call.who.name
    if call.request.content_type != BINARY:
        raise BadRequest(f"the body is {call.request.content_type[:80]}, not {BINARY}")
    with uploads.append(upload_id, owner, call.query.offset) as piece:
        try:
            while chunk := await asyncio.wait_for(call.request.content.read(CHUNK_BYTES), STALL_SECONDS):
                piece.write(chunk)
        except TimeoutError as error:
            raise BadRequest(f"the upload made no progress for {STALL_SECONDS:g} s") from error
        except (ClientPayloadError, web.RequestPayloadError) as error:
            raise BadRequest("the body broke off", "get the upload, and continue at its offset") from error
    return await asyncio.to_thread(uploads.finish, upload_id, owner)


async def remove_upload(cluster: Cluster, call: Call[NoQuery]) -> Nothing:
    """Delete one of the caller's uploads."""
    cluster.store.uploads.remove(call.path["upload_id"], call.who.name)
    return Nothing()


ROUTES = (
    Route("GET", "/v1/uploads", OPERATION, list_uploads),
    Route(
        "POST",
        "/v1/uploads",
        OPERATION,
        announce_upload,
        status=201,
        errors=(InvalidBlobName, BlobTooLarge, QuotaExceeded, TooManyUploads),
    ),
    Route("GET", "/v1/uploads/{upload_id}", OPERATION, get_upload, errors=(UploadNotFound,)),
    Route(
        "PATCH",
        "/v1/uploads/{upload_id}",
        OPERATION,
        continue_upload,
        errors=(UploadNotFound, UploadConflict, BlobTooLarge, BlobCorrupt),
        binary=True,
    ),
    Route("DELETE", "/v1/uploads/{upload_id}", OPERATION, remove_upload, errors=(UploadNotFound,)),
)
