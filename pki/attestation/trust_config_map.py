"""The trust anchors in a ConfigMap, from which pods know the authority before they show it their token."""

from __future__ import annotations

from typing import Any

import msgspec

from sluice.core import KubernetesApi
from sluice.pki.errors import AttestationUnavailable

TRUST_KEY = "ca.pem"
MAX_CONFIG_MAP_BYTES = 3 << 20


class TrustConfigMap:
    """One ConfigMap, which exists: this may read and replace it and nothing else."""

    def __init__(self, api: KubernetesApi, namespace: str, name: str) -> None:
        self._api = api
        self._name = name
        self._path = f"/api/v1/namespaces/{namespace}/configmaps/{name}"

    async def publish(self, ca_pem: bytes) -> bool:
        """Have the ConfigMap say ``ca_pem``; returns whether it had to be changed.

        Raises:
            AttestationUnavailable: the API server refused, or somebody else changed it at the same time.
            KubernetesUnanswered: likewise, or it may have been changed.
            KubernetesMisconfigured: the API server is not the right one.
        """
        present = self._read(await self._api.request("GET", self._path, None, MAX_CONFIG_MAP_BYTES), {200})
        data = present.get("data") or {}
        if data.get(TRUST_KEY) == ca_pem.decode():
            return False
        wanted = present | {"data": data | {TRUST_KEY: ca_pem.decode()}}
        self._read(await self._api.request("PUT", self._path, wanted, MAX_CONFIG_MAP_BYTES), {200})
        return True

    def _read(self, answer: tuple[int, bytes], good: set[int]) -> dict[str, Any]:
        status, data = answer
        if status not in good:
            raise AttestationUnavailable(
                f"the Kubernetes API answered for the ConfigMap {self._name} with status {status}",
                "it must exist, and the authority's service account be allowed to get and update it",
            )
        try:
            return msgspec.json.decode(data, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise AttestationUnavailable(f"the ConfigMap {self._name} cannot be read") from error
