"""A client of the cluster's REST API: HTTPS through the gateway, with the user's credential."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from sluice.client.access import GatewayAccess
from sluice.client.access_token import EXCHANGE_PATH, AccessTokenCache
from sluice.client.connection_errors import describe_connection_error
from sluice.client.errors import AwayError, ClientError, RefusedError, UnreachableError
from sluice.client.uploads import LARGE_BYTES, upload
from sluice.core import BodyTooLarge, read_body, tcp_connector
from sluice.pki.tls import EdgeTrust, edge_client_context

MAX_ANSWER_BYTES = 16 << 20
REQUEST_TIMEOUT_SECONDS = 60.0
HANDSHAKE_TIMEOUT_SECONDS = 10.0
REFUSED = frozenset({401, 403})


@dataclass(frozen=True, slots=True)
class EdgeConnection:
    """A connection to the gateway: the SPIFFE ID in its certificate, TLS version and cipher suite."""

    peer: str
    protocol: str
    cipher: str


@dataclass(frozen=True, slots=True)
class _Answer:
    """The gateway's answer; ``version`` as in ``ETag``, empty: none."""

    status: int
    body: bytes
    version: str


@dataclass(frozen=True, slots=True)
class _Request:
    """``document`` is sent as JSON, and ``data`` as it is."""

    method: str
    path: str
    query: Mapping[str, str | int] = field(default_factory=dict)
    data: aiohttp.FormData | bytes | None = None
    document: object = None

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class GatewayClient:
    """REST calls through the gateway; answers are plain decoded JSON.

    Raises:
        AwayError: no connection, or a part of the cluster is away (502 to 504).
        UnreachableError: not the gateway's certificate, or the token is not accepted (401).
        RefusedError: the token may not do this (403), or the cluster refuses the request (4xx).
        ClientError: the cluster failed (5xx).
    """

    def __init__(self, target: GatewayAccess, session: aiohttp.ClientSession) -> None:
        self._target = target
        self._session = session
        self._trust = EdgeTrust(target.ca_file)
        self._token_cache = AccessTokenCache()

    async def get(self, path: str, **query: str | int) -> Any:  # noqa: ANN401  JSON is what it is
        """GET ``path``."""
        return await self._call(_Request("GET", path, query))

    async def newer(self, path: str, version: str, seconds: float) -> tuple[Any, str]:
        """GET ``path`` once its version is not ``version``, as :class:`~sluice.client.jobs.ChangeReader` defines."""
        request = _Request("GET", path, {"wait": f"{seconds:g}", "version": version})
        answer = await self._ask(request)
        if answer.status == HTTPStatus.NOT_MODIFIED:
            return None, version
        return _decode(answer.status, answer.body, str(request)), answer.version

    async def patch(self, path: str, **query: str | int) -> Any:  # noqa: ANN401
        """PATCH ``path``."""
        return await self._call(_Request("PATCH", path, query))

    async def post(self, path: str, document: object = None) -> Any:  # noqa: ANN401
        """POST ``path``, with ``document`` as its body unless that is None."""
        return await self._call(_Request("POST", path, document=document))

    async def post_bytes(self, path: str, data: bytes) -> Any:  # noqa: ANN401
        """POST ``path`` with ``data`` as its body."""
        return await self._call(_Request("POST", path, data=data))

    async def delete(self, path: str, **query: str | int) -> Any:  # noqa: ANN401
        """DELETE ``path``."""
        return await self._call(_Request("DELETE", path, query))

    async def submit(
        self, pipeline: Path, request: Mapping[str, object], files: Sequence[tuple[str, Path]] = ()
    ) -> str:
        """Upload ``pipeline`` and ``files`` (name of the part, and file) with the ``request``; returns the job id.

        Large files go first and in pieces, so that an interrupted upload can resume.
        """
        large = [(part, file) for part, file in files if file.stat().st_size >= LARGE_BYTES]
        files = [each for each in files if each not in large]
        if large:
            uploaded = [{"part": part, "upload_id": await self._upload(file)} for part, file in large]
            request = {**request, "uploads": uploaded}
        handles = [pipeline.open("rb"), *(file.open("rb") for _, file in files)]
        try:
            form = aiohttp.FormData()
            form.add_field("request", json.dumps(request), content_type="application/json")
            form.add_field("pipeline", handles[0], filename=pipeline.name, content_type="text/x-python")
            for (part, file), handle in zip(files, handles[1:], strict=True):
                form.add_field(part, handle, filename=file.name, content_type="application/octet-stream")
            answer = await self._call(_Request("POST", "/v1/jobs", data=form))
        finally:
            for handle in handles:
                handle.close()
        return str(answer["job_id"])

    async def _upload(self, file: Path) -> str:
        async def send(upload_id: str, offset: int, piece: bytes) -> Any:  # noqa: ANN401
            return await self._call(_Request("PATCH", f"/v1/uploads/{upload_id}", {"offset": offset}, data=piece))

        return await upload(
            file,
            announce=lambda order: self.post("/v1/uploads", order),
            stands=lambda upload_id: self.get(f"/v1/uploads/{upload_id}"),
            send=send,
        )

    async def _call(self, request: _Request) -> Any:  # noqa: ANN401
        """Send a request: first ones with the credential, later ones with an access token, which is cheaper to check.

        A single call is not worth an exchange. A body that cannot be sent twice (``data``) goes with the credential.
        """
        answer = await self._ask(request)
        return _decode(answer.status, answer.body, str(request))

    async def _ask(self, request: _Request) -> _Answer:
        shown = None if request.data is not None else await self._access_token()
        answer = await self._send(request, bearer=shown)
        if shown is not None and answer.status in REFUSED:
            # The access token may be revoked or outdated; a refusal of the credential says why.
            self._token_cache.drop()
            answer = await self._send(request)
        return answer

    async def _access_token(self) -> str | None:
        """The access token to send; None: the credential itself."""
        shown = self._token_cache.current(time.monotonic())
        if shown is None and self._token_cache.is_due():
            answer = await self._send(_Request("POST", EXCHANGE_PATH))
            shown = self._token_cache.take(answer.status, answer.body, time.monotonic())
        return shown

    async def _send(self, request: _Request, *, bearer: str | None = None) -> _Answer:
        headers = {} if bearer is None else {"authorization": f"Bearer {bearer}"}
        if isinstance(request.data, bytes):
            headers["content-type"] = "application/octet-stream"
        try:
            url, context = self._target.url + request.path, self._trust.context()
            async with self._session.request(
                request.method,
                url,
                params=request.query,
                data=request.data,
                json=request.document,
                headers=headers,
                ssl=context,
                allow_redirects=False,  # the credential must go to this gateway only
            ) as answer:
                if 300 <= answer.status < 400 and answer.status != HTTPStatus.NOT_MODIFIED:
                    raise ClientError(f"{request}: the gateway answered with a redirect", "is it a gateway of Sluice?")
                body = await read_body(answer.content, MAX_ANSWER_BYTES)
                return _Answer(answer.status, body, answer.headers.get("etag", "").strip('"'))
        except BodyTooLarge as error:
            raise ClientError(
                f"{request}: the answer is larger than {MAX_ANSWER_BYTES >> 20} MiB", "ask for less at once"
            ) from error
        except aiohttp.ClientConnectorCertificateError as error:
            raise UnreachableError(
                f"{self._target.url} did not prove to be the gateway: {describe_connection_error(error)}",
                "check --ca: it must be the certificate of the gateway's authority, by default the edge authority",
            ) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise AwayError(
                f"cannot reach the gateway at {self._target.url}: {describe_connection_error(error)}",
                "is the cluster running? see `sluice status`",
            ) from _without_headers(error)


