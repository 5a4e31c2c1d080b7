"""Requests to the API server of Kubernetes: plain HTTPS with a pod's service account, bounded in time and size.

Each request reads the account's token again, because the kubelet replaces it every hour.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import msgspec

from sluice.core.addresses import host_port
from sluice.core.errors import SluiceError, StoreError
from sluice.core.files import read_bounded
from sluice.core.http_body import BodyTooLarge, read_body
from sluice.core.http_client import tcp_connector

REQUEST_SECONDS = 5.0
MAX_ACCOUNT_TOKEN_BYTES = 64 << 10
MAX_NAMESPACE_BYTES = 256
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where Kubernetes mounts ``token``, ``ca.crt`` and ``namespace`` of a pod's service account."""


class KubernetesMisconfigured(SluiceError):
    """API server, anchors or service account token are missing, or the server does not prove its identity."""


class KubernetesUnanswered(SluiceError):
    """There was no answer, or it was too large: the request may have taken effect."""


def cluster_url(environment: Mapping[str, str] = os.environ) -> str:
    """The API server of the cluster that this pod runs in."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not port.isdecimal():
        raise KubernetesMisconfigured("this process is not in a pod of a Kubernetes cluster")
    return f"https://{host_port(host, int(port))}"


def pod_namespace(account: Path) -> str:
    """The namespace that this pod runs in."""
    try:
        return read_bounded(account / "namespace", MAX_NAMESPACE_BYTES).decode("ascii").strip()
    except (StoreError, ValueError) as error:
        raise KubernetesMisconfigured("the namespace of this pod is not known") from error


class KubernetesApi:
    """One API server.

    Args:
        url: ``https://…``.
        token_file: of the service account that asks.
        ca_file: the API server's anchors; nothing else is trusted.
        seconds: how long a request may take.

    Raises:
        KubernetesMisconfigured: the anchors cannot be read.
    """

    def __init__(self, url: str, *, token_file: Path, ca_file: Path, seconds: float = REQUEST_SECONDS) -> None:
        self._url = url.rstrip("/")
        self._token_file = token_file
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2  # the API server's choice; host name and anchors are checked
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the anchor may be an intermediate
        try:
            context.load_verify_locations(cadata=read_bounded(ca_file).decode("ascii"))
        except (StoreError, ssl.SSLError, ValueError) as error:
            raise KubernetesMisconfigured(f"the anchors of the Kubernetes API in {ca_file} cannot be read") from error
        self._session = aiohttp.ClientSession(
            connector=tcp_connector(ssl=context),
            timeout=aiohttp.ClientTimeout(total=seconds),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def request(self, method: str, path: str, content: object | None, limit: int) -> tuple[int, bytes]:
        """Send one request; returns status and body, which has at most ``limit`` bytes.

        Raises:
            KubernetesUnanswered: the outcome is unknown.
            KubernetesMisconfigured: the request was not sent, as server or token are not right.
        """
        headers = {"authorization": f"Bearer {self._token()}", "content-type": "application/json"}
        body = None if content is None else msgspec.json.encode(content)
        url = f"{self._url}{path}"
        try:
            async with self._session.request(method, url, data=body, headers=headers, allow_redirects=False) as answer:
                return answer.status, await read_body(answer.content, limit)
        except BodyTooLarge as error:
            raise KubernetesUnanswered(f"the Kubernetes API's answer to {method} {path} is too large") from error
        except aiohttp.ClientConnectorCertificateError as error:
            raise KubernetesMisconfigured("the Kubernetes API does not show a certificate that is trusted") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise KubernetesUnanswered(f"the Kubernetes API does not answer: {type(error).__name__}") from error

    def _token(self) -> str:
        try:
            return read_bounded(self._token_file, MAX_ACCOUNT_TOKEN_BYTES).decode("ascii").strip()
        except (StoreError, ValueError) as error:
            raise KubernetesMisconfigured(
                f"the token of the service account in {self._token_file} cannot be read"
            ) from error
