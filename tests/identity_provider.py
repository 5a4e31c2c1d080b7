"""An OpenID provider for tests: real HTTPS, codes with PKCE, key rotation, and configurable misbehaviour."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec

from tests.outside import OutsideAuthority

CLIENT_ID = "sluice"


@dataclass
class Signer:
    """One signing key of the provider."""

    kid: str = field(default_factory=lambda: secrets.token_hex(4))
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    def jwk(self) -> dict[str, Any]:
        public = jwt.algorithms.ECAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return {**public, "kid": self.kid, "use": "sig", "alg": "ES256"}

    def sign(self, claims: dict[str, Any], **headers: Any) -> str:
        return jwt.encode(claims, self.key, algorithm="ES256", headers={"kid": self.kid, **headers})


@dataclass
class IdentityProvider:
    """The provider. Tests change its attributes to make it misbehave.

    Attributes:
        user: the user who is signed in without a page; None: a page asks for the name.
        twist: changes the claims of an ID token before it is signed.
        sign: makes the ID token from its claims.
        answers: path -> handler that replaces the real one.
    """

    issuer: str = ""
    ca_file: Path = Path()
    user: str | None = "ada"
    groups: list[str] = field(default_factory=lambda: ["staff"])
    signer: Signer = field(default_factory=Signer)
    twist: Callable[[dict[str, Any]], dict[str, Any]] = lambda claims: claims
    sign: Callable[[dict[str, Any]], str] | None = None
    answers: dict[str, Callable[[web.BaseRequest], Any]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    signed_out: list[str] = field(default_factory=list)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked.append(request.path)
        if request.path in self.answers:
            answer: web.StreamResponse = await self.answers[request.path](request)
            return answer
        handlers = {
            "/.well-known/openid-configuration": self._discovery,
            "/jwks": self._jwks,
            "/authorize": self._authorize,
            "/token": self._token,
            "/logout": self._logout,
        }
        handler = handlers.get(request.path)
        return web.Response(status=404) if handler is None else await handler(request)

    async def _discovery(self, _: web.BaseRequest) -> web.Response:
        return web.json_response(
            {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/jwks",
                "end_session_endpoint": f"{self.issuer}/logout",
                "authorization_response_iss_parameter_supported": True,
            }
        )

    async def _jwks(self, _: web.BaseRequest) -> web.Response:
        return web.json_response({"keys": [self.signer.jwk()]})

    async def _authorize(self, request: web.BaseRequest) -> web.Response:
        asked = dict(request.query)
        user = self.user or asked.pop("user", None)
        if user is None:
            fields = "".join(f'<input type="hidden" name="{escape(k)}" value="{escape(v)}">' for k, v in asked.items())
            form = f'<form>{fields}<input name="user" id="user"><button id="go">Sign in</button></form>'
            return web.Response(text=f"<!doctype html><title>Provider</title>{form}", content_type="text/html")
        code = secrets.token_urlsafe(16)
        self.codes[code] = {**asked, "user": user}
        back = urlencode({"code": code, "state": asked["state"], "iss": self.issuer})
        return web.Response(status=302, headers={"location": f"{asked['redirect_uri']}?{back}"})

    async def _token(self, request: web.BaseRequest) -> web.Response:
        form = dict(parse_qsl((await request.read()).decode()))
        begun = self.codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if (
            begun is None
            or begun["code_challenge"] != challenge
            or begun["redirect_uri"] != form.get("redirect_uri")
            or form.get("client_id") != CLIENT_ID
        ):
            return web.json_response({"error": "invalid_grant"}, status=400)
        claims = self.twist(self.claims(begun["user"], nonce=begun["nonce"]))
        return web.json_response(
            {"access_token": "unused", "token_type": "Bearer", "id_token": (self.sign or self.signer.sign)(claims)}
        )

    async def _logout(self, request: web.BaseRequest) -> web.Response:
        claims = jwt.decode(request.query["id_token_hint"], options={"verify_signature": False})
        self.signed_out.append(claims["sub"])
        return web.Response(status=302, headers={"location": request.query["post_logout_redirect_uri"]})

    def claims(self, user: str = "ada", audience: str = CLIENT_ID, **more: Any) -> dict[str, Any]:
        """Return the claims of a token that the provider issues."""
        now = int(time.time())
        base = {"iss": self.issuer, "aud": audience, "sub": user, "iat": now, "exp": now + 300, "groups": self.groups}
        return {**base, **more}


def provider_tls(directory: Path) -> Path:
    """Create an authority and a certificate for ``localhost``; returns the directory of the certificate."""
    return OutsideAuthority(directory).issue()


@contextlib.asynccontextmanager
async def identity_provider(tls: Path, host: str = "localhost") -> AsyncIterator[IdentityProvider]:
    """Run a provider at ``https://HOST:PORT``, with the certificate from :func:`provider_tls`."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tls / "chain.pem", tls / "key.pem")
    provider = IdentityProvider(ca_file=tls / "ca.pem")
    runner = web.ServerRunner(web.Server(provider.handle, access_log=None), handle_signals=False, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        provider.issuer = f"https://{host}:{runner.addresses[0][1]}"
        yield provider
    finally:
        await runner.cleanup()
