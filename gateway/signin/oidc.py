"""The OpenID provider: discovery, redirects of browsers to it, and the exchange of their code for tokens.

Sources: OpenID Connect Core 1.0, Discovery 1.0, RP-Initiated Logout 1.0; RFC 7636 (PKCE), RFC 9207 (``iss``).
"""

from __future__ import annotations

import base64
import hmac
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlencode

import msgspec

from sluice.core import InvalidJwt, read_secret
from sluice.gateway.config import IssuerConfig, OidcConfig, check_url
from sluice.gateway.errors import IssuerError, LoginError
from sluice.gateway.jwt import Fetcher, KeyCache, KeyNotKnown, verify_with_cache
from sluice.gateway.principal import Subject
from sluice.gateway.signin.attempts import Attempt

DISCOVERY = "/.well-known/openid-configuration"
REFRESH_SECONDS = 3600.0
MAX_SECRET_BYTES = 1024


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a discovery document."""

    issuer: str
    jwks_uri: str
    authorization_endpoint: str = ""
    token_endpoint: str = ""
    end_session_endpoint: str = ""
    authorization_response_iss_parameter_supported: bool = False

    def __post_init__(self) -> None:
        check_url("jwks_uri", self.jwks_uri)
        if self.token_endpoint:
            check_url("token_endpoint", self.token_endpoint)
        for key in ("authorization_endpoint", "end_session_endpoint"):
            if url := getattr(self, key):
                check_url(key, url.partition("?")[0])


class Directory:
    """An issuer's discovery document, fetched on demand and again after an hour."""

    def __init__(self, issuer: str, fetcher: Fetcher, clock: Callable[[], float] = time.monotonic) -> None:
        self._issuer = issuer
        self._fetcher = fetcher
        self._clock = clock
        self._found: Metadata | None = None
        self._found_at = 0.0

    async def get(self) -> Metadata:
        """The document; raises :class:`IssuerError`."""
        if self._found is None or self._clock() - self._found_at > REFRESH_SECONDS:
            try:
                self._found = await self._discover()
                self._found_at = self._clock()
            except IssuerError:
                # An old document is better than none, because it rarely changes.
                if self._found is None:
                    raise
        return self._found

    async def _discover(self) -> Metadata:
        url = self._issuer.rstrip("/") + DISCOVERY
        try:
            metadata = msgspec.convert(await self._fetcher.get(url), Metadata)
        except msgspec.ValidationError as error:
            raise IssuerError(f"{url} is not a usable discovery document: {error}") from error
        # Discovery 1.0 section 4.3: the document must name exactly the issuer that was requested.
        if metadata.issuer != self._issuer:
            raise IssuerError(f"{url} names the issuer {metadata.issuer[:200]!r}", "configure exactly this issuer")
        return metadata


def key_cache(config: IssuerConfig, fetcher: Fetcher, directory: Directory) -> KeyCache:
    """The keys of an issuer, from the URL in the configuration or in its discovery document."""

    async def fetch() -> object:
        return await fetcher.get(config.jwks_url or (await directory.get()).jwks_uri)

    return KeyCache(fetch)


@dataclass(frozen=True, slots=True)
class Redeemed:
    """The provider's response to a code."""

    subject: Subject
    id_token: str


class Provider:
    """The provider that people sign in with."""

    def __init__(self, config: OidcConfig, origin: str) -> None:
        """``origin`` is the gateway's URL for browsers. Raises when the provider's CA file cannot be used."""
        self.config = config
        self.redirect_uri = f"{origin}/auth/callback"
        self.signed_out_uri = f"{origin}/auth/signed-out"
        self._fetcher = Fetcher(config.ca_file)
        self.directory = Directory(config.issuer, self._fetcher)
        self.keys = key_cache(config.as_issuer(), self._fetcher, self.directory)

    async def authorization_url(self, attempt: Attempt) -> str:
        """The URL to redirect the browser to."""
        metadata = await self.directory.get()
        if not metadata.authorization_endpoint or not metadata.token_endpoint:
            raise IssuerError(f"{self.config.issuer} has no authorization and token endpoints")
        return _with_query(
            metadata.authorization_endpoint,
            response_type="code",
            client_id=self.config.client_id,
            redirect_uri=self.redirect_uri,
            scope=" ".join(self.config.scopes),
            state=attempt.state,
            nonce=attempt.nonce,
            code_challenge=attempt.challenge,
            code_challenge_method="S256",
        )

    async def redeem(self, query: Mapping[str, str], attempt: Attempt, *, now: float) -> Redeemed:
        """Exchange the code in ``query`` for a subject; raises :class:`LoginError` or :class:`IssuerError`."""
        metadata = await self.directory.get()
        # 1. The response must come from this provider (RFC 9207, mix-up attacks) and must not be an error.
        if query.get("iss", self.config.issuer) != self.config.issuer or (
            metadata.authorization_response_iss_parameter_supported and "iss" not in query
        ):
            raise LoginError("the answer came from another provider")
        if "error" in query or not query.get("code"):
            raise LoginError(f"the provider refused: {query.get('error', 'no code')[:80]!r}")
        # 2. Redeem the code, with the proof that we began this sign-in (PKCE).
        form = {
            "grant_type": "authorization_code",
            "code": query["code"],
            "redirect_uri": self.redirect_uri,
            "code_verifier": attempt.verifier,
        }
        secret = self._secret()
        if secret is None:
            form["client_id"] = self.config.client_id
        answer = await self._fetcher.post(metadata.token_endpoint, form, secret)
        id_token = answer.get("id_token") if isinstance(answer, dict) else None
        if not isinstance(id_token, str):
            raise LoginError("the provider gave no ID token")
        # 3. Check the ID token: signature, issuer, audience, times, and that it was issued for this sign-in (nonce).
        try:
            subject, claims = await verify_with_cache(id_token, self.config.as_issuer(), self.keys, lambda: now)
        except (InvalidJwt, KeyNotKnown) as error:
            raise LoginError(f"the ID token is not accepted: {error or 'unknown key'}") from error
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), attempt.nonce.encode()):
            raise LoginError("the ID token is of another sign-in")
        audience = claims.get("aud")
        if isinstance(audience, list) and len(audience) > 1 and claims.get("azp") != self.config.client_id:
            raise LoginError("the ID token was issued to another client")
        return Redeemed(Subject(subject.name, "session", subject.groups, issuer=self.config.issuer), id_token)

    async def logout_url(self, id_token: str | None) -> str | None:
        """The URL at which the provider ends its own session; None when the provider does not support it."""
        try:
            metadata = await self.directory.get()
        except IssuerError:
            return None
        if not metadata.end_session_endpoint:
            return None
        hint = {"id_token_hint": id_token} if id_token else {}
        return _with_query(
            metadata.end_session_endpoint,
            client_id=self.config.client_id,
            post_logout_redirect_uri=self.signed_out_uri,
            **hint,
        )

    def _secret(self) -> str | None:
        """The client's ``Authorization`` (RFC 6749 section 2.3.1). The file is read each time, so it can be changed."""
        if not self.config.client_secret_file:
            return None
        secret = read_secret(Path(self.config.client_secret_file), MAX_SECRET_BYTES).decode().strip()
        pair = f"{quote(self.config.client_id, safe='')}:{quote(secret, safe='')}"
        return f"Basic {base64.b64encode(pair.encode()).decode()}"


def _with_query(url: str, **parameters: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{urlencode(parameters)}"
