"""Challenges in files and certificates: only what RFC 8555 and RFC 8737 allow, for a limited time."""

from __future__ import annotations

import datetime as dt
import hashlib
import stat
from pathlib import Path

import msgspec
import pytest
from cryptography import x509

from sluice.core.files import write_secret
from sluice.core.home import Home
from sluice.core.xds import ROUTES, SECRET
from sluice.core.xds.messages import to_json
from sluice.gateway.acme.challenges import (
    LONGEST_CHALLENGE,
    Challenge,
    ChallengeFile,
    challenge_certificate,
)
from sluice.gateway.acme.envoy_resources import ChallengeResources
from sluice.gateway.config import AcmeConfig, GatewayConfig
from sluice.pki.x509 import ACME_IDENTIFIER

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
SECOND = dt.timedelta(seconds=1)
TOKEN = "t" * 43
NAME = "sluice.example.com"


def challenge(kind: str = "http-01", name: str = NAME, token: str = TOKEN) -> Challenge:
    values = {"name": name, "kind": kind, "token": token, "key_authorization": f"{token}.{'k' * 43}"}
    return msgspec.convert(values, Challenge)


def config(kind: str) -> GatewayConfig:
    acme = {"directory": "https://acme.test/dir", "terms_of_service_agreed": True, "challenge": kind}
    return GatewayConfig(server_names=(NAME, "SQL.example.com"), acme=msgspec.convert(acme, AcmeConfig))


@pytest.mark.parametrize(
    "token",
    [
        pytest.param("", id="empty"),
        pytest.param("short", id="short"),
        pytest.param("../" * 10 + "t" * 22, id="path"),
        pytest.param("t" * 22 + "?a=b", id="query"),
        pytest.param("t" * 22 + "%2e", id="escape"),
        pytest.param("t" * 22 + "\n", id="line"),
        pytest.param("t" * 513, id="long"),
        pytest.param("ü" * 30, id="not ASCII"),
    ],
)
def test_tokens_that_are_not_base64url_are_refused(token: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="base64url"):
        challenge(token=token)


def test_a_key_authorization_of_another_token_is_refused() -> None:
    with pytest.raises(ValueError, match="begin with its token"):
        Challenge(name=NAME, kind="http-01", token=TOKEN, key_authorization=f"{'u' * 43}.{'k' * 43}")


def test_challenges_are_published_until_they_are_withdrawn(tmp_path: Path) -> None:
    file = ChallengeFile(tmp_path / "acme" / "challenges.json")
    assert file.update(NOW) == ()
    assert file.update(NOW) is None
    file.publish((challenge(),), NOW)
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert file.update(NOW) == (challenge(),)
    assert file.update(NOW + SECOND) is None
    file.withdraw()
    assert file.update(NOW) == ()


def test_challenges_left_by_a_killed_process_expire(tmp_path: Path) -> None:
    file = ChallengeFile(tmp_path / "challenges.json")
    file.publish((challenge(),), NOW)
    assert file.update(NOW) == (challenge(),)
    assert file.update(NOW + LONGEST_CHALLENGE) == ()
    restarted = ChallengeFile(file.path)
    assert restarted.update(NOW + LONGEST_CHALLENGE + SECOND) == ()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"[]", id="no object"),
        pytest.param(b'{"until": 1e300, "challenges": []}', id="forever"),
        pytest.param(b'{"until": 9, "challenges": [{"name": "x"}]}', id="incomplete"),
        pytest.param(b"{" * 10**5, id="nested"),
        pytest.param(b"x" * 10**6, id="large"),
    ],
)
def test_a_damaged_file_has_no_challenges(tmp_path: Path, content: bytes) -> None:
    file = ChallengeFile(tmp_path / "challenges.json")
    write_secret(file.path, content)
    assert file.update(NOW) == ()


def test_a_challenge_file_readable_by_others_has_no_challenges(tmp_path: Path) -> None:
    file = ChallengeFile(tmp_path / "challenges.json")
    file.publish((challenge(),), NOW)
    file.path.chmod(0o644)
    assert file.update(NOW) == ()


def test_the_certificate_of_a_challenge_follows_rfc_8737() -> None:
    given = challenge("tls-alpn-01")
    leaf = x509.load_pem_x509_certificate(challenge_certificate(given, NOW)[0])
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [x509.DNSName(NAME)]
    (identifier,) = [each for each in leaf.extensions if each.oid == ACME_IDENTIFIER]
    assert identifier.critical
    digest = hashlib.sha256(given.key_authorization.encode()).digest()
    assert isinstance(identifier.value, x509.UnrecognizedExtension)
    assert identifier.value.value == b"\x04\x20" + digest


def test_the_certificate_without_a_challenge_validates_nothing() -> None:
    leaf = x509.load_pem_x509_certificate(challenge_certificate(None, NOW)[0])
    assert ACME_IDENTIFIER not in {each.oid for each in leaf.extensions}
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [x509.DNSName("acme-challenge.invalid")]


def test_exactly_the_configured_server_names_have_a_tls_alpn_secret(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    resources = ChallengeResources.of(home, config("tls-alpn-01"))
    assert resources is not None
    file = ChallengeFile(home.gateway / "acme" / "challenges.json")
    idle = resources.update(NOW)
    assert idle is not None
    assert set(idle[SECRET]) == {"acme", f"acme:{NAME}", "acme:sql.example.com"}
    file.publish((challenge("tls-alpn-01"), challenge("tls-alpn-01", "evil.example.com")), NOW)
    busy = resources.update(NOW)
    assert busy is not None
    assert set(busy[SECRET]) == set(idle[SECRET])
    different = {name for name in busy[SECRET] if busy[SECRET][name] != idle[SECRET][name]}
    assert different == {f"acme:{NAME}"}
    assert resources.update(NOW) is None


def test_http_01_routes_answer_only_the_challenge(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    resources = ChallengeResources.of(home, config("http-01"))
    assert resources is not None
    file = ChallengeFile(home.gateway / "acme" / "challenges.json")
    file.publish((challenge(), challenge(name="evil.example.com"), challenge("tls-alpn-01", "sql.example.com")), NOW)
    given = resources.update(NOW)
    assert given is not None
    ((_, message),) = given[ROUTES].items()
    routes = to_json(message)
    assert [each["domains"] for each in routes["virtual_hosts"]] == [[NAME, f"{NAME}:*"], ["*"]]
    answers = [route for host in routes["virtual_hosts"] for route in host["routes"]]
    assert all("direct_response" in each and "route" not in each and "redirect" not in each for each in answers)
    assert [each["direct_response"]["status"] for each in answers] == [200, 404, 404]


def test_a_gateway_without_acme_has_no_challenge_resources(tmp_path: Path) -> None:
    assert ChallengeResources.of(Home.at(tmp_path), GatewayConfig()) is None
