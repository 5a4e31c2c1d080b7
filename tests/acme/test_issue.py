"""A certificate of a real ACME server through the real Envoy: both challenges, renewal, account binding."""

from __future__ import annotations

import pytest
from cryptography import x509

from sluice.gateway.acme.store import AcmeStore
from sluice.gateway.acme.worker import renew
from tests.acme.conftest import NAMES, MakeSite, Site
from tests.integration.gateway.conftest import eventually
from tests.waiting import wait_until

CHALLENGES = [pytest.param("tls-alpn-01", id="tls-alpn-01"), pytest.param("http-01", id="http-01")]


def issued(site: Site) -> x509.Certificate:
    """Wait for the certificate that a browser accepts."""

    def look() -> x509.Certificate | None:
        try:
            return site.shown(context=site.browser())
        except OSError:
            return None

    found = wait_until(look, lambda: f"no certificate: {AcmeStore(site.home).state()}\n{site.pebble.log()}", 60.0)
    assert found is not None
    return found


@pytest.mark.parametrize("challenge", CHALLENGES)
def test_gateway_gets_a_certificate_by_itself_and_renews_it(make_site: MakeSite, challenge: str) -> None:
    site = make_site(challenge=challenge)
    site.pebble.start()
    site.gateway.start()
    first = issued(site)
    names = first.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(names.get_values_for_type(x509.DNSName)) == set(NAMES)
    assert site.pebble.status_of(first.serial_number) == "Valid"
    renew(site.home, site.acme, site.config.server_names)
    eventually(lambda: issued(site).serial_number != first.serial_number, "the renewed certificate is not shown")
    state = AcmeStore(site.home).state()
    assert (state.failures, state.last_error, state.issued_by) == (0, "", site.acme.directory)
