"""The edge certificate is replaced without a restart, and no wrong certificate is ever served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509

from sluice.core.files import write_public
from sluice.gateway.principal import AccessRole
from sluice.pki.spiffe_id import Role
from tests.integration.gateway.conftest import EdgeAuthority, Gateway, eventually


def served(gateway: Gateway) -> int:
    """Return the serial number of the certificate that a new connection gets."""
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


@pytest.mark.parametrize("damage", [b"", b"no certificate"])
def test_damaged_certificate_is_never_served(gateway: Gateway, caplog: pytest.LogCaptureFixture, damage: bytes) -> None:
    before = served(gateway)
    write_public(gateway.identity / "chain.pem", damage)
    eventually(lambda: "no readable PEM certificate" in caplog.text, "the damaged certificate is not noticed")
    assert served(gateway) == before
    serial = gateway.authority.issue(gateway.identity)
    eventually(lambda: served(gateway) == serial, "a good pair after a damaged one is not served")


def test_half_a_rotation_is_never_served(gateway: Gateway, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """Key and chain are two files: a crash between the two writes must not take the gateway down."""
    before = served(gateway)
    gateway.authority.issue(tmp_path / "next")
    write_public(gateway.identity / "chain.pem", (tmp_path / "next" / "chain.pem").read_bytes())
    eventually(lambda: "is not the key of" in caplog.text, "the mixed pair is not noticed")
    assert served(gateway) == before
    serial = gateway.authority.issue(gateway.identity)
    eventually(lambda: served(gateway) == serial, "a good pair after a mixed one is not served")


def test_certificate_of_another_role_is_not_served(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    refused_and_recovered(gateway, caplog, lambda: gateway.authority.issue(gateway.identity, role=Role.JOBMANAGER))


def test_certificate_of_another_trust_domain_is_not_served(
    gateway: Gateway, caplog: pytest.LogCaptureFixture, foreign_authority: EdgeAuthority
) -> None:
    refused_and_recovered(gateway, caplog, lambda: foreign_authority.issue(gateway.identity))


def refused_and_recovered(
    gateway: Gateway, caplog: pytest.LogCaptureFixture, replace_certificate: Callable[[], int]
) -> None:
    """Check that a wrong certificate is refused and the previous one stays in use.

    A good certificate after it must be accepted.
    """
    before = served(gateway)
    replace_certificate()
    eventually(lambda: "not of a gateway" in caplog.text, "the wrong certificate is not refused")
    assert served(gateway) == before
    serial = gateway.authority.issue(gateway.identity)
    eventually(lambda: served(gateway) == serial, "a good certificate after a wrong one is not served")
