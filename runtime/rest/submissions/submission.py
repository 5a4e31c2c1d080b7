"""Receives a submission as multipart/form-data, and streams its files into the blob store without buffering them.

Parts: ``request`` (JSON, once), ``pipeline`` (a file, once), ``file``, ``py_file``, ``archive`` (any number up to
:data:`MAX_FILES` together).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Annotated, Literal, NoReturn

import msgspec
from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError

from sluice.pki.assertions import Principal
from sluice.runtime.blob import BlobStore, check_file_name
from sluice.runtime.jobmanager.secrets import check_secret_references
from sluice.runtime.messages import Archive, BlobRef, JobSubmission, SecretReference, TokenFiles
from sluice.runtime.rest.protocol import BadRequest
from sluice.runtime.restart_config import RestartWish
from sluice.runtime.scheduling_config import MAX_PRIORITY
from sluice.runtime.spark import MAX_PYTHON_CHARACTERS
from sluice.runtime.spark.jvm import directory_name
from sluice.runtime.workload import TokenFile

MAX_REQUEST_PART_BYTES = 1 << 20
"""Maximum size of the ``request`` part."""
MAX_SAVEPOINT_CHARACTERS = 1000
"""Maximum length of a savepoint's id or path."""
MAX_FILES = 64
"""Maximum number of ``file``, ``py_file`` and ``archive`` parts together."""
MAX_QUEUE_CHARACTERS = 32
CHUNK_BYTES = 256 << 10
STALL_SECONDS = 60.0
"""An upload without progress for this long is aborted."""

_MALFORMED = (ValueError, RuntimeError, AssertionError, EOFError, HttpProcessingError)
"""Errors that aiohttp's multipart reader raises for a body with malformed boundaries or headers."""


class UploadedPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file that was uploaded before, and the part that it replaces."""

    part: Literal["pipeline", "file", "py_file", "archive"]
    upload_id: str


class SubmitRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ``request`` part. ``name`` defaults to the pipeline's file name, other fields to the cluster's defaults."""

    name: str = ""
    args: tuple[str, ...] = ()
    spark_conf: dict[str, str] = {}
    executors: int | None = None
    restart: RestartWish = RestartWish()
    archive_names: dict[str, str] = {}
    """File name of an archive -> directory that it is unpacked into; default: the name without the suffix."""
    python: Annotated[str, msgspec.Meta(max_length=MAX_PYTHON_CHARACTERS)] = ""
    """Path of the Python interpreter in an archive, as in ``env/bin/python``; default: the cluster's Python."""
    savepoint: Annotated[str, msgspec.Meta(max_length=MAX_SAVEPOINT_CHARACTERS)] = ""
    executor_cores: int = 0
    executor_memory_mb: int = 0
    token_files: TokenFiles = ()
    """Files with current tokens of the job for audiences that the policy allows: ``audience``, ``name`` and, for AWS
    clients, ``aws_role_arn``."""
    uploads: Annotated[tuple[UploadedPart, ...], msgspec.Meta(max_length=MAX_FILES + 1)] = ()
    """Files that were uploaded before (`/v1/uploads`), instead of parts with their content."""
    secrets: tuple[SecretReference, ...] = ()
    """Secrets that the job gets as files below `/run/secrets`."""
    queue: Annotated[str, msgspec.Meta(max_length=MAX_QUEUE_CHARACTERS)] = ""
    """The queue whose share of the slots its executors use; default: the first queue that the caller may use."""
    priority: Annotated[int, msgspec.Meta(ge=0, le=MAX_PRIORITY)] = 0
    """The priority within its queue, up to the maximum of the queue."""


@dataclass
class _Parts:
    request: SubmitRequest | None = None
    pipeline: BlobRef | None = None
    files: list[BlobRef] = field(default_factory=list)
    py_files: list[BlobRef] = field(default_factory=list)
    archives: list[BlobRef] = field(default_factory=list)

    @property
    def count(self) -> int:
        """The number of files without the pipeline."""
        return len(self.files) + len(self.py_files) + len(self.archives)


@dataclass(frozen=True, slots=True)
class Received:
    """A submission, and the ids of the uploads that it used."""

    submission: JobSubmission
    uploads: tuple[str, ...] = ()