@asynccontextmanager
async def gateway_client(target: GatewayAccess) -> AsyncIterator[GatewayClient]:
    """A connected client; closes its connections at the end."""
    connector = tcp_connector()
    timeout = aiohttp.ClientTimeout(total=None, connect=10, sock_read=REQUEST_TIMEOUT_SECONDS)
    headers = {"authorization": f"Bearer {target.token}"}
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:
        yield GatewayClient(target, session)


async def edge_connection(target: GatewayAccess) -> EdgeConnection:
    """Connect to the gateway like a client; returns what was negotiated, and who answered."""
    from cryptography import x509

    from sluice.pki.tls import tls_object_of  # late: only this needs all of mutual TLS
    from sluice.pki.x509 import certified_identity

    address = urlsplit(target.url)
    try:
        _, writer = await asyncio.wait_for(
            asyncio.open_connection(address.hostname, address.port or 443, ssl=edge_client_context(target.ca_file)),
            HANDSHAKE_TIMEOUT_SECONDS,
        )
    except (OSError, TimeoutError) as error:
        raise AwayError(
            f"cannot reach the gateway at {target.url}: {describe_connection_error(error)}",
            "is the cluster running? see `sluice status`",
        ) from error
    tls = tls_object_of(writer)
    try:
        peer = certified_identity(x509.load_der_x509_certificate(tls.getpeercert(binary_form=True) or b""))
        return EdgeConnection(str(peer), tls.version() or "", (tls.cipher() or ("",))[0])
    finally:
        writer.close()


def _without_headers(error: Exception) -> Exception | None:
    """``error`` as a cause; None if it contains the request's headers, and so the token."""
    return None if isinstance(error, aiohttp.ClientResponseError) else error


def _decode(status: int, body: bytes, what: str) -> Any:  # noqa: ANN401
    try:
        document = json.loads(body) if body else {}
    except ValueError as error:
        raise ClientError(f"{what}: the answer ({status}) is not JSON", "is it a gateway of Sluice?") from error
    if status < 300:
        return document
    detail = document.get("detail") or document.get("title") or f"status {status}"
    match status:
        case 401:
            raise UnreachableError(f"{what}: {detail}", "the token is unknown, revoked or expired: make a new one")
        case 403:
            # The gateway refuses because of the role. A refusal of REST has a type, and its detail says why.
            of_role = document.get("type", "about:blank") == "about:blank"
            raise RefusedError(f"{what}: {detail}", "this token's role does not allow it" if of_role else "")
        case 502 | 503 | 504:
            raise AwayError(f"{what}: {detail}", "a part of the cluster is away: see `sluice status`")
        case _ if status < 500:
            raise RefusedError(f"{what}: {detail}")
        case _:
            raise ClientError(f"{what}: {detail}", "see the logs of the JobManager")
