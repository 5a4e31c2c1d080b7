"""A mail server for tests, built on aiosmtpd.

Prints its port, and then a line of JSON for each mail that it accepts.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from pathlib import Path
from typing import Any

from aiosmtpd.smtp import SMTP, AuthResult


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class _Handler:
    """Refuses the given addresses, and answers each mail with the given response."""

    def __init__(self, refused: list[str], answer: str) -> None:
        self._refused = refused
        self._answer = answer

    async def handle_RCPT(  # noqa: N802  the name that aiosmtpd calls
        self, server: Any, session: Any, envelope: Any, address: str, options: list[str]
    ) -> str:
        if address in self._refused:
            return "550 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802  likewise
        if self._answer.startswith("2"):
            told = {"mail": envelope.content.decode(), "recipients": envelope.rcpt_tos}
            _say(json.dumps(told))
        return self._answer


async def serve(settings: dict[str, Any]) -> None:
    """Serve as ``settings`` say until the process is killed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    identity = Path(settings["identity"])
    context.load_cert_chain(identity / "chain.pem", identity / "key.pem")
    if settings["old"]:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    implicit = settings["implicit"]
    more: dict[str, Any] = {} if implicit else {"tls_context": context, "require_starttls": True}
    if settings["sign_in"]:
        right = tuple(each.encode() for each in settings["sign_in"])

        def authenticate(*told: Any) -> AuthResult:
            return AuthResult(success=(told[-1].login, told[-1].password) == right, handled=False)

        more |= {"authenticator": authenticate, "auth_required": True, "auth_require_tls": not implicit}
    handler = _Handler(settings["refused"], settings["answer"])
    server = await asyncio.get_running_loop().create_server(
        lambda: SMTP(handler, hostname="mail.test", **more), "127.0.0.1", 0, ssl=context if implicit else None
    )
    _say(str(server.sockets[0].getsockname()[1]))
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(json.loads(sys.argv[1])))
