"""Trust anchors and CRLs in a ConfigMap: pods verify the authority with them before they send their token.

Pods of jobs have no other source of CRLs, because the authority's mutual TLS port admits no job.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sluice.core import KubernetesApi
from sluice.pki.errors import AttestationUnavailable

TRUST_KEY, CRL_KEY = "ca.pem", "crl.pem"
MAX_CONFIG_MAP_BYTES = 3 << 20
MAX_CRL_BYTES = 900 << 10
"""An object has at most 1 MiB (etcd)."""


class TrustConfigMap:
    """One existing ConfigMap, which this can read and replace."""

    def __init__(self, api: KubernetesApi, namespace: str, name: str) -> None:
        self._api = api
        self._name = name
        self._path = f"/api/v1/namespaces/{namespace}/configmaps/{name}"

    async def publish(self, ca_pem: str, crl_pem: str) -> bool:
        """Write this into the ConfigMap; returns whether it changed. CRLs above the limit stay as they are.

        Raises:
            AttestationUnavailable: the API server refused, or somebody else changed it at the same time.
            KubernetesUnanswered: likewise, or it may have been changed.
            KubernetesMisconfigured: the API server is not the right one.
        """
        present = self._read(await self._api.request("GET", self._path, None, MAX_CONFIG_MAP_BYTES), {200})
        data = present.get("data") or {}
        news = {TRUST_KEY: ca_pem} | ({CRL_KEY: crl_pem} if len(crl_pem) <= MAX_CRL_BYTES else {})
        if data | news == data:
            return False
        wanted = present | {"data": data | news}
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
