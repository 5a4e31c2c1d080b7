"""A client for the part of the Kubernetes API that elections need: single objects with optimistic concurrency.

https://kubernetes.io/docs/reference/using-api/api-concepts/ (resource versions, conflicts).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from sluice.core import KubernetesApi, KubernetesMisconfigured, KubernetesUnanswered
from sluice.runtime.ha.errors import ElectionUnavailable, HaError

MAX_OBJECT_BYTES = 3 << 20

LEASES = "/apis/coordination.k8s.io/v1"
CONFIG_MAPS = "/api/v1"
Object = dict[str, Any]

_REMEDY = "check ha.kubernetes_account"


class ObjectMissing(HaError):
    """The object does not exist."""


class ObjectConflict(HaError):
    """The object was created or changed since it was read."""


class RequestUnsettled(HaError):
    """There was no answer, or the answer does not say whether the request was carried out."""


class KubernetesClient:
    """Reads and writes single objects of one namespace.

    Args:
        url: URL of the API server, ``https://…``.
        namespace: the namespace of the objects.
        token_file: file with the service account's token.
        ca_file: the trust anchors for the API server; no others are trusted.

    Raises:
        ElectionUnavailable: the trust anchors cannot be read.
    """

    def __init__(self, url: str, namespace: str, *, token_file: Path, ca_file: Path) -> None:
        self._namespace = namespace
        try:
            self._api = KubernetesApi(url, token_file=token_file, ca_file=ca_file)
        except KubernetesMisconfigured as error:
            raise ElectionUnavailable(error.what, _REMEDY) from error

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()

    async def get(self, group: str, kind: str, name: str) -> Object:
        """Read an object; raises :class:`ObjectMissing`."""
        return await self._request("GET", f"{self._path(group, kind)}/{name}", None)

    async def create(self, group: str, kind: str, content: Object) -> Object:
        """Create an object; raises :class:`ObjectConflict` when it exists already."""
        return await self._request("POST", self._path(group, kind), content)

    async def replace(self, group: str, kind: str, content: Object) -> Object:
        """Replace an object if it still has the resource version in ``content``; raises :class:`ObjectConflict`."""
        return await self._request("PUT", f"{self._path(group, kind)}/{content['metadata']['name']}", content)

    def _path(self, group: str, kind: str) -> str:
        return f"{group}/namespaces/{self._namespace}/{kind}"

    async def _request(self, method: str, path: str, content: Object | None) -> Object:
        """Raises :class:`RequestUnsettled` if the outcome is unknown, ``ElectionUnavailable`` if it is refused."""
        try:
            status, data = await self._api.request(method, path, content, MAX_OBJECT_BYTES)
        except KubernetesUnanswered as error:
            raise RequestUnsettled(error.what) from error
        except KubernetesMisconfigured as error:
            raise ElectionUnavailable(error.what, _REMEDY) from error
        if status == 404:
            raise ObjectMissing(f"Kubernetes has no {path}")
        if status == 409:
            raise ObjectConflict(f"{path} was changed since it was read")
        if status == 429 or status >= 500:
            raise RequestUnsettled(f"the Kubernetes API answered {method} {path} with status {status}")
        if not 200 <= status < 300:
            raise ElectionUnavailable(
                f"the Kubernetes API refused {method} {path} with status {status}",
                "allow the service account to get, create and update leases and configmaps",
            )
        try:
            found = msgspec.json.decode(data, type=dict[str, Any])
            found["metadata"]["resourceVersion"]
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
            raise RequestUnsettled(f"the Kubernetes API's answer to {method} {path} cannot be read") from error
        return found
