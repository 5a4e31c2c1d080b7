"""OpenID Connect discovery of the trust domain, which publishes the keys to verify tokens of jobs with.

The documents are public. The keys come from the online authority; while it is unavailable, the last known keys are
served.

Source: OpenID Connect Discovery 1.0, sections 3 and 4; RFC 7517.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import msgspec
from aiohttp import web

from sluice.core import SluiceError
from sluice.gateway.envoy_config import DISCOVERY_PATH, DISCOVERY_PATHS, TOKEN_KEYS_PATH
from sluice.gateway.problem import CONTENT_TYPE, problem_body
from sluice.pki.ca import TokenKeysAnswer
from sluice.pki.jwt import algorithm_of, decode_jwks, oidc_jwks

_LOG = logging.getLogger(__name__)

MAX_AGE_SECONDS = 300
"""How long clients may cache a response. Together with :data:`FETCH_SECONDS` it is less than the 10 minutes for which a
new key is published before it signs."""
FETCH_SECONDS = 60.0
RETRY_SECONDS = 2.0

FetchKeys = Callable[[], Awaitable[TokenKeysAnswer]]


@dataclass(frozen=True, slots=True)
class _Published:
    source: TokenKeysAnswer
    documents: Mapping[str, bytes]


class Discovery:
    """Serves ``/.well-known/openid-configuration`` and the key set; ``fetch`` gets keys from the online authority."""

    def __init__(self, fetch: FetchKeys) -> None:
        self._fetch = fetch
        self._published: _Published | None = None

    async def keep_fresh(self) -> None:
        """Fetch the keys periodically, until cancelled."""
        complaint = ""
        while True:
            try:
                await self.refresh()
            except (SluiceError, OSError) as error:
                if str(error) != complaint:
                    _LOG.warning("cannot get the keys of tokens: %s", error)
                complaint = str(error)
                await asyncio.sleep(RETRY_SECONDS if self._published is None else FETCH_SECONDS)
            else:
                complaint = ""
                await asyncio.sleep(FETCH_SECONDS)

    async def refresh(self) -> None:
        """Fetch the keys once; raises when the authority cannot be reached, or when its keys are damaged."""
        answer = await self._fetch()
        if self._published is None or answer != self._published.source:
            self._published = _Published(answer, documents_of(answer) if answer.issuer else {})

    def answer(self, request: web.BaseRequest) -> web.Response | None:
        """The response; None when the request is not for these documents."""
        path = request.raw_path.partition("?")[0]
        if path not in DISCOVERY_PATHS:
            return None
        if request.method not in {"GET", "HEAD"}:
            return _problem(405, "These documents are read-only.", {"allow": "GET, HEAD"})
        if self._published is None:
            return _problem(503, "The keys are not available now; try again.", {"retry-after": "5"})
        document = self._published.documents.get(path)
        if document is None:
            return _problem(404, "This cluster does not issue tokens for others: pki.token_issuer is not set.", {})
        headers = {
            "cache-control": f"public, max-age={MAX_AGE_SECONDS}",
            "cross-origin-resource-policy": "cross-origin",
        }
        return web.Response(body=document, content_type="application/json", headers=headers)


def documents_of(answer: TokenKeysAnswer) -> dict[str, bytes]:
    """Path -> document. Raises :class:`~sluice.pki.jwt.svid.TokenRejected` when the keys are damaged."""
    bundle = answer.jwks.encode()
    configuration = {
        "issuer": answer.issuer,
        "jwks_uri": f"{answer.issuer}{TOKEN_KEYS_PATH}",
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": sorted({algorithm_of(key) for key in decode_jwks(bundle).values()}),
        "claims_supported": ["iss", "sub", "aud", "iat", "exp", "sluice"],
    }
    return {DISCOVERY_PATH: msgspec.json.encode(configuration), TOKEN_KEYS_PATH: oidc_jwks(bundle)}


def _problem(status: int, detail: str, headers: Mapping[str, str]) -> web.Response:
    body = problem_body(status, detail)
    return web.Response(
        status=status, body=body, content_type=CONTENT_TYPE, headers={"cache-control": "no-store", **headers}
    )
