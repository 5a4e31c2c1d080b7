"""Fetches a blob: streams it to a file and verifies its digest and size, all or nothing."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import aiohttp

from sluice.core import SECRET_MODE, host_port, sync_directory, tcp_connector
from sluice.pki import Channel, Role, server_policy
from sluice.pki.tls import TlsIdentity
from sluice.runtime.blob.errors import BlobCorrupt, BlobError, BlobNotFound, BlobUnavailable
from sluice.runtime.blob.names import check_digest, check_job_id
from sluice.runtime.messages import BlobRef

CHUNK_BYTES = 256 << 10
CONNECT_SECONDS = 10.0
MAX_RESUMPTIONS = 100
"""How often a broken transfer may be resumed. Each attempt must have received at least one byte."""
STALL_SECONDS = 30.0
"""A transfer without a byte for this long is aborted."""


Ask = Callable[[int], AbstractAsyncContextManager[aiohttp.ClientResponse]]
"""Requests the blob from this offset on."""


async def fetch_blob(  # noqa: PLR0917  # in the order of the transfer: identity, server, blob, target
    identity: TlsIdentity, host: str, port: int, job_id: str, ref: BlobRef, target: Path, *, jobmanager: str = ""
) -> None:
    """Fetch ``ref`` of ``job_id`` from the JobManager's blob server into ``target`` (mode 0600, replaced atomically).

    ``jobmanager`` is the name in the server's certificate; empty accepts any JobManager.


    Raises:
        BlobNotFound: the server has no such blob, or this process may not read it.
        BlobCorrupt: the content has another size or digest than ``ref``.
        BlobUnavailable: the server is unreachable, is not authenticated as the JobManager, or broke off the transfer.
    """
    path = f"/v1/blobs/{check_job_id(job_id)}/{check_digest(ref.sha256)}"
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
    try:
        await _fetch_resuming(lambda offset: _get(identity, host, port, path, offset, jobmanager), ref, temporary)
        temporary.replace(target)
        sync_directory(target.parent)
    except OSError as error:
        raise BlobError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


@asynccontextmanager
async def _get(  # noqa: PLR0917  # as above, and the offset
    identity: TlsIdentity, host: str, port: int, path: str, offset: int, jobmanager: str
) -> AsyncIterator[aiohttp.ClientResponse]:
    policy = server_policy(Channel.BLOB, identity.spiffe_id.trust_domain, role=Role.JOBMANAGER, name=jobmanager)
    context = identity.client_context(policy, alpn=("http/1.1",))
    timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS, sock_read=STALL_SECONDS)
    connector = tcp_connector(ssl=context, force_close=True)
    url = f"https://{host_port(host, port)}{path}"
    headers = {"accept-encoding": "identity"} | ({"range": f"bytes={offset}-"} if offset else {})
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session,
            session.get(url, headers=headers, allow_redirects=False) as response,
        ):
            if response.status in {403, 404}:
                raise BlobNotFound(f"the blob server refused {path} (status {response.status})")
            expected = f"bytes {offset}-"
            if offset and response.status == 206 and not response.headers.get("content-range", "").startswith(expected):
                raise BlobCorrupt(f"{path}: the blob server sent another range than requested")
            if response.status != (206 if offset else 200):
                raise BlobUnavailable(f"the blob server answered {path} with status {response.status}")
            yield response
    except (aiohttp.ClientError, TimeoutError) as error:
        raise BlobUnavailable(
            f"cannot fetch {path} from {host}:{port}: {error or type(error).__name__}", "is the JobManager running?"
        ) from error


async def _fetch_resuming(ask: Ask, ref: BlobRef, temporary: Path) -> None:
    """Resume a broken transfer for as long as each attempt receives at least one byte."""
    received, digest = 0, hashlib.sha256()
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, SECRET_MODE)
    with os.fdopen(descriptor, "wb") as file:
        for resumptions in range(MAX_RESUMPTIONS + 1):
            before = received
            try:
                async with ask(received) as response:
                    async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                        received += len(chunk)
                        if received > ref.size:
                            raise BlobCorrupt(f"{ref.name} is larger than the {ref.size} bytes it should have")
                        digest.update(chunk)
                        file.write(chunk)
                break
            except BlobUnavailable:
                if received == ref.size:
                    break
                if received == before or resumptions == MAX_RESUMPTIONS:
                    raise
        file.flush()
        await asyncio.to_thread(os.fsync, file.fileno())
    if received != ref.size or digest.hexdigest() != ref.sha256:
        raise BlobCorrupt(
            f"{ref.name} has {received} bytes with SHA-256 {digest.hexdigest()}, which differs from its reference"
        )
