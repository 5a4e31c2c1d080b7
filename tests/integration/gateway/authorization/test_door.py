"""Only a request with a valid token and a permission for exactly this operation reaches REST.

The tests use the real Envoy and real sockets.
"""

from __future__ import annotations

import json

import pytest

from sluice.core.files import write_secret
from sluice.gateway.audit_log.log import audit_file
from sluice.gateway.audit_log.verification import verify_log
from sluice.gateway.credentials.token_file import TokenStore, token_file
from sluice.gateway.principal import AccessRole
from sluice.gateway.service import route_file
from sluice.pki.assertions.principal import TokenId
from tests.integration.gateway.conftest import ROUTES, Gateway, eventually


def test_a_request_with_a_valid_token_reaches_rest_as_its_principal(gateway: Gateway) -> None:
    reply = gateway.send("GET", "/v1/jobs?state=RUNNING", token=gateway.token(AccessRole.VIEWER, "ada"))
    assert reply.status == 200
    (seen,) = gateway.reached()
    assert (seen.method, seen.target) == ("GET", "/v1/jobs?state=RUNNING")
    assert seen.asserted(gateway.home) == ("ada", ("viewer",))
    assert seen.values("x-sluice-principal") == ["ada"]
    assert seen.values("x-sluice-request-id") == [reply.headers["x-request-id"]]


def test_the_token_and_cookies_do_not_reach_rest(gateway: Gateway) -> None:
    token = gateway.token(AccessRole.VIEWER)
    assert gateway.send("GET", "/v1/jobs", ("Cookie", "session=1"), token=token).status == 200
    (seen,) = gateway.reached()
    assert not seen.values("authorization")
    assert not seen.values("cookie")
    assert not any(token in value for _, value in seen.headers)


def test_no_token_is_401_with_a_challenge(gateway: Gateway) -> None:
    reply = gateway.send("GET", "/v1/jobs")
    assert reply.status == 401
    assert reply.headers["www-authenticate"] == 'Bearer realm="gateway.test"'
    assert "token" in reply.problem["detail"]
    assert gateway.reached() == []


@pytest.mark.parametrize(
    "authorization",
    [
        pytest.param("Bearer slc_000000000000_" + "0" * 64, id="unknown id"),
        pytest.param("Bearer", id="no token"),
        pytest.param("Bearer  ", id="blank token"),
        pytest.param("Basic YWRhOmFkYQ==", id="other scheme"),
        pytest.param("Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZGEifQ.", id="unsigned JWT"),
        pytest.param("Bearer " + "a" * 20_000, id="very long"),
        pytest.param("slc_000000000000_" + "0" * 64, id="no scheme"),
    ],
)
def test_wrong_token_is_401(gateway: Gateway, authorization: str) -> None:
    reply = gateway.send("GET", "/v1/jobs", ("Authorization", authorization))
    assert reply.status == 401
    assert 'error="invalid_token"' in reply.headers["www-authenticate"]
    assert reply.problem["detail"] == "The token is not valid."
    assert gateway.reached() == []


def test_right_id_with_another_secret_is_401(gateway: Gateway) -> None:
    token = gateway.token(AccessRole.ADMIN)
    forged = token[:-1] + ("0" if token[-1] != "0" else "1")
    assert gateway.send("GET", "/v1/jobs", token=forged).status == 401
    assert gateway.reached() == []


def test_two_authorization_headers_are_401_even_when_one_is_good(gateway: Gateway) -> None:
    good = ("Authorization", f"Bearer {gateway.token(AccessRole.ADMIN)}")
    assert gateway.send("GET", "/v1/jobs", good, ("Authorization", "Bearer x")).status == 401
    assert gateway.send("GET", "/v1/jobs", ("Authorization", "Bearer x"), good).status == 401
    assert gateway.reached() == []


def test_token_in_the_query_is_no_credential(gateway: Gateway) -> None:
    token = gateway.token(AccessRole.ADMIN)
    assert gateway.send("GET", f"/v1/jobs?access_token={token}").status == 401
    assert gateway.reached() == []


def test_expired_token_is_401_and_says_so(gateway: Gateway) -> None:
    reply = gateway.send("GET", "/v1/jobs", token=gateway.expired_token())
    assert reply.status == 401
    assert reply.problem["detail"] == "The token has expired."
    assert gateway.reached() == []


def test_revoked_token_is_refused_at_the_next_request_of_an_open_connection(gateway: Gateway) -> None:
    token = gateway.token(AccessRole.VIEWER)
    request = f"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    with gateway.connect() as connection:
        connection.sendall(request)
        assert gateway.read(connection).status == 200
        TokenStore(gateway.home).revoke(TokenId(token.split("_")[1]))
        connection.sendall(request)
        assert gateway.read(connection).status == 401
    assert len(gateway.reached()) == 1


def test_missing_permission_is_403(gateway: Gateway) -> None:
    viewer = gateway.token(AccessRole.VIEWER, "eve")
    for method, target in (("POST", "/v1/jobs"), ("PATCH", "/v1/jobs/42?mode=cancel")):
        reply = gateway.send(method, target, token=viewer, body=b"{}")
        assert reply.status == 403
        assert "eve (viewer) may not jobs." in reply.problem["detail"]
    assert gateway.reached() == []