async def receive_submission(
    request: web.Request, store: BlobStore, job_id: str, *, owner: Principal, default_executors: int
) -> Received:
    """Read the request's body, and store its files as blobs of ``job_id``.


    Raises:
        BadRequest: the body does not have the parts above.
        InvalidBlobName: a file name is not plain.
        BlobTooLarge: the job would have more content than allowed.
        UploadNotFound: it names an upload that does not exist or belongs to another user.
        UploadConflict: it names an upload that is not complete.
        InvalidSecret: the name of a secret or of its file is not plain.
    """
    if request.content_type != "multipart/form-data":
        _bad(f"the body is {request.content_type}, not multipart/form-data")
    parts = _Parts()
    try:
        async for part in await request.multipart():
            if not isinstance(part, BodyPartReader):
                _bad("a part of the body is itself multipart")
            await _receive_part(part, parts, store, job_id)
    except _MALFORMED as error:
        raise BadRequest(f"the body is not valid multipart/form-data: {type(error).__name__}") from error
    except TimeoutError as error:
        raise BadRequest(f"the upload made no progress for {STALL_SECONDS:g} s") from error
    if parts.request is not None:
        for uploaded in parts.request.uploads:
            _add(parts, uploaded.part, await asyncio.to_thread(store.adopt, job_id, uploaded.upload_id, owner.name))
    if parts.request is None or parts.pipeline is None:
        _bad(f"the part {'request' if parts.request is None else 'pipeline'!r} is missing")
    wanted, pipeline = parts.request, parts.pipeline
    check_secret_references(wanted.secrets)
    submission = JobSubmission(
        name=wanted.name or pipeline.name,
        owner=owner.name,
        owner_roles=owner.roles,
        owner_groups=owner.groups,
        pipeline=pipeline,
        args=wanted.args,
        spark_conf=wanted.spark_conf,
        executors=default_executors if wanted.executors is None else wanted.executors,
        files=tuple(parts.files),
        py_files=tuple(parts.py_files),
        archives=_archives(parts.archives, wanted.archive_names),
        python=wanted.python,
        restart=wanted.restart,
        savepoint=wanted.savepoint,
        executor_cores=wanted.executor_cores,
        executor_memory_mb=wanted.executor_memory_mb,
        token_files=_token_files(wanted.token_files),
        secrets=wanted.secrets,
        queue=wanted.queue or msgspec.UNSET,
        priority=wanted.priority or msgspec.UNSET,
    )
    return Received(submission, tuple({each.upload_id: None for each in wanted.uploads}))


def _token_files(files: tuple[TokenFile, ...]) -> tuple[TokenFile, ...]:
    if len({file.name for file in files}) != len(files):
        _bad("two of token_files have the same name")
    if any(not file.audience.isprintable() for file in files):
        _bad("an audience in token_files has unprintable characters")
    return files


def _archives(refs: list[BlobRef], names: dict[str, str]) -> tuple[Archive, ...]:
    unknown = sorted(set(names) - {ref.name for ref in refs})
    if unknown:
        _bad(f"archive_names has {unknown[0][:80]!r}, but the job has no such archive")
    return tuple(Archive(blob=ref, name=names.get(ref.name, "") or directory_name(ref.name)) for ref in refs)


async def _receive_part(part: BodyPartReader, parts: _Parts, store: BlobStore, job_id: str) -> None:
    match part.name:
        case "request" if parts.request is None:
            parts.request = await _read_request(part)
        case "pipeline" | "file" | "py_file" | "archive" as name if _takes(parts, name):
            _add(parts, name, await _store(part, store, job_id))
        case name:
            _unexpected(str(name))


def _takes(parts: _Parts, name: str) -> bool:
    """Whether one more file may come in the part ``name``."""
    return parts.pipeline is None if name == "pipeline" else parts.count < MAX_FILES


def _add(parts: _Parts, name: str, ref: BlobRef) -> None:
    if not _takes(parts, name):
        _unexpected(name)
    if name == "pipeline":
        parts.pipeline = ref
    else:
        {"file": parts.files, "py_file": parts.py_files, "archive": parts.archives}[name].append(ref)


def _unexpected(name: str) -> NoReturn:
    _bad(
        f"unexpected part {name[:80]!r}",
        f"send one request, one pipeline, and at most {MAX_FILES} file, py_file and archive parts together",
    )


async def _read_request(part: BodyPartReader) -> SubmitRequest:
    data = bytearray()
    while chunk := await asyncio.wait_for(part.read_chunk(), STALL_SECONDS):
        data += chunk
        if len(data) > MAX_REQUEST_PART_BYTES:
            _bad(f"the part 'request' is larger than {MAX_REQUEST_PART_BYTES} bytes")
    try:
        return msgspec.json.decode(bytes(data), type=SubmitRequest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the part 'request' is not as expected: {error}") from error


async def _store(part: BodyPartReader, store: BlobStore, job_id: str) -> BlobRef:
    if part.filename is None:
        _bad(f"the part {part.name!r} has no file name")
    with store.writer(job_id, check_file_name(part.filename)) as writer:
        while chunk := await asyncio.wait_for(part.read_chunk(CHUNK_BYTES), STALL_SECONDS):
            writer.write(bytes(chunk))
        return await asyncio.to_thread(writer.commit)


def _bad(what: str, remedy: str = "") -> NoReturn:
    raise BadRequest(what, remedy)
