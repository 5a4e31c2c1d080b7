"""OpenID Connect discovery: its public documents, and the answers when there are none."""

from __future__ import annotations

import datetime as dt
import json

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from sluice.gateway.service.discovery import Discovery
from sluice.pki.ca.protocol import TokenKeysAnswer
from sluice.pki.errors import CaUnavailable
from sluice.pki.jwt.svid import JwtKey, TokenRejected, advanced, jwks

NOW = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
RING = advanced((JwtKey.generate(NOW),), NOW, "RS256")
ISSUER = "https://sluice.example.com"
CONFIGURATION = "/.well-known/openid-configuration"
KEYS = "/.well-known/jwks.json"


class Authority:
    """A fake online authority that gives its answers in turn and repeats the last one for ever."""

    def __init__(self, *answers: TokenKeysAnswer | Exception) -> None:
        self.answers = list(answers)

    async def fetch(self) -> TokenKeysAnswer:
        """The next answer."""
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


GOOD = TokenKeysAnswer(jwks=jwks(RING).decode(), issuer=ISSUER)


def ask(discovery: Discovery, path: str, method: str = "GET") -> web.Response:
    answer = discovery.answer(make_mocked_request(method, path))
    assert answer is not None
    return answer


def document(answer: web.Response) -> dict[str, object]:
    assert isinstance(answer.body, bytes)
    found: dict[str, object] = json.loads(answer.body)
    return found


async def test_the_discovery_document_links_to_the_keys() -> None:
    discovery = Discovery(Authority(GOOD).fetch)
    await discovery.refresh()
    found = ask(discovery, CONFIGURATION)
    assert (found.status, found.headers["cache-control"]) == (200, "public, max-age=300")
    assert document(found)["issuer"] == ISSUER
    assert document(found)["jwks_uri"] == ISSUER + KEYS
    assert document(found)["id_token_signing_alg_values_supported"] == ["ES256", "RS256"]
    keys = document(ask(discovery, KEYS))["keys"]
    assert isinstance(keys, list)
    assert [(each["kid"], each["use"]) for each in keys] == [(key.key_id, "sig") for key in RING]
    assert "d" not in keys[0]


async def test_requests_for_other_paths_are_not_answered_by_discovery() -> None:
    discovery = Discovery(Authority(GOOD).fetch)
    for path in ("/v1/jobs", "/.well-known/security.txt", "/.well-known/openid-configuration/", "/auth/jwks.json"):
        assert discovery.answer(make_mocked_request("GET", path)) is None


async def test_discovery_documents_can_only_be_read() -> None:
    discovery = Discovery(Authority(GOOD).fetch)
    await discovery.refresh()
    assert ask(discovery, KEYS, "POST").status == 405
    assert ask(discovery, f"{KEYS}?x=1").status == 200


async def test_discovery_answers_503_without_caching_before_the_keys_are_known() -> None:
    answer = ask(Discovery(Authority(GOOD).fetch), KEYS)
    assert (answer.status, answer.headers["cache-control"]) == (503, "no-store")


async def test_discovery_is_not_found_without_a_configured_issuer() -> None:
    discovery = Discovery(Authority(TokenKeysAnswer(jwks=GOOD.jwks)).fetch)
    await discovery.refresh()
    assert ask(discovery, CONFIGURATION).status == ask(discovery, KEYS).status == 404


@pytest.mark.parametrize(
    "trouble", [CaUnavailable("away"), TokenKeysAnswer(jwks='{"keys": [{"kty": "oct", "kid": "a"}]}', issuer=ISSUER)]
)
async def test_the_last_good_keys_are_served_after_a_failed_refresh(trouble: TokenKeysAnswer | Exception) -> None:
    discovery = Discovery(Authority(GOOD, trouble).fetch)
    await discovery.refresh()
    with pytest.raises((CaUnavailable, TokenRejected)):
        await discovery.refresh()
    assert ask(discovery, KEYS).status == 200
