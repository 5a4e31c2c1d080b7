"""Short-lived access tokens at Envoy.

What Envoy decides alone, what it asks the auth service, and how fast it stops admitting a token.
"""

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
    """Issue an access token as the auth service does."""
    keys = AccessTokenKeys.of(gateway.home)
    keys.load()
    policy = PolicyFile(lambda: policy_file(gateway.home), known).get()
    return issue(Principal(name, (role,), "token", Credential("token", credential)), keys, policy, now=time.time())


@pytest.fixture
def without_auth(gateway: Gateway) -> Iterator[Gateway]:
    """The gateway, with its auth service stopped during the test."""
    gateway.stop_auth()
    yield gateway
    gateway.start_auth()


def test_a_read_with_an_access_token_needs_no_auth_service(without_auth: Gateway) -> None:
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


def test_an_access_token_in_a_cookie_is_accepted_and_the_cookie_does_not_reach_rest(gateway: Gateway) -> None:
    text, _ = access_token_of(gateway, "viewer")
    reply = gateway.send("GET", "/v1/jobs", ("Cookie", f"theme=dark; __Host-sluice-pass={text}"))
    assert reply.status == 200
    (seen,) = gateway.reached()
    assert seen.values("cookie") == []
    assert seen.values("x-sluice-assertion") == [text]


def test_a_browser_whose_session_was_revoked_is_redirected_to_the_sign_in_page(gateway: Gateway) -> None:
    """A client that is not a browser gets the problem document instead."""
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


def test_a_role_without_permission_is_refused_with_a_reason_only_if_the_auth_service_was_asked(
    gateway: Gateway,
) -> None:
    """The auth service is asked only about changes; a read without permission is refused without a reason."""
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


def test_a_request_that_changes_something_reaches_rest_with_its_own_assertion(gateway: Gateway) -> None:
    """The access token itself would be valid for many requests."""
    text, _ = access_token_of(gateway, "submitter")
    gateway.reached()
    assert gateway.send("POST", "/v1/jobs?x=%2F", token=text, body=b"{}").status == 200
    (seen,) = gateway.reached()
    (assertion,) = seen.values("x-sluice-assertion")
    told = asserted_by(gateway.home, assertion, method="POST", target="/v1/jobs?x=%2F", audience=REST_AUDIENCE)
    assert (told.name, told.bound, set(told.may_any)) == ("ada", True, {"jobs.submit"})


@pytest.mark.parametrize("kind", ["pass", "token", "user"])
def test_a_revocation_takes_effect_on_an_open_connection(gateway: Gateway, kind: str) -> None:
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


def test_a_changed_policy_takes_effect_without_a_restart_and_an_invalid_one_is_only_reported(gateway: Gateway) -> None:
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


def test_an_access_token_carries_owner_rights_to_rest_only_under_the_policy_that_issued_it(
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
            """Send a request; returns two properties of its assertion.

            Whether it is bound to this request alone, and whether it permits jobs of other owners.
            """
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


def test_the_prefix_of_an_access_token_shows_whether_its_role_is_in_the_policy(gateway: Gateway) -> None:
    """Otherwise Envoy would ask the auth service about every access token, or about none."""
    prefix = role_access_token_prefix(PolicyFile(lambda: policy_file(gateway.home), known).get().digest)
    assert access_token_of(gateway, "viewer")[0].startswith(prefix)
    assert not access_token_of(gateway, "nobody-knows-this-role")[0].startswith(prefix)


def test_an_access_token_with_a_role_unknown_to_the_policy_is_decided_by_the_auth_service(gateway: Gateway) -> None:
    text, _ = access_token_of(gateway, "nobody-knows-this-role")
    reply = gateway.send("GET", "/v1/jobs", token=text)
    assert reply.status == 403
    assert "jobs.list" in reply.problem["detail"], "the auth service names the operation"
    assert gateway.reached() == []


def test_an_expired_access_token_is_answered_with_401(gateway: Gateway) -> None:
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
