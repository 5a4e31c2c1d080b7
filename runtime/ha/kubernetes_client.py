"""The little of the Kubernetes API that elections need: one object at a time, with optimistic concurrency.

https://kubernetes.io/docs/reference/using-api/api-concepts/ (resource versions, conflicts). Plain HTTPS with the pod's
service account; its token is read for each request, for the kubelet replaces it every hour.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from sluice.core import BodyTooLarge, StoreError, read_body, read_bounded, tcp_connector
from sluice.runtime.ha.errors import ElectionUnavailable, HaError

REQUEST_SECONDS = 5.0
MAX_OBJECT_BYTES = 3 << 20
MAX_TOKEN_BYTES = 64 << 10

LEASES = "/apis/coordination.k8s.io/v1"
CONFIG_MAPS = "/api/v1"
Object = dict[str, Any]


class ObjectMissing(HaError):
    """There is no such object."""


class ObjectConflict(HaError):
    """Somebody else has made or changed the object since it was read."""


class RequestUnsettled(HaError):
    """No answer, or one that does not tell whether the request was carried out."""


class KubernetesClient:
    """Reads and writes single objects of one namespace.

    Args:
        url: of the API server, ``https://…``.
        ca_file: the API server's anchors; nothing else is trusted.

    Raises:
        ElectionUnavailable: the anchors cannot be read.
    """

    def __init__(self, url: str, namespace: str, *, token_file: Path, ca_file: Path) -> None:
        self._url = url.rstrip("/")
        self._namespace = namespace
        self._token_file = token_file
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2  # the API server's choice; host name and anchors are checked
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the anchor may be an intermediate
        try:
            context.load_verify_locations(cadata=read_bounded(ca_file).decode("ascii"))
        except (StoreError, ssl.SSLError, ValueError) as error:
            raise ElectionUnavailable(
                f"the anchors of the Kubernetes API in {ca_file} cannot be read", "see ha.kubernetes_account"
            ) from error
        self._session = aiohttp.ClientSession(
            connector=tcp_connector(ssl=context),
            timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def get(self, group: str, kind: str, name: str) -> Object:
        """An object; raises :class:`ObjectMissing`."""
        return await self._request("GET", f"{self._path(group, kind)}/{name}", None)

    async def create(self, group: str, kind: str, content: Object) -> Object:
        """Make an object; raises :class:`ObjectConflict` when it is there."""
        return await self._request("POST", self._path(group, kind), content)

    async def replace(self, group: str, kind: str, content: Object) -> Object:
        """Replace an object of the resource version in ``content``; raises :class:`ObjectConflict`."""
        return await self._request("PUT", f"{self._path(group, kind)}/{content['metadata']['name']}", content)

    def _path(self, group: str, kind: str) -> str:
        return f"{self._url}{group}/namespaces/{self._namespace}/{kind}"

    async def _request(self, method: str, url: str, content: Object | None) -> Object:
        """Raises :class:`RequestUnsettled` when the outcome is unknown, ``ElectionUnavailable`` when it is refused."""
        headers = {"authorization": f"Bearer {self._token()}", "content-type": "application/json"}
        body = None if content is None else msgspec.json.encode(content)
        try:
            async with self._session.request(method, url, data=body, headers=headers, allow_redirects=False) as answer:
                data, status = await read_body(answer.content, MAX_OBJECT_BYTES), answer.status
        except BodyTooLarge as error:
            raise RequestUnsettled(
                f"the Kubernetes API's answer to {method} {url.removeprefix(self._url)} is too large"
            ) from error
        except aiohttp.ClientConnectorCertificateError as error:
            raise ElectionUnavailable(
                "the Kubernetes API does not show a certificate that is trusted", "see ha.kubernetes_account"
            ) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise RequestUnsettled(f"the Kubernetes API does not answer: {type(error).__name__}") from error
        return self._settled(method, url, status, data)

    def _settled(self, method: str, url: str, status: int, data: bytes) -> Object:
        path = url.removeprefix(self._url)
        if status == 404:
            raise ObjectMissing(f"Kubernetes has no {path}")
        if status == 409:
            raise ObjectConflict(f"{path} was changed meanwhile")
        if status == 429 or status >= 500:
            raise RequestUnsettled(f"the Kubernetes API answered {method} {path} with status {status}")
        if not 200 <= status < 300:
            raise ElectionUnavailable(
                f"the Kubernetes API refused {method} {path} with status {status}",
                "may the service account get, create and update leases and configmaps?",
            )
        try:
            content = msgspec.json.decode(data, type=dict[str, Any])
            content["metadata"]["resourceVersion"]
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
            raise RequestUnsettled(f"the Kubernetes API's answer to {method} {path} cannot be read") from error
        return content

    def _token(self) -> str:
        try:
            return read_bounded(self._token_file, MAX_TOKEN_BYTES).decode("ascii").strip()
        except (StoreError, ValueError) as error:
            raise ElectionUnavailable(
                f"the token of the service account in {self._token_file} cannot be read", "see ha.kubernetes_account"
            ) from error
