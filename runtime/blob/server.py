"""The blob server: HTTPS with mutual TLS, authorized by the certificate of the peer.

It serves only ``GET /v1/blobs/{job_id}/{sha256}`` to the driver of that job. Only this process writes blobs.
"""

from __future__ import annotations

import logging
import re

from aiohttp import web

from sluice.core import PeerRefused, SluiceError
from sluice.pki import Channel, SpiffeId, client_policy
from sluice.pki.tls import ConnectionLog, MutualTlsListener, TlsIdentity, peer_of
from sluice.runtime.blob.access import check_read
from sluice.runtime.blob.errors import BlobNotFound, InvalidBlobName
from sluice.runtime.blob.store import BlobStore

_LOG = logging.getLogger(__name__)

CHUNK_BYTES = 256 << 10
IDLE_SECONDS = 60.0
"""A connection that is idle for this long is closed."""

_PATH = re.compile(r"/v1/blobs/([0-9a-f]{32})/([0-9a-f]{64})")
_STATUS: dict[type[SluiceError], int] = {
    PeerRefused: 403,
    BlobNotFound: 404,
    InvalidBlobName: 404,
}


class BlobServer:
    """Serves one :class:`BlobStore`."""

    def __init__(self, identity: TlsIdentity, store: BlobStore, connections: ConnectionLog | None = None) -> None:
        self._store = store
        self._http = web.Server(self._handle, access_log=None, keepalive_timeout=IDLE_SECONDS)
        self._listener = MutualTlsListener(
            identity,
            Channel.BLOB,
            client_policy(Channel.BLOB, identity.spiffe_id.trust_domain),
            self._http,
            alpn=("http/1.1",),
            connections=connections,
        )

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen, and return the bound address."""
        return await self._listener.start(host, port)

    async def close(self) -> None:
        """Stop listening and end all transfers."""
        await self._listener.close()
        await self._http.shutdown(0)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            peer = peer_of(request.transport)  # type: ignore[arg-type]  # a request being handled has its transport
            match = _PATH.fullmatch(request.path)
            if match is None:
                raise BlobNotFound(f"no blob has the path {request.path[:120]!r}")
            return await self._answer(request, peer, match[1], match[2])
        except SluiceError as error:
            status = _STATUS.get(type(error), 500)
            _LOG.log(logging.INFO if status < 500 else logging.ERROR, "%s %s: %s", request.method, request.path, error)
            return web.json_response({"status": status, "title": type(error).__name__}, status=status)

    async def _answer(self, request: web.BaseRequest, peer: SpiffeId, job_id: str, sha256: str) -> web.StreamResponse:
        match request.method:
            case "GET":
                check_read(peer, job_id)
                return web.FileResponse(self._store.path(job_id, sha256), chunk_size=CHUNK_BYTES)
            case _:
                return web.json_response({"status": 405, "title": "MethodNotAllowed"}, status=405)
