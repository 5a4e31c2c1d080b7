"""The part of the Kubernetes API server for attestation, over TLS: token reviews and one ConfigMap."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.outside import OutsideAuthority

ACCOUNT_TOKEN = "the-authority-itself"  # noqa: S105  of a server that exists for tests only
AUDIENCE = "spiffe://sluice.local/ca"


def pod_token(name: str) -> str:
    """Return a string in the form of a token; only the server knows what it stands for."""
    return f"header.{name}.signature"


@dataclass
class ReviewingApiServer:
    """A Kubernetes API server that accepts the tokens registered with :func:`vouch`."""

    root: Path
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    fate: str = "ok"
    """``ok``, ``silent``, ``huge``, ``redirect``, ``garbage``, or a status."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    config_map: dict[str, Any] | None = None
    url: str = ""
    _runner: web.AppRunner | None = None

    async def start(self, *names: str) -> None:
        """Start serving, with a certificate for ``names`` (default: the server's address)."""
        directory = OutsideAuthority(self.root / "kubernetes").issue(*names or ("127.0.0.1",))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(directory / "chain.pem", directory / "key.pem")
        application = web.Application(client_max_size=1 << 20)
        application.router.add_post("/apis/authentication.k8s.io/v1/tokenreviews", self._review)
        application.router.add_get("/api/v1/namespaces/sluice/configmaps/trust", self._get)
        application.router.add_put("/api/v1/namespaces/sluice/configmaps/trust", self._put)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=context).start()
        self.url = f"https://127.0.0.1:{self._runner.addresses[0][1]}"
        account = self.account
        account.mkdir()
        (account / "token").write_text(ACCOUNT_TOKEN)
        (account / "namespace").write_text("sluice")
        (account / "ca.crt").write_bytes((directory / "ca.pem").read_bytes())

    async def close(self) -> None:
        """Stop serving."""
        if self._runner is not None:
            await self._runner.cleanup()

    @property
    def account(self) -> Path:
        """The directory of the authority's service account, as Kubernetes mounts it."""
        return self.root / "account"

    def vouch(
        self,
        pod: str,
        number: int,
        *,
        account: str = "workers",
        audiences: tuple[str, ...] = (AUDIENCE,),
        namespace: str = "sluice",
    ) -> str:
        """Register a pod and return its token; the pod's UID ends with ``number``."""
        token = pod_token(f"{pod}-{number}")
        self.pods[token] = {
            "authenticated": True,
            "audiences": list(audiences),
            "user": {
                "username": f"system:serviceaccount:{namespace}:{account}",
                "extra": {
                    "authentication.kubernetes.io/pod-name": [pod],
                    "authentication.kubernetes.io/pod-uid": [f"00000000-0000-4000-8000-{number:012d}"],
                },
            },
        }
        return token

    async def _review(self, request: web.Request) -> web.Response:
        if request.headers.get("authorization") != f"Bearer {ACCOUNT_TOKEN}":
            return web.json_response({"kind": "Status", "code": 401}, status=401)
        body = await request.json()
        self.asked.append(body)
        if self.fate == "silent":
            await asyncio.sleep(600)
        match self.fate:
            case "huge":
                return web.Response(status=201, body=b" " * (4 << 20))
            case "redirect":
                return web.Response(status=307, headers={"location": f"{self.url}/elsewhere"})
            case "garbage":
                return web.Response(status=201, body=b"<html>")
            case "ok":
                token = body["spec"]["token"]
                status = self.pods.get(token) or {"authenticated": False, "error": f"invalid bearer token {token}"}
                return web.json_response(body | {"status": status}, status=201)
        return web.json_response({"kind": "Status", "code": int(self.fate)}, status=int(self.fate))

    async def _get(self, _: web.Request) -> web.Response:
        if self.config_map is None:
            return web.json_response({"kind": "Status", "code": 404}, status=404)
        return web.json_response(self.config_map)

    async def _put(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.config_map is None or body["metadata"] != self.config_map["metadata"]:
            return web.json_response({"kind": "Status", "code": 409}, status=409)
        version = int(body["metadata"]["resourceVersion"]) + 1
        self.config_map = body | {"metadata": body["metadata"] | {"resourceVersion": str(version)}}
        return web.json_response(self.config_map)
