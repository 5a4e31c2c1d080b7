"""Short-lived access tokens: what Envoy decides alone, what it asks about, and how fast it forgets whom it let in."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from sluice.core.files import write_secret
from sluice.gateway.authz.operations import GATEWAY_OPERATIONS
from sluice.gateway.authz.policy_file import PolicyFile, policy_file
from sluice.gateway.credentials.access_tokens import issue, role_access_token_prefix
from sluice.gateway.credentials.authenticated import Authenticated
from sluice.gateway.credentials.revocations import RevocationKey, Revocations
from sluice.gateway.credentials.signing_keys import AccessTokenKeys
from sluice.pki.assertions.principal import Credential, Jti, Principal, SessionId, TokenId
from sluice.pki.assertions.tokens import REST_AUDIENCE
from tests.assertions import asserted_by
from tests.integration.gateway.conftest import ROUTES, Gateway, eventually


def known() -> frozenset[str]:
    return frozenset(route["operation"] for route in ROUTES) | frozenset(GATEWAY_OPERATIONS)


def access_token_of(
    gateway: Gateway, role: str, name: str = "ada", credential: str = "cred-1"
) -> tuple[str, Authenticated]:
    """An access token as the auth service issues it."""
    keys = AccessTokenKeys.of(gateway.home)
    keys.load()
    policy = PolicyFile(lambda: policy_file(gateway.home), known).get()
    return issue(Principal(name, (role,), "token", Credential("token", credential)), keys, policy, now=time.time())


@pytest.fixture
def without_auth(gateway: Gateway) -> Iterator[Gateway]:
    """The same gateway while its auth service is away."""
    gateway.stop_auth()
    yield gateway
    gateway.start_auth()


def test_access_token_needs_no_auth_service_to_read(without_auth: Gateway) -> None:
    text, _ = access_token_of(without_auth, "viewer")
    reply = without_auth.send("GET", "/v1/jobs", token=text)
    assert reply.status == 200
    (seen,) = without_auth.reached()
    assert seen.values("x-sluice-principal") == ["ada"]
    assert seen.values("x-sluice-assertion") == [f"Bearer {text}"]
    assert seen.values("authorization") == []
    assert without_auth.send("POST", "/v1/jobs", token=text, body=b"{}").status == 503
    assert without_auth.send("GET", "/v1/overview").status == 503
    assert [seen.target for seen in without_auth.reached()] == []


def test_cookie_is_an_access_token_too_and_ends_here(gateway: Gateway) -> None:
    text, _ = access_token_of(gateway, "viewer")
    reply = gateway.send("GET", "/v1/jobs", ("Cookie", f"theme=dark; __Host-sluice-pass={text}"))
    assert reply.status == 200
    (seen,) = gateway.reached()
    assert seen.values("cookie") == []
    assert seen.values("x-sluice-assertion") == [text]


def test_person_whose_session_was_revoked_is_led_to_the_sign_in_page(gateway: Gateway) -> None:
    """Whoever is no browser gets the problem."""
    text, _ = access_token_of(gateway, "viewer", "rosa", "session-of-rosa")
    cookie = ("Cookie", f"__Host-sluice-pass={text}")
    looks = (("Sec-Fetch-Mode", "navigate"), ("Accept", "text/html,application/xhtml+xml"))
    assert gateway.send("GET", "/v1/jobs", cookie, *looks).status == 200
    Revocations.of(gateway.home).revoke(("session", SessionId("session-of-rosa")))
    eventually(lambda: gateway.send("GET", "/v1/jobs", cookie, *looks).status != 200, "the session goes on")
    gateway.reached()
    reply = gateway.send("GET", "/v1/jobs?state=RUNNING", cookie, *looks)
    assert (reply.status, reply.headers["location"]) == (302, "/auth/denied?return_to=/v1/jobs")
    told = gateway.send("GET", str(reply.headers["location"]), cookie, *looks)
    assert (told.status, told.headers["location"]) == (303, "/auth/login?return_to=%2Fv1%2Fjobs")
    assert "__Host-sluice-pass=;" in str(told.headers["set-cookie"]).replace('""', "")
    assert gateway.send("GET", "/v1/jobs", cookie).status == 403
    assert gateway.send("GET", "/v1/jobs", ("Cookie", cookie[1]), looks[0]).status == 403
    assert gateway.send("GET", "/v1/jobs", *looks, token=text).status == 403
    assert gateway.send("POST", "/v1/jobs", cookie, *looks, body=b"{}").status == 403
    assert gateway.reached() == []


def test_role_that_does_not_grant_is_refused_and_told_why_where_somebody_was_asked(gateway: Gateway) -> None:
    """About what changes something the auth service is; who may not read is refused without a word."""
    text, _ = access_token_of(gateway, "viewer")
    told = gateway.send("POST", "/v1/jobs", token=text, body=b"{}")
    assert (told.status, told.problem["detail"]) == (403, "ada (viewer) may not jobs.submit.")
    path = gateway.home.gateway / "policy.toml"
    write_secret(path, b'version = 1\n[roles.reader]\nallow = ["overview.read"]\n')
    try:
        reader, _ = access_token_of(gateway, "reader")
        refused = {"type": "about:blank", "title": "Forbidden", "status": 403, "detail": "The request was refused."}
        # Until Envoy has the policy, too, the auth service is asked, and says why.
        eventually(lambda: gateway.send("GET", "/v1/jobs", token=reader).problem == refused, "Envoy decides alone")
    finally:
        path.unlink()
    assert gateway.reached() == []
    eventually(lambda: gateway.send("GET", "/v1/jobs", token=text).status == 200, "the policy before is back")


def test_what_changes_something_reaches_rest_with_an_assertion_of_its_own(gateway: Gateway) -> None:
    """Although an access token would be valid for many requests."""
    text, _ = access_token_of(gateway, "submitter")
    gateway.reached()
    assert gateway.send("POST", "/v1/jobs?x=%2F", token=text, body=b"{}").status == 200
    (seen,) = gateway.reached()
    (assertion,) = seen.values("x-sluice-assertion")
    told = asserted_by(gateway.home, assertion, method="POST", target="/v1/jobs?x=%2F", audience=REST_AUDIENCE)
    assert (told.name, told.bound, set(told.may_any)) == ("ada", True, {"jobs.submit"})


@pytest.mark.parametrize("kind", ["pass", "token", "user"])
def test_revocation_counts_on_an_open_connection(gateway: Gateway, kind: str) -> None:
    text, made = access_token_of(gateway, "viewer", f"eve-{kind}", f"cred-{kind}")
    keys: dict[str, RevocationKey] = {
        "pass": ("pass", made.access_token_id or Jti("")),
        "token": ("token", TokenId(f"cred-{kind}")),
        "user": ("user", f"eve-{kind}"),
    }
    request = f"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {text}\r\n\r\n".encode()
    with gateway.connect() as connection:
        connection.sendall(request)
        assert gateway.read(connection).status == 200
        Revocations.of(gateway.home).revoke(keys[kind])

        def refused() -> bool:
            connection.sendall(request)
            return gateway.read(connection).status == 403

        eventually(refused, "the revoked access token goes on working")
    other, _ = access_token_of(gateway, "viewer", "someone-else", "another")
    assert gateway.send("GET", "/v1/jobs", token=other).status == 200


def test_policy_changes_without_a_restart_and_a_bad_one_changes_nothing(gateway: Gateway) -> None:
    path = gateway.home.gateway / "policy.toml"
    text, _ = access_token_of(gateway, "viewer")

    def status() -> int:
        return gateway.send("GET", "/v1/jobs", token=text).status

    def reported() -> str:
        document = json.loads((gateway.home.run / "xds-auth.json").read_bytes())
        return str(document.get("refused", {}).get("policy", ""))

    assert status() == 200
    try:
        write_secret(path, b'version = 1\n[roles.viewer]\ndescription = "x"\nallow = ["jobs.nonsense"]\n')
        eventually(lambda: "nonsense" in reported(), "the bad policy is not reported")
        assert status() == 200
        write_secret(path, b'version = 1\n[roles.viewer]\ndescription = "x"\nallow = ["overview.read"]\n')
        eventually(lambda: status() == 403, "the new policy does not arrive")
        assert reported() == ""
    finally:
        path.unlink()
    eventually(lambda: status() == 200, "the policy before does not come back")


def test_where_owners_matter_the_access_token_tells_rest_and_one_of_another_policy_is_asked_about(
    gateway: Gateway,
) -> None:
    """What an access token says about owners is valid only under the policy with which it was issued."""
    path, target = gateway.home.gateway / "policy.toml", f"/v1/jobs/{'a' * 32}"
    write_secret(
        path,
        b'version = 1\n[roles.tenant]\nallow_own = ["jobs.read"]\n[roles.viewer]\nallow = ["*.read", "jobs.list"]\n',
    )
    try:
        tenant, viewer = (access_token_of(gateway, role, name=f"{role}-{role}")[0] for role in ("tenant", "viewer"))
        eventually(lambda: gateway.send("GET", target, token=tenant).status == 200, "the policy does not arrive")

        def told(text: str) -> tuple[bool, bool]:
            """Whether it is about this request alone, and whether about the jobs of others."""
            gateway.reached()
            assert gateway.send("GET", target, token=text).status == 200
            (seen,) = gateway.reached()
            (assertion,) = seen.values("x-sluice-assertion")
            found = asserted_by(gateway.home, assertion, target=target, audience=REST_AUDIENCE)
            return found.bound, found.for_operation("jobs.read", changes=False).any_owner

        eventually(lambda: told(tenant) == (False, False), "Envoy has the policy")
        assert told(viewer) == (False, True)
        assert gateway.send("GET", "/v1/jobs", token=tenant).status == 403
        write_secret(
            path,
            b'version = 1\n[roles.tenant]\nallow = ["jobs.read"]\n[roles.viewer]\nallow_own = ["jobs.read"]\n',
        )
        eventually(lambda: told(viewer) == (True, False), "what the access token said of owners goes on")
        assert told(tenant) == (True, True)
    finally:
        path.unlink()
    before, _ = access_token_of(gateway, "viewer")
    eventually(lambda: gateway.send("GET", "/v1/jobs", token=before).status == 200, "the policy before is back")


def test_text_of_an_access_token_tells_whether_its_role_tells_all(gateway: Gateway) -> None:
    """Else Envoy would ask about each, or about none."""
    prefix = role_access_token_prefix(PolicyFile(lambda: policy_file(gateway.home), known).get().digest)
    assert access_token_of(gateway, "viewer")[0].startswith(prefix)
    assert not access_token_of(gateway, "nobody-knows-this-role")[0].startswith(prefix)


def test_access_token_without_a_role_that_tells_all_is_asked_about(gateway: Gateway) -> None:
    text, _ = access_token_of(gateway, "nobody-knows-this-role")
    reply = gateway.send("GET", "/v1/jobs", token=text)
    assert reply.status == 403
    assert "jobs.list" in reply.problem["detail"], "the auth service names the operation"
    assert gateway.reached() == []


def test_expired_access_token_is_told_so_by_status(gateway: Gateway) -> None:
    keys = AccessTokenKeys.of(gateway.home)
    keys.load()
    policy = PolicyFile(lambda: policy_file(gateway.home), known).get()
    principal = Principal("ada", ("viewer",), "token", Credential("token", "cred"))
    text, _ = issue(principal, keys, policy, now=time.time() - 3600)
    reply = gateway.send("GET", "/v1/jobs", token=text)
    assert reply.status == 401
    assert reply.headers["www-authenticate"].startswith("Bearer")
    assert reply.problem["detail"] == "This needs a valid credential."
    assert gateway.reached() == []
