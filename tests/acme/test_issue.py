"""Certificates from a real ACME server in the real Envoy: both challenges, renewal, account binding."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import msgspec
import pytest
from cryptography import x509

from sluice.core.files import write_secret
from sluice.gateway.acme.schedule import FIRST_PAUSE
from sluice.gateway.acme.store import AcmeStore
from sluice.gateway.acme.worker import renew
from sluice.gateway.errors import AcmeError
from sluice.gateway.xds.status import read_status, status_file
from sluice.pki.x509 import describe_key
from tests.acme.conftest import NAMES, MakeSite, Site
from tests.acme.pebble import EAB_KEY, EAB_KEY_ID
from tests.free_ports import free_port
from tests.integration.gateway.conftest import eventually
from tests.public_authority import DAY, PublicAuthority
from tests.waiting import wait_until

CHALLENGES = [pytest.param("tls-alpn-01", id="tls-alpn-01"), pytest.param("http-01", id="http-01")]


def issued(site: Site) -> x509.Certificate:
    """Wait until the gateway presents a certificate that a browser accepts, and return it."""

    def look() -> x509.Certificate | None:
        try:
            return site.shown(context=site.browser())
        except OSError:
            return None

    found = wait_until(look, lambda: f"no certificate: {AcmeStore(site.home).state()}\n{site.pebble.log()}", 60.0)
    assert found is not None
    return found


@pytest.mark.parametrize("challenge", CHALLENGES)
def test_the_gateway_obtains_and_renews_its_certificate_by_itself(make_site: MakeSite, challenge: str) -> None:
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


@pytest.mark.parametrize("key_type", ["ecdsa-p384", "rsa-3072"])
def test_a_certificate_of_each_key_type_is_obtained_with_an_external_account_binding(
    make_site: MakeSite, tmp_path: Path, key_type: str
) -> None:
    key_file = tmp_path / "eab"
    write_secret(key_file, EAB_KEY.encode() + b"\n")
    site = make_site(
        pebble={"eab": True},
        eab_key_id=EAB_KEY_ID,
        eab_key_file=str(key_file),
        email="ops@sluice.test",
        key_type=key_type,
    )
    site.pebble.start()
    site.gateway.start()
    assert describe_key(issued(site).public_key()).lower().startswith(key_type.partition("-")[0])
    kept = b"".join(each.read_bytes() for each in site.home.gateway.rglob("*") if each.is_file())
    assert EAB_KEY.encode() not in kept


def test_a_missing_or_wrong_external_account_binding_is_reported(make_site: MakeSite, tmp_path: Path) -> None:
    site = make_site(pebble={"eab": True})
    site.pebble.start()
    site.gateway.start()
    told(site, "demands an external account binding")
    key_file = tmp_path / "eab"
    write_secret(key_file, b"d3Jvbmctd3Jvbmctd3Jvbmctd3Jvbmctd3Jvbmctd3I")
    wrong = msgspec.structs.replace(site.acme, eab_key_id=EAB_KEY_ID, eab_key_file=str(key_file))
    with pytest.raises(AcmeError, match="the ACME server refuses"):
        renew(site.home, wrong, site.config.server_names)


def test_a_certificate_is_obtained_from_a_server_that_rejects_half_of_all_nonces(make_site: MakeSite) -> None:
    site = make_site(pebble={"environment": {"PEBBLE_WFE_NONCEREJECT": "50"}})
    site.pebble.start()
    site.gateway.start()
    assert issued(site)


def test_the_account_is_registered_again_with_a_server_that_has_forgotten_it(make_site: MakeSite) -> None:
    site = make_site()
    site.pebble.start()
    site.gateway.start()
    first = issued(site)
    site.pebble.stop()
    site.pebble.start()
    renew(site.home, site.acme, site.config.server_names)
    eventually(lambda: issued(site).serial_number != first.serial_number, "there is no new certificate")


def test_a_failed_validation_is_reported_and_the_old_certificate_stays(make_site: MakeSite) -> None:
    site = make_site()
    site.pebble.start()
    site.gateway.start()
    first = issued(site)
    site.pebble.stop()
    site.pebble.tls_port = free_port()
    site.pebble.start()
    with pytest.raises(AcmeError, match=r"could not validate .*example\.com"):
        renew(site.home, site.acme, site.config.server_names)
    told(site, "could not validate")
    assert site.shown() == first
    assert AcmeStore(site.home).state().failures == 1
    assert not AcmeStore(site.home).challenges.path.exists()


def test_an_unreachable_server_is_reported_and_asked_again_only_after_the_pause(make_site: MakeSite) -> None:
    site = make_site()
    site.gateway.start()
    told(site, "gave no answer")
    state = AcmeStore(site.home).state()
    assert state.next_attempt - state.last_attempt >= FIRST_PAUSE.total_seconds()
    site.gateway.stop()
    site.pebble.start()
    site.gateway.start()
    told(site, "gave no answer")
    assert AcmeStore(site.home).state() == state


def test_a_gateway_with_an_expired_certificate_starts_and_obtains_a_new_one(make_site: MakeSite) -> None:
    site = make_site()
    old = PublicAuthority(dt.datetime.now(dt.UTC) - 100 * DAY).issue(*NAMES)
    store = AcmeStore(site.home)
    with store.ordering():
        store.activate(store.stage(old.chain_pem, old.key))
    site.pebble.start()
    site.gateway.start()
    assert issued(site).serial_number != old.leaf.serial_number


def told(site: Site, problem: str) -> None:
    """Wait until the gateway's status reports ``problem``."""

    def look() -> bool:
        report = read_status(status_file(site.home, "envoy"))
        return report is not None and problem in " ".join(report.problems)

    eventually(look, f"{problem!r} is not told")
