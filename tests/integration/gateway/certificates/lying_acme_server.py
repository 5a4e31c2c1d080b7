"""An ACME server that behaves well except on the paths for which a test replaces the answer."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.outside import OutsideAuthority

NAME = "sluice.example.com"
TOKEN = "t" * 43


@dataclass
class Answer:
    """A response of the server."""

    status: int = 200
    body: Any = b""
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def data(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


@dataclass
class LyingServer:
    """A server with one answer per path.

    ``requests`` contains the requests that it received, as (method, path, payload).
    """

    url: str = ""
    ca_file: Path = Path()
    answers: dict[str, Answer | Callable[[], Answer]] = field(default_factory=dict)
    requests: list[tuple[str, str, Any]] = field(default_factory=list)

    def paths(self) -> list[str]:
        return [path for _, path, _ in self.requests]

    def well_behaved(self) -> None:
        """Set the answers of a correct server, for all steps up to an order that is never issued."""
        url = self.url
        at = {"newNonce": "nonce", "newAccount": "account", "newOrder": "order", "revokeCert": "revoke"}
        self.answers = {
            "/dir": Answer(body={key: f"{url}/{path}" for key, path in at.items()}),
            "/nonce": Answer(),
            "/account": Answer(201, {"status": "valid"}, {"Location": f"{url}/account/1"}),
            "/order": Answer(201, self.order("pending"), {"Location": f"{url}/order/1"}),
            "/order/1": Answer(body=self.order("ready")),
            "/authz/1": Answer(body=self.authorization("pending")),
            "/challenge/1": Answer(body=self.challenge("processing"), headers={"Link": f'<{url}/authz/1>;rel="up"'}),
            "/finalize/1": Answer(body=self.order("processing")),
        }

    def order(self, status: str, **more: Any) -> dict[str, Any]:
        return {
            "status": status,
            "identifiers": [{"type": "dns", "value": NAME}],
            "authorizations": [f"{self.url}/authz/1"],
            "finalize": f"{self.url}/finalize/1",
            **more,
        }

    def authorization(self, status: str, name: str = NAME, **challenge: Any) -> dict[str, Any]:
        challenges = [self.challenge("pending", **challenge)]
        return {"status": status, "identifier": {"type": "dns", "value": name}, "challenges": challenges}

    def challenge(self, status: str, **more: Any) -> dict[str, Any]:
        return {"type": "tls-alpn-01", "url": f"{self.url}/challenge/1", "token": TOKEN, "status": status, **more}


def problem(code: str, detail: str = "no", status: int = 400, **headers: str) -> Answer:
    """Return an ACME error response."""
    body = {"type": f"urn:ietf:params:acme:error:{code}", "detail": detail}
    return Answer(status, body, {"Content-Type": "application/problem+json", **headers})


@contextlib.contextmanager
def lying(directory: Path) -> Iterator[LyingServer]:
    """Run a lying server within the block."""
    certificate = OutsideAuthority(directory / "https").issue("localhost", "127.0.0.1")
    told = LyingServer(ca_file=certificate / "ca.pem")
    numbers = iter(range(10**6))

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # heads and bodies are written apart: no body waits for an acknowledgement

        def _handle(self) -> None:
            payload: Any = None
            if length := int(self.headers.get("Content-Length") or 0):
                signed = json.loads(self.rfile.read(length))
                text = base64.urlsafe_b64decode(signed["payload"] + "==")
                payload = json.loads(text) if text else ""
            told.requests.append((self.command, self.path, payload))
            found = told.answers.get(self.path, Answer(404))
            answer = found if isinstance(found, Answer) else found()
            nonce = base64.urlsafe_b64encode(next(numbers).to_bytes(16, "big")).rstrip(b"=").decode()
            self.send_response(answer.status)
            headers = {
                "Content-Type": "application/json",
                "Replay-Nonce": nonce,
                "Content-Length": str(len(answer.data)),
            }
            for name, value in (headers | answer.headers).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                with contextlib.suppress(OSError):
                    self.wfile.write(answer.data)

        do_GET = do_POST = do_HEAD = _handle  # noqa: N815  the names that http.server looks for

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  likewise
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "chain.pem", certificate / "key.pem")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    told.url = f"https://127.0.0.1:{server.server_address[1]}"
    told.well_behaved()
    try:
        yield told
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
