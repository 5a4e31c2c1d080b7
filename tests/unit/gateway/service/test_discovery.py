"""OpenID Connect discovery: what everybody may read, and when there is nothing."""

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
    """The online authority's answers, one after the other; the last one for ever."""

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


async def test_the_document_leads_to_the_keys() -> None:
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


async def test_other_requests_are_none_of_its_business() -> None:
    discovery = Discovery(Authority(GOOD).fetch)
    for path in ("/v1/jobs", "/.well-known/security.txt", "/.well-known/openid-configuration/", "/auth/jwks.json"):
        assert discovery.answer(make_mocked_request("GET", path)) is None


async def test_it_can_only_be_read() -> None:
    discovery = Discovery(Authority(GOOD).fetch)
    await discovery.refresh()
    assert ask(discovery, KEYS, "POST").status == 405
    assert ask(discovery, f"{KEYS}?x=1").status == 200


async def test_before_the_authority_answers_nobody_is_told_anything_to_keep() -> None:
    answer = ask(Discovery(Authority(GOOD).fetch), KEYS)
    assert (answer.status, answer.headers["cache-control"]) == (503, "no-store")


async def test_without_an_issuer_there_is_nothing() -> None:
    discovery = Discovery(Authority(TokenKeysAnswer(jwks=GOOD.jwks)).fetch)
    await discovery.refresh()
    assert ask(discovery, CONFIGURATION).status == ask(discovery, KEYS).status == 404


@pytest.mark.parametrize(
    "trouble", [CaUnavailable("away"), TokenKeysAnswer(jwks='{"keys": [{"kty": "oct", "kid": "a"}]}', issuer=ISSUER)]
)
async def test_the_last_good_keys_stay(trouble: TokenKeysAnswer | Exception) -> None:
    discovery = Discovery(Authority(GOOD, trouble).fetch)
    await discovery.refresh()
    with pytest.raises((CaUnavailable, TokenRejected)):
        await discovery.refresh()
    assert ask(discovery, KEYS).status == 200
