"""Unmodified lego: tls-alpn-01, http-01 and dns-01, renewal, and an authority that is killed."""

from __future__ import annotations

from cryptography import x509

from tests.acme_server.conftest import Site


def _leaf(site: Site, account: dict[str, str], name: str) -> x509.Certificate:
    path = site.lego_place(account) / "certificates" / f"{name.replace('*', '_')}.crt"
    return x509.load_pem_x509_certificates(path.read_bytes())[0]


def test_lego_gets_and_renews_a_certificate_by_tls_alpn01(site: Site) -> None:
    name = "alpn.internal.example"
    account = site.account("alpn", name)
    port = ["--tls", "--tls.port", f"127.0.0.1:{site.tls_port}"]
    site.lego(account, name, *port, "run")
    first = _leaf(site, account, name)
    site.lego(account, name, *port, "renew --no-random-sleep --days 1000 --reuse-key")
    second = _leaf(site, account, name)
    assert first.serial_number != second.serial_number
    assert first.public_key() == second.public_key()


def test_lego_renews_by_http01_after_the_authority_was_killed(site: Site) -> None:
    name = "www.internal.example"
    account = site.account("lego-http", name)
    port = ["--http", "--http.port", f"127.0.0.1:{site.http_port}"]
    site.lego(account, name, *port, "run")
    first = _leaf(site, account, name)
    site.kill()
    site.start()
    site.lego(account, name, *port, "renew --no-random-sleep --days 1000")
    assert _leaf(site, account, name).serial_number != first.serial_number
    assert len([each for each in site.issued() if each.identity == f"dns:{name}"]) == 2


def test_lego_gets_a_wildcard_by_dns01(site: Site) -> None:
    name = "*.apps.internal.example"
    account = site.account("apps", "*.internal.example")
    site.lego(account, name, "--dns", "exec", "--dns.disable-cp", "run")
    names = _leaf(site, account, name).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [each.value for each in names] == [name]


def test_an_account_key_is_good_once(site: Site) -> None:
    account = site.account("once", "www.internal.example")
    port = ["--http", "--http.port", f"127.0.0.1:{site.http_port}"]
    site.lego(account, "www.internal.example", *port, "run")
    stolen = account | {"file": str(site.work / "stolen.ini")}
    output = site.lego(stolen, "www.internal.example", *port, "run", expect=1)
    assert "valid once" in output


def test_a_challenge_for_a_name_at_a_metadata_address_is_refused(site: Site) -> None:
    account = site.account("metadata", "metadata.internal.example")
    port = ["--http", "--http.port", f"127.0.0.1:{site.http_port}"]
    output = site.lego(account, "metadata.internal.example", *port, "run", expect=1)
    assert "no address in the networks" in output
