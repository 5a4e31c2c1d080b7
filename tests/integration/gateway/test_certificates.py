"""The edge certificate changes without a restart and without a mistake on the way."""

from __future__ import annotations

import pytest
from cryptography import x509

from gateway.principal import AccessRole
from pki.files import write_public
from tests.integration.gateway.conftest import TRUST_DOMAIN, EdgeAuthority, Gateway, eventually


def served(gateway: Gateway) -> int:
    """Serial number of the certificate that a new connection gets."""
    with gateway.connect() as connection:
        der = connection.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der).serial_number


def test_new_certificate_is_served_to_new_connections_while_old_ones_live_on(gateway: Gateway) -> None:
    token = gateway.token(AccessRole.VIEWER)
    request = f"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    before = served(gateway)
    with gateway.connect() as old:
        serial = gateway.authority.issue(gateway.identity)
        eventually(lambda: served(gateway) == serial, "the new certificate is not served")
        old.sendall(request)
        assert gateway.read(old).status == 200
    assert serial != before


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        pytest.param(b"", "damaged", id="empty"),
        pytest.param(b"no certificate", "damaged", id="no certificate"),
        pytest.param(EdgeAuthority().pem.encode(), "do not belong together", id="of another key"),
    ],
)
def test_half_a_rotation_is_never_served(
    gateway: Gateway, caplog: pytest.LogCaptureFixture, damage: bytes, complaint: str
) -> None:
    """Key and chain are two files: a crash between the two writes must not take the door down."""
    before = served(gateway)
    write_public(gateway.identity / "chain.pem", damage)
    eventually(lambda: complaint in caplog.text, "the damaged pair is not noticed")
    assert served(gateway) == before
    serial = gateway.authority.issue(gateway.identity)
    eventually(lambda: served(gateway) == serial, "a good pair after a damaged one is not served")


@pytest.mark.parametrize(
    "spiffe_id", [f"spiffe://{TRUST_DOMAIN}/jobmanager/envoy", "spiffe://elsewhere.test/gateway/envoy"]
)
def test_certificate_of_someone_else_is_not_served(
    gateway: Gateway, caplog: pytest.LogCaptureFixture, spiffe_id: str
) -> None:
    before = served(gateway)
    gateway.authority.issue(gateway.identity, spiffe_id=spiffe_id)
    eventually(lambda: "not of a gateway" in caplog.text, "the wrong certificate is not refused")
    assert served(gateway) == before
    serial = gateway.authority.issue(gateway.identity)
    eventually(lambda: served(gateway) == serial, "a good certificate after a wrong one is not served")
