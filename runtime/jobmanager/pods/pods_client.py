"""Makes, lists and deletes pods at the API server. Each request is bounded in time and size."""

from __future__ import annotations

import urllib.parse
from typing import Any

import msgspec

from sluice.core import KubernetesApi, KubernetesMisconfigured, KubernetesUnanswered
from sluice.runtime.jobmanager.pods.errors import PodChanged, PodsMisconfigured, PodsRefused, PodsUnavailable
from sluice.runtime.jobmanager.pods.observed_pod import ObservedPod, observed_pod, one_line

PAGE_PODS = 50
MAX_PAGES = 40
"""Most pages of a list: far more pods than ``resources.max_taskmanagers`` allows."""
MAX_PAGE_BYTES = 8 << 20
MAX_POD_BYTES = 1 << 20

Object = dict[str, Any]


class PodsClient:
    """Pods of one namespace.

    Args:
        api: the API server, with the JobManager's service account.
    """

    def __init__(self, api: KubernetesApi, namespace: str) -> None:
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/pods"

    async def close(self) -> None:
        """Close all connections."""
        await self._api.close()

    async def get(self, name: str) -> Object:
        """One pod; raises :class:`PodChanged` when there is none."""
        return await self._request("GET", f"{self._path}/{urllib.parse.quote(name, safe='')}", None, MAX_POD_BYTES)

    async def list(self, selector: str) -> list[ObservedPod]:
        """All pods that match a label selector."""
        found: list[ObservedPod] = []
        following = ""
        for _ in range(MAX_PAGES):
            query = {"labelSelector": selector, "limit": str(PAGE_PODS)}
            if following:
                query["continue"] = following
            page = await self._request("GET", f"{self._path}?{urllib.parse.urlencode(query)}", None, MAX_PAGE_BYTES)
            items = page.get("items") or []
            found += [pod for each in items if isinstance(each, dict) and (pod := observed_pod(each)) is not None]
            following = str((page.get("metadata") or {}).get("continue") or "")
            if not following:
                return found
        raise PodsUnavailable(f"there are more than {len(found)} pods with {selector}", "check what creates them")

    async def create(self, pod: Object) -> None:
        """Make a pod; raises :class:`PodsRefused` with the API server's message."""
        await self._request("POST", self._path, pod, MAX_POD_BYTES)

    async def delete(self, pod: ObservedPod) -> None:
        """Delete an unchanged pod, with its grace period; raises :class:`PodChanged` when it has changed."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": pod.uid, "resourceVersion": pod.version},
        }
        await self._request("DELETE", f"{self._path}/{urllib.parse.quote(pod.name, safe='')}", options, MAX_POD_BYTES)

    async def _request(self, method: str, path: str, content: Object | None, limit: int) -> Object:
        try:
            status, data = await self._api.request(method, path, content, limit)
        except KubernetesUnanswered as error:
            raise PodsUnavailable(error.what) from error
        except KubernetesMisconfigured as error:
            raise PodsMisconfigured(error.what, "check ha.kubernetes_account") from error
        if status in {404, 409, 410}:
            raise PodChanged(f"{method} {path.partition('?')[0]} was answered with status {status}")
        if status == 429 or status >= 500:
            raise PodsUnavailable(f"the Kubernetes API answered {method} pods with status {status}")
        try:
            answer = msgspec.json.decode(data, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise PodsUnavailable(f"the Kubernetes API's answer to {method} pods cannot be read") from error
        if not 200 <= status < 300:
            raise PodsRefused(
                f"Kubernetes refused to {_VERBS[method]} pods (status {status}): {one_line(answer.get('message'))}",
                "check the quota and limits of the namespace, and the rights of the service account",
            )
        return answer


_VERBS = {"GET": "show", "POST": "create", "DELETE": "delete"}