def test_submitter_may_submit_and_cancel(gateway: Gateway) -> None:
    token = gateway.token(AccessRole.SUBMITTER)
    assert gateway.send("POST", "/v1/jobs", token=token, body=b"{}").status == 200
    assert gateway.send("PATCH", "/v1/jobs/42?mode=cancel", token=token).status == 200
    assert [seen.method for seen in gateway.reached()] == ["POST", "PATCH"]


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/"),
        ("GET", "/v1"),
        ("GET", "/v1/jobs/42/unknown"),
        ("DELETE", "/v1/jobs/42"),
        ("HEAD", "/v1/jobs"),
        ("OPTIONS", "/v1/jobs"),
        ("TRACE", "/v1/jobs"),
        ("GET", "/V1/jobs"),
    ],
)
def test_unpublished_route_is_refused_to_an_admin_too(gateway: Gateway, method: str, target: str) -> None:
    reply = gateway.send(method, target, token=gateway.token(AccessRole.ADMIN))
    assert reply.status in {404, 400}
    assert gateway.reached() == []


def test_every_request_is_503_while_the_auth_service_is_down(gateway: Gateway) -> None:
    token = gateway.token(AccessRole.ADMIN)
    gateway.stop_auth()
    try:
        for _ in range(3):
            reply = gateway.send("GET", "/v1/jobs", token=token)
            assert reply.status == 503
            assert reply.problem["title"] == "Service Unavailable"
        assert gateway.reached() == []
    finally:
        gateway.start_auth()
    assert gateway.send("GET", "/v1/jobs", token=token).status == 200


@pytest.mark.parametrize(
    ("damage", "mode"),
    [
        pytest.param(b'{"version":1,"tokens":[', 0o600, id="cut short"),
        pytest.param(b'{"version":2,"tokens":[]}', 0o600, id="of another version"),
        pytest.param(None, 0o644, id="readable by others"),
    ],
)
def test_every_request_is_503_while_the_token_file_is_damaged(
    gateway: Gateway, damage: bytes | None, mode: int
) -> None:
    token = gateway.token(AccessRole.ADMIN)
    path = token_file(gateway.home)
    whole = path.read_bytes()
    write_secret(path, whole if damage is None else damage)
    path.chmod(mode)
    try:
        assert gateway.send("GET", "/v1/jobs", token=token).status == 503
        assert gateway.reached() == []
    finally:
        write_secret(path, whole)
    assert gateway.send("GET", "/v1/jobs", token=token).status == 200


def test_route_that_is_no_longer_published_is_closed_at_once(gateway: Gateway) -> None:
    token = gateway.token(AccessRole.ADMIN)
    write_secret(route_file(gateway.home), json.dumps(ROUTES[:1]).encode())
    try:
        assert gateway.send("GET", "/v1/jobs", token=token).status == 404
    finally:
        write_secret(route_file(gateway.home), json.dumps(ROUTES).encode())
    assert gateway.reached() == []


def test_every_decision_is_in_the_audit_log_without_any_secret(gateway: Gateway) -> None:
    token = gateway.token(AccessRole.VIEWER, "grace")
    allowed = gateway.send("GET", "/v1/jobs?q=1", token=token)
    denied = gateway.send("POST", "/v1/jobs", token=token, body=b"")
    gateway.send("GET", f"/v1/jobs/{token}", token=token)
    log = audit_file(gateway.home)
    lines = [json.loads(line) for line in log.read_bytes().splitlines()]
    records = {record["request_id"]: record for record in lines if record["event"] == "decision"}
    first, second = records[allowed.headers["x-request-id"]], records[denied.headers["x-request-id"]]
    assert (first["principal"], first["operation"], first["decision"]) == ("grace", "jobs.list", "allow")
    assert (second["principal"], second["operation"], second["decision"]) == ("grace", "jobs.submit", "deny")
    assert first["credential"] == token.split("_")[1]
    assert first["address"] == "127.0.0.1"
    assert first["path"] == "/v1/jobs"
    assert token.split("_")[2].encode() not in log.read_bytes()
    before = len(log.read_bytes().splitlines())  # Envoy's access log is copied into it meanwhile
    assert before <= verify_log(log.parent).state.count <= len(log.read_bytes().splitlines())
    assert log.stat().st_mode & 0o777 == 0o600


def test_access_log_has_the_request_and_no_query(gateway: Gateway) -> None:
    reply = gateway.send("GET", "/v1/jobs?secret=hunter2", token=gateway.token(AccessRole.VIEWER, "alan"))
    log = gateway.home.root / "access" / "access.jsonl"
    identifier = reply.headers["x-request-id"].encode()
    eventually(lambda: identifier in log.read_bytes(), "the request does not appear in the access log")
    (entry,) = (json.loads(line) for line in log.read_bytes().splitlines() if identifier in line)
    assert (entry["principal"], entry["path"], entry["status"]) == ("alan", "/v1/jobs", 200)
    assert entry["tls"] == "TLSv1.3"
    assert b"hunter2" not in log.read_bytes()
    assert log.stat().st_mode & 0o777 == 0o600


def test_sockets_are_accessible_only_to_their_owner(gateway: Gateway) -> None:
    for name in ("auth.sock", "envoy-admin.sock", "rest.sock"):
        assert (gateway.home.sockets / name).stat().st_mode & 0o777 == 0o600
    assert gateway.home.sockets.stat().st_mode & 0o777 == 0o700
