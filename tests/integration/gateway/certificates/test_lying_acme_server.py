"""An ACME server that answers garbage, redirects elsewhere or demands too much.

Each case gives exactly one error, in bounded time.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from acme import client

from sluice.core import utc_now
from sluice.core.files import write_secret
from sluice.core.home import Home
from sluice.gateway.acme import order, transport
from sluice.gateway.acme.challenges import Challenge
from sluice.gateway.acme.order import Ordering
from sluice.gateway.acme.store import AcmeStore
from sluice.gateway.acme.worker import renew
from sluice.gateway.config import AcmeConfig
from sluice.gateway.errors import AcmeError
from tests.integration.gateway.certificates.lying_acme_server import NAME, TOKEN, Answer, LyingServer, lying, problem
from tests.public_authority import DAY, PublicAuthority

RUBBISH = [
    pytest.param(Answer(body=b"<html>It works!</html>"), id="HTML"),
    pytest.param(Answer(body=b""), id="nothing"),
    pytest.param(Answer(body=[]), id="list"),
    pytest.param(Answer(body="text"), id="string"),
    pytest.param(Answer(body=None), id="null"),
    pytest.param(Answer(body={}), id="empty object"),
    pytest.param(Answer(body=b"[" * 100_000), id="nested"),
    pytest.param(Answer(body=b"\xff\xfe\x00"), id="bytes"),
    pytest.param(Answer(500, b"oops"), id="500"),
    pytest.param(Answer(503, {"type": 7, "detail": ["x"]}), id="problem of other types"),
    pytest.param(Answer(200, {"newNonce": 5, "status": 5, "authorizations": 5, "identifier": 5}), id="numbers"),
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LyingServer]:
    with lying(tmp_path) as found:
        yield found


@pytest.fixture
def store(tmp_path: Path) -> AcmeStore:
    return AcmeStore(Home.at(tmp_path / "home"))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "VALIDATION_SECONDS", 0.5)
    monkeypatch.setattr(order, "ISSUANCE_SECONDS", 0.5)
    # The library pauses for a second between two polls.
    monkeypatch.setattr(client, "time", SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, 0.02))))


def config(server: LyingServer, **settings: Any) -> AcmeConfig:
    values = {"directory": f"{server.url}/dir", "terms_of_service_agreed": True, "ca_file": str(server.ca_file)}
    return msgspec.convert({**values, **settings}, AcmeConfig)


def ordering(server: LyingServer, store: AcmeStore, **settings: Any) -> Ordering:
    return Ordering(config(server, **settings), (NAME,), store, lambda _: True, utc_now)


@pytest.mark.parametrize("answer", RUBBISH)
@pytest.mark.parametrize("path", ["/dir", "/account", "/order", "/authz/1", "/order/1"])
def test_a_garbage_answer_is_reported_as_one_short_error(
    server: LyingServer, store: AcmeStore, path: str, answer: Answer
) -> None:
    server.answers[path] = answer
    with pytest.raises(AcmeError) as caught:
        ordering(server, store).obtain()
    assert len(str(caught.value)) < 1000
    assert "\n" not in str(caught.value)
    assert not store.challenges.path.exists()


@pytest.mark.parametrize(
    "document",
    [
        pytest.param({"newNonce": "http://127.0.0.1:1/nonce"}, id="no TLS"),
        pytest.param({"newNonce": "https://169.254.169.254/latest"}, id="another host"),
        pytest.param({"newNonce": "https://127.0.0.1:1/nonce"}, id="another port"),
        pytest.param({"newNonce": "file:///etc/passwd"}, id="a file"),
        pytest.param({"newNonce": "https://127.0.0.1:99999/"}, id="no port"),
        pytest.param({"newNonce": "//evil.example.com/"}, id="no scheme"),
    ],
)
def test_a_directory_with_a_url_of_another_origin_is_not_followed(
    server: LyingServer, store: AcmeStore, document: dict[str, str]
) -> None:
    server.answers["/dir"] = Answer(body={"newAccount": f"{server.url}/account", **document})
    with pytest.raises(AcmeError, match="the ACME server"):
        ordering(server, store).obtain()
    assert server.paths() == ["/dir"]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("path", ["/dir", "/account"])
def test_redirects_are_not_followed(server: LyingServer, store: AcmeStore, path: str, status: int) -> None:
    server.answers[path] = Answer(status, b"", {"Location": f"{server.url}/elsewhere"})
    with pytest.raises(AcmeError, match="redirects"):
        ordering(server, store).obtain()
    assert "/elsewhere" not in server.paths()


def test_an_oversized_answer_is_refused(server: LyingServer, store: AcmeStore) -> None:
    server.answers["/dir"] = Answer(body=b" " * (transport.MAX_ANSWER_BYTES + 1))
    with pytest.raises(AcmeError, match="more than 262144 bytes"):
        ordering(server, store).obtain()


def test_compressed_answer_is_refused(server: LyingServer, store: AcmeStore) -> None:
    server.answers["/dir"] = Answer(body=b"\x1f\x8b", headers={"Content-Encoding": "gzip"})
    with pytest.raises(AcmeError, match="compressed"):
        ordering(server, store).obtain()


def test_an_order_that_needs_too_many_requests_is_abandoned(
    server: LyingServer, store: AcmeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "MAX_REQUESTS", 20)
    many = [f"{server.url}/authz/1"] * 1000
    server.answers["/order"] = Answer(
        201, server.order("pending", authorizations=many), {"Location": f"{server.url}/order/1"}
    )
    with pytest.raises(AcmeError, match="more than 20 requests"):
        ordering(server, store).obtain()


def test_an_order_whose_validation_never_finishes_is_abandoned(server: LyingServer, store: AcmeStore) -> None:
    with pytest.raises(AcmeError, match="did not finish in time"):
        ordering(server, store).obtain()
    assert not store.challenges.path.exists()


def test_an_order_is_abandoned_after_too_many_bad_nonce_errors(server: LyingServer, store: AcmeStore) -> None:
    server.answers["/account"] = problem("badNonce")
    with pytest.raises(AcmeError, match="badNonce"):
        ordering(server, store).obtain()
    assert server.paths().count("/account") <= 2 * (order.MAX_NONCE_RETRIES + 1)


@pytest.mark.parametrize("name", ["evil.example.com", "*.example.com", "127.0.0.1", ""])
def test_a_challenge_for_a_name_that_was_not_ordered_is_not_answered(
    server: LyingServer, store: AcmeStore, name: str
) -> None:
    server.answers["/authz/1"] = Answer(body=server.authorization("pending", name))
    with pytest.raises(AcmeError, match=r"not ordered|no ACME"):
        ordering(server, store).obtain()
    assert "/challenge/1" not in server.paths()


@pytest.mark.parametrize("token", ["../../v1/jobs", "short", "a" * 5000, TOKEN + "\r\nX: y", 7, None])
def test_a_malformed_challenge_token_is_not_published(server: LyingServer, store: AcmeStore, token: object) -> None:
    server.answers["/authz/1"] = Answer(body=server.authorization("pending", token=token))
    with pytest.raises(AcmeError):
        ordering(server, store).obtain()
    assert "/challenge/1" not in server.paths()
    assert not store.challenges.path.exists()


def test_a_server_that_does_not_offer_the_challenge_is_reported(server: LyingServer, store: AcmeStore) -> None:
    server.answers["/authz/1"] = Answer(body=server.authorization("pending", type="dns-01"))
    with pytest.raises(AcmeError, match=r"offers no tls-alpn-01 for sluice\.example\.com, only dns-01"):
        ordering(server, store).obtain()


def test_a_failed_validation_is_reported_with_its_reason_and_its_order_is_dropped(
    server: LyingServer, store: AcmeStore
) -> None:
    polls = iter([server.authorization("pending")])
    refused = {"type": "urn:ietf:params:acme:error:dns", "detail": "no such name\nFAKE LOG LINE\x1b[2J"}
    invalid = server.authorization("invalid", error=refused)
    server.answers["/authz/1"] = lambda: Answer(body=next(polls, invalid))
    with pytest.raises(AcmeError, match=r"could not validate sluice\.example\.com") as caught:
        ordering(server, store).obtain()
    assert "dns: no such name FAKE LOG LINE" in str(caught.value)
    assert str(caught.value).isprintable()
    assert store.pending_order(f"{server.url}/dir", (NAME,), "ecdsa-p256") is None


def test_a_rate_limit_is_observed_for_as_long_as_the_server_demands(
    server: LyingServer, store: AcmeStore, tmp_path: Path
) -> None:
    server.answers["/order"] = problem("rateLimited", "too many", 429, **{"Retry-After": "86400"})
    before = dt.datetime.now(dt.UTC).timestamp()
    with pytest.raises(AcmeError, match="rateLimited: too many"):
        renew(Home.at(tmp_path / "home"), config(server), (NAME,))
    state = store.state()
    assert state.failures == 1
    assert "rateLimited" in state.last_error
    assert state.next_attempt >= before + 86400


def test_unknown_account_is_registered_again_with_the_same_key(server: LyingServer, store: AcmeStore) -> None:
    with pytest.raises(AcmeError):
        ordering(server, store).obtain()
    store.drop_order()
    answers = iter([problem("accountDoesNotExist")])
    good = server.answers["/order"]
    assert isinstance(good, Answer)
    server.answers["/order"] = lambda: next(answers, good)
    with pytest.raises(AcmeError, match="in time"):
        ordering(server, store).obtain()
    assert server.paths().count("/account") == 2


def test_the_external_account_binding_key_is_never_shown(
    server: LyingServer, store: AcmeStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    hidden = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldCE"
    key_file = tmp_path / "eab"
    write_secret(key_file, hidden.encode() + b"\n")
    server.answers["/account"] = problem("unauthorized", "no such key", 403)
    with pytest.raises(AcmeError) as caught:
        ordering(server, store, eab_key_id="kid-1", eab_key_file=str(key_file)).obtain()
    (binding,) = [payload["externalAccountBinding"] for _, path, payload in server.requests if path == "/account"]
    assert set(binding) == {"protected", "payload", "signature"}
    for shown in (str(caught.value), caplog.text, json.dumps(server.requests)):
        assert hidden not in shown


@pytest.mark.parametrize(
    ("content", "mode_and_told"),
    [
        pytest.param(b"c2VjcmV0", (0o644, "others can read"), id="readable"),
        pytest.param(b"", (0o600, "holds no key"), id="empty"),
        pytest.param(b"\xff\xff", (0o600, "holds no key"), id="bytes"),
        pytest.param(b"x" * 10_000, (0o600, "larger than"), id="large"),
    ],
)
def test_an_unusable_external_account_binding_key_is_reported(
    server: LyingServer, store: AcmeStore, tmp_path: Path, content: bytes, mode_and_told: tuple[int, str]
) -> None:
    mode, told = mode_and_told
    key_file = tmp_path / "eab"
    key_file.write_bytes(content)
    key_file.chmod(mode)
    with pytest.raises(Exception, match=told):
        ordering(server, store, eab_key_id="kid-1", eab_key_file=str(key_file)).obtain()
    assert "/account" not in server.paths()


def test_a_server_that_demands_an_external_account_binding_is_reported(server: LyingServer, store: AcmeStore) -> None:
    document = server.answers["/dir"]
    assert isinstance(document, Answer)
    document.body["meta"] = {"externalAccountRequired": True}
    with pytest.raises(AcmeError, match="demands an external account binding"):
        ordering(server, store).obtain()


@pytest.mark.parametrize(
    "made",
    [
        pytest.param("another name", id="another name"),
        pytest.param("another key", id="another key"),
        pytest.param("rubbish", id="rubbish"),
        pytest.param("nothing", id="nothing"),
    ],
)
def test_certificate_that_fails_the_checks_is_not_used(
    server: LyingServer, store: AcmeStore, tmp_path: Path, made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.gateway.acme.worker._serving", lambda *_: serves)
    monkeypatch.setattr(order, "ISSUANCE_SECONDS", 60)  # the server answers at once

    def serves(_: Challenge) -> bool:
        return True

    authority = PublicAuthority(dt.datetime.now(dt.UTC) - DAY)
    good = authority.issue(NAME)
    with store.ordering():
        store.activate(store.stage(good.chain_pem, good.key))
    pem = {"rubbish": b"-----BEGIN CERTIFICATE-----", "nothing": b""}.get(made)
    if pem is None:
        pem = authority.issue("other.example.com" if made == "another name" else NAME).chain_pem
    server.answers["/authz/1"] = Answer(body=server.authorization("valid"))
    server.answers["/order"] = Answer(201, server.order("ready"), {"Location": f"{server.url}/order/1"})
    server.answers["/order/1"] = Answer(body=server.order("valid", certificate=f"{server.url}/certificate"))
    server.answers["/certificate"] = Answer(body=pem, headers={"Content-Type": "application/pem-certificate-chain"})
    with pytest.raises(Exception, match=r"certificate|key of|is not for"):
        renew(Home.at(tmp_path / "home"), config(server), (NAME,))
    assert (store.live / "fullchain.pem").read_bytes() == good.chain_pem
    assert store.state().failures == 1
    assert [each.name for each in (store.directory / "certificates").iterdir()] == ["000001"]
    assert store.pending_order(f"{server.url}/dir", (NAME,), "ecdsa-p256") is None


def test_a_server_with_a_certificate_of_an_untrusted_authority_is_sent_no_request(
    server: LyingServer, store: AcmeStore, tmp_path: Path
) -> None:
    other = PublicAuthority(dt.datetime.now(dt.UTC) - DAY)
    ca_file = tmp_path / "other.pem"
    ca_file.write_bytes(other.issue("x").chain_pem)
    with pytest.raises(AcmeError, match=r"gave no answer: .*CERTIFICATE_VERIFY_FAILED"):
        ordering(server, store, ca_file=str(ca_file)).obtain()
    with pytest.raises(AcmeError, match=r"gave no answer: .*CERTIFICATE_VERIFY_FAILED"):
        ordering(server, store, ca_file="").obtain()
    assert not server.requests


def test_environment_variables_add_no_authorities_and_no_proxy(
    server: LyingServer, store: AcmeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.setenv(name, str(server.ca_file))
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with pytest.raises(AcmeError, match="CERTIFICATE_VERIFY_FAILED"):
        ordering(server, store, ca_file="").obtain()
