"""ext_authz over gRPC with a real Envoy that its owner has configured as the guide says."""

from __future__ import annotations

import shutil
import socket
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from sluice.core.home import Home
from sluice.gateway.credentials.token_file import TokenStore
from sluice.gateway.principal import AccessRole
from sluice.pki.identities.directory import read_identity
from sluice.pki.spiffe_id import Role, SpiffeId
from tests.integration.gateway.authorization.own_envoy import HOST, OwnEnvoy
from tests.integration.gateway.conftest import TRUST_DOMAIN, BackgroundLoop, EdgeAuthority, eventually
from tests.integration.gateway.network import AUTH, Generation, install, publish_lists
from tests.outside import OutsideAuthority

ACCESS_LOG = """\
                access_log:
                  - name: envoy.access_loggers.file
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
                      path: LOG
                      log_format:
                        text_format_source:
                          inline_string: "%DYNAMIC_METADATA(envoy.filters.http.ext_authz:x-sluice-operation)%
                            %DYNAMIC_METADATA(envoy.filters.http.ext_authz:x-sluice-principal)%\\n"
"""


@pytest.fixture(scope="module")
def generation(tmp_path_factory: pytest.TempPathFactory) -> Generation:
    return Generation(tmp_path_factory.mktemp("internal"))


@pytest.fixture(scope="module")
def running(edge_authority: EdgeAuthority, background: BackgroundLoop, generation: Generation) -> Iterator[OwnEnvoy]:
    directory = Path(tempfile.mkdtemp(prefix="slc"))
    gateway = OwnEnvoy(Home.at(directory), edge_authority, background, generation)
    try:
        gateway.start()
        yield gateway
    finally:
        gateway.stop()
        shutil.rmtree(directory)


@pytest.fixture
def envoy(running: OwnEnvoy) -> OwnEnvoy:
    running.reached()
    return running


def test_allowed_request_reaches_rest_with_an_assertion_and_no_credential(envoy: OwnEnvoy) -> None:
    token = envoy.token(AccessRole.VIEWER, "grace")
    forged = [("x-sluice-assertion", "forged"), ("x-sluice-principal", "root"), ("X-Sluice-Role", "admin")]
    reply = envoy.send("GET", "/v1/jobs?state=RUNNING", *forged, ("Cookie", "a=b"), token=token)
    assert reply.status == 200
    (request,) = envoy.reached()
    assert request.target == "/v1/jobs?state=RUNNING"
    assert request.asserted(envoy.home) == ("grace", ("viewer",))
    assert request.values("x-sluice-principal") == ["grace"]
    assert request.values("x-sluice-operation") == ["jobs.list"]
    for gone in ("authorization", "cookie", "x-forwarded-client-cert", "x-sluice-role"):
        assert request.values(gone) == []
    assert token not in str(request)


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        pytest.param("POST", "/v1/jobs", 403, id="not granted"),
        pytest.param("GET", "/v1/nothing", 404, id="no route"),
        pytest.param("GET", "/v1/%c3%28", 400, id="unsafe path"),
    ],
)
def test_refusals_are_problem_documents_with_the_right_status(
    envoy: OwnEnvoy, method: str, target: str, status: int
) -> None:
    reply = envoy.send(method, target, token=envoy.token(AccessRole.VIEWER), body=b"" if method == "POST" else None)
    assert reply.status == status
    assert reply.problem["detail"]
    assert envoy.reached() == []


def test_a_request_without_a_valid_token_is_401_with_a_challenge(envoy: OwnEnvoy) -> None:
    reply = envoy.send("GET", "/v1/jobs")
    assert (reply.status, reply.headers["www-authenticate"]) == (401, 'Bearer realm="gateway.test"')
    assert "needs a token" in reply.problem["detail"]
    expired = envoy.send("GET", "/v1/jobs", token=envoy.expired_token())
    assert (expired.status, 'error="invalid_token"' in expired.headers["www-authenticate"]) == (401, True)
    twice = envoy.token(AccessRole.ADMIN)
    assert envoy.send("GET", "/v1/jobs", ("Authorization", f"Bearer {twice}"), token=twice).status == 401
    assert envoy.reached() == []


def test_a_browser_is_redirected_to_the_sign_in_page_which_needs_no_credential(envoy: OwnEnvoy) -> None:
    looking = [("Sec-Fetch-Mode", "navigate"), ("Accept", "text/html")]
    reply = envoy.send("GET", "/v1/jobs", *looking)
    assert (reply.status, reply.headers["location"]) == (302, "/auth/login?return_to=%2Fv1%2Fjobs")
    page = envoy.send("GET", "/auth/login", *looking)
    assert (page.status, b"<form" in page.body) == (200, True)
    assert envoy.reached() == []


def test_a_revoked_token_is_refused_at_the_next_request(envoy: OwnEnvoy) -> None:
    token = envoy.token(AccessRole.VIEWER, "mallory")
    assert envoy.send("GET", "/v1/jobs", token=token).status == 200
    store = TokenStore(envoy.home)
    (record,) = [each for each in store.read().records if each.name == "mallory"]
    store.revoke(record.id)
    assert envoy.send("GET", "/v1/jobs", token=token).status == 401


