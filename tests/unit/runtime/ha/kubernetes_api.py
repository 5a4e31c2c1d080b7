"""A fake of the part of the Kubernetes API server that elections and pods use, over TLS.

It has the semantics of the real server: resource versions from one counter, conflicts (409) for stale
versions, ``AlreadyExists``, leases that need a resource version for an update, validation of Lease times
and of ConfigMap keys and sizes, bearer tokens, and ``Status`` objects. Requests can be lost before or
after they are carried out, or answered with 500 or 429.
"""

from __future__ import annotations

import datetime as dt
import re
import ssl
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

TOKEN = "service-account"  # noqa: S105  # of a server that exists for tests only
CONFIG_MAP_BYTES = 1 << 20
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_REFUSALS = {"500": "InternalError", "429": "TooManyRequests", "403": "Forbidden"}
_MICRO_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"


@dataclass
class ApiServer:
    """A fake API server with objects by kind and name, in one namespace."""

    objects: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    version: int = 100
    fate: str = "ok"
    """``ok``, ``no request``, ``no answer``, ``500``, or ``429``."""
    fate_of_writes: dict[str, str] = field(default_factory=dict)
    """By kind; else :attr:`fate`. Also ``403``."""
    written: Callable[[str, str], None] = lambda _method, _kind: None
    """Called with method and kind after each write that was carried out."""
    writes: list[tuple[str, str]] = field(default_factory=list)
    pods_quota: int | None = None
    _runner: web.AppRunner | None = None

    async def start(self, context: ssl.SSLContext) -> str:
        """Start the server and return its URL."""
        application = web.Application()
        for group, kind in (("/apis/coordination.k8s.io/v1", "leases"), ("/api/v1", "configmaps")):
            path = f"{group}/namespaces/{{namespace}}/{kind}"
            application.router.add_post(path, self._handler(kind, self._create))
            application.router.add_get(f"{path}/{{name}}", self._handler(kind, self._get))
            application.router.add_put(f"{path}/{{name}}", self._handler(kind, self._replace))
        pods = "/api/v1/namespaces/{namespace}/pods"
        application.router.add_post(pods, self._handler("pods", self._create))
        application.router.add_get(pods, self._handler("pods", self._list, query=True))
        application.router.add_get(f"{pods}/{{name}}", self._handler("pods", self._get))
        application.router.add_delete(f"{pods}/{{name}}", self._handler("pods", self._delete))
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        return f"https://{host}:{port}"

    async def close(self) -> None:
        """Stop the server."""
        if self._runner is not None:
            await self._runner.cleanup()

    def _handler(self, kind: str, operation: Any, *, query: bool = False) -> Any:
        async def handle(request: web.Request) -> web.Response:
            if request.headers.get("authorization") != f"Bearer {TOKEN}":
                return _status(401, "Unauthorized")
            if request.match_info["namespace"] != "cluster":
                return _status(403, "Forbidden")
            fate = self.fate
            if request.method != "GET":
                fate = self.fate_of_writes.get(kind, fate)
            if fate == "no request":
                return _drop(request)
            if fate in _REFUSALS:
                return _status(int(fate), _REFUSALS[fate])
            body = await request.json() if request.can_read_body else {}
            body = dict(request.query) if query else body
            answer: web.Response = operation(kind, request.match_info.get("name", ""), body)
            if request.method != "GET" and answer.status < 300:
                self.written(request.method, kind)
            return _drop(request) if fate == "no answer" else answer

        return handle

    def _get(self, kind: str, name: str, _: Any) -> web.Response:
        found = self.objects.get((kind, name))
        return _status(404, "NotFound") if found is None else web.json_response(found)

    def _list(self, kind: str, _: str, query: dict[str, str]) -> web.Response:
        """List objects by name, a page at a time; ``continue`` is the last name of the previous page."""
        wanted = dict(each.split("=") for each in query["labelSelector"].split(","))
        found = [
            content
            for (of_kind, name), content in sorted(self.objects.items())
            if of_kind == kind
            and name > query.get("continue", "")
            and wanted.items() <= (content["metadata"].get("labels") or {}).items()
        ]
        page = found[: int(query["limit"])]
        more = page[-1]["metadata"]["name"] if len(found) > len(page) else ""
        return web.json_response({"metadata": {"continue": more, "resourceVersion": str(self.version)}, "items": page})

    def _delete(self, kind: str, name: str, options: Any) -> web.Response:
        present = self.objects.get((kind, name))
        if present is None:
            return _status(404, "NotFound")
        conditions = options.get("preconditions") or {}
        metadata = present["metadata"]
        if any(metadata[key] != value for key, value in conditions.items()):
            return _status(409, "Conflict")
        del self.objects[kind, name]
        self.version += 1
        return web.json_response(present)

    def _create(self, kind: str, _: str, body: Any) -> web.Response:
        name = body["metadata"]["name"]
        if kind == "pods" and self.pods_quota is not None:
            used = sum(of_kind == "pods" for of_kind, _ in self.objects)
            if used >= self.pods_quota:
                told = f'pods "{name}" is forbidden: exceeded quota: few, used: pods={used}, limited: pods={used}'
                return _status(403, "Forbidden", told)
        if (kind, name) in self.objects:
            return _status(409, "AlreadyExists")
        if problem := _invalid(kind, body):
            return _status(422, problem)
        body["metadata"] |= {"uid": str(uuid.uuid4()), "namespace": "cluster"}
        return self._store(kind, name, body, 201)

    def _replace(self, kind: str, name: str, body: Any) -> web.Response:
        present = self.objects.get((kind, name))
        if present is None:
            return _status(404, "NotFound")
        given = body["metadata"].get("resourceVersion", "")
        if not given and kind == "leases":
            return _status(422, "metadata.resourceVersion: must be specified for an update")
        if given and given != present["metadata"]["resourceVersion"]:
            return _status(409, "Conflict")
        if body["metadata"]["name"] != name or body["metadata"].get("uid") not in {None, present["metadata"]["uid"]}:
            return _status(400, "BadRequest")
        if problem := _invalid(kind, body):
            return _status(422, problem)
        return self._store(kind, name, body, 200)

    def _store(self, kind: str, name: str, body: Any, status: int) -> web.Response:
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        self.objects[kind, name] = body
        self.writes.append((kind, str(self.version)))
        return web.json_response(body, status=status)


def _invalid(kind: str, body: Any) -> str:
    if kind == "pods":
        return "" if body["spec"]["containers"] else "spec.containers: Required value"
    if kind == "leases":
        spec = body["spec"]
        if spec.get("leaseDurationSeconds", 1) <= 0 or spec.get("leaseTransitions", 0) < 0:
            return "spec: Invalid value"
        for key in ("acquireTime", "renewTime"):
            if spec.get(key):
                dt.datetime.strptime(spec[key], _MICRO_TIME)  # noqa: DTZ007  # its form is what is checked
        return ""
    data = body.get("data") or {}
    if not all(_KEY.fullmatch(key) and isinstance(value, str) for key, value in data.items()):
        return "data: Invalid value"
    return "data: Too long" if sum(map(len, data.values())) > CONFIG_MAP_BYTES else ""


def _status(code: int, reason: str, message: str = "") -> web.Response:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "code": code,
        "message": message,
    }
    return web.json_response(body, status=code)


def _drop(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