def test_a_user_certificate_is_a_credential_and_a_forged_header_is_not(envoy: OwnEnvoy, tmp_path: Path) -> None:
    """The user is known but has no role in the policy: 403; an unknown caller gets 401."""
    envoy.authority.issue(tmp_path / "user", role=Role.USER)
    context = envoy.tls()
    context.load_cert_chain(tmp_path / "user" / "chain.pem", tmp_path / "user" / "key.pem")
    request = f"GET /v1/jobs HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()
    with envoy.connect(context) as connection:
        connection.sendall(request)
        assert envoy.read(connection).status == 403
    fingerprint = "ab" * 32
    forged = ("X-Forwarded-Client-Cert", f"Hash={fingerprint};URI=spiffe://{TRUST_DOMAIN}/user/ada")
    assert envoy.send("GET", "/v1/jobs", forged).status == 401


def test_an_untrusted_certificate_accepted_by_a_careless_proxy_is_refused_by_the_auth_service(
    envoy: OwnEnvoy, tmp_path: Path
) -> None:
    mallory = OutsideAuthority(tmp_path / "foreign").imitate(str(SpiffeId.process(TRUST_DOMAIN, Role.USER, "ada")))
    careless = envoy.start_envoy(
        (
            f"validation_context: {{trusted_ca: {{filename: {envoy.authority.certificate_file}}}}}",
            "validation_context: {trust_chain_verification: ACCEPT_UNTRUSTED}",
        ),
    )
    context = envoy.tls()
    context.load_cert_chain(mallory / "chain.pem", mallory / "key.pem")
    with envoy.through(careless), envoy.connect(context) as connection:
        connection.sendall(f"GET /v1/jobs HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        assert envoy.read(connection).status == 401
    assert envoy.reached() == []


def test_raw_headers_give_the_same_decisions(envoy: OwnEnvoy) -> None:
    """Istio and Envoy Gateway can send every value of each header separately."""
    port = envoy.start_envoy(
        ("failure_mode_allow: false", "failure_mode_allow: false\n                      encode_raw_headers: true")
    )
    token = envoy.token(AccessRole.VIEWER)
    with envoy.through(port):
        assert envoy.send("GET", "/v1/jobs", token=token).status == 200
        assert envoy.send("GET", "/v1/jobs", ("Authorization", "Bearer other"), token=token).status == 401
        assert envoy.send("GET", "/v1/jobs").status == 401
    (request,) = envoy.reached()
    assert request.asserted(envoy.home) == ("ada", ("viewer",))


def test_the_operation_and_principal_are_available_as_metadata_to_the_proxy(envoy: OwnEnvoy) -> None:
    log = envoy.home.root / "metadata.log"
    port = envoy.start_envoy(("stat_prefix: edge\n", f"stat_prefix: edge\n{ACCESS_LOG.replace('LOG', str(log))}"))
    with envoy.through(port):
        assert envoy.send("GET", "/v1/jobs", token=envoy.token(AccessRole.VIEWER, "grace")).status == 200
    eventually(lambda: log.exists() and log.read_text(), "nothing is logged")
    assert log.read_text() == "jobs.list grace\n"


def test_every_request_is_refused_while_the_auth_service_is_down_and_served_again_afterwards(envoy: OwnEnvoy) -> None:
    by_default = envoy.start_envoy(("\n                      status_on_error: {code: ServiceUnavailable}", ""))
    token = envoy.token(AccessRole.ADMIN)
    assert envoy.send("GET", "/v1/jobs", token=token).status == 200
    envoy.stop_auth()
    envoy.reached()
    assert envoy.send("GET", "/v1/jobs", token=token).status == 503
    with envoy.through(by_default):
        assert envoy.send("GET", "/v1/jobs", token=token).status == 403
    assert envoy.reached() == []
    envoy.start_auth()
    eventually(lambda: envoy.send("GET", "/v1/jobs", token=token).status == 200, "it does not come back")


def test_the_auth_service_follows_certificate_renewals_and_refuses_a_revoked_proxy(
    edge_authority: EdgeAuthority, background: BackgroundLoop, generation: Generation
) -> None:
    directory = Path(tempfile.mkdtemp(prefix="slc"))
    gateway = OwnEnvoy(Home.at(directory), edge_authority, background, generation)
    try:
        gateway.start()
        token = gateway.token(AccessRole.VIEWER)
        assert gateway.send("GET", "/v1/jobs", token=token).status == 200
        serial = install(gateway.auth_identity, AUTH, generation, [generation])
        eventually(lambda: served_serial(gateway) == serial, "the renewed certificate is not served")
        assert gateway.send("GET", "/v1/jobs", token=token).status == 200
        generation.revoke(read_identity(gateway.edge_identity)[0].leaf.serial_number)
        publish_lists(gateway.auth_identity, [generation])
        eventually(lambda: gateway.send("GET", "/v1/jobs", token=token).status == 503, "it goes on asking")
    finally:
        gateway.stop()
        shutil.rmtree(directory)


def served_serial(gateway: OwnEnvoy) -> int:
    """Return the serial number of the gRPC listener's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(gateway.edge_identity / "chain.pem", gateway.edge_identity / "key.pem")
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", gateway.check_port), timeout=20) as plain,
        context.wrap_socket(plain) as connection,
    ):
        der = connection.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der).serial_number
