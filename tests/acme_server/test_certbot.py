"""Unmodified certbot gets, renews and revokes certificates from the online authority."""

from __future__ import annotations

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID
from OpenSSL import crypto

from sluice.core.clock import utc_now
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.config import PkiConfig
from sluice.pki.revocation.store import RevocationStore
from sluice.pki.x509.profiles import AuthorityKind
from tests.acme_server.conftest import Site
from tests.command import sluice


def test_certbot_gets_renews_and_revokes_a_certificate_by_http01(site: Site) -> None:
    name = "www.internal.example"
    account = site.account("www", name)
    standalone = ["--standalone", "--http-01-address", "127.0.0.1", "--http-01-port", site.http_port]
    site.certbot(account, "certonly", *standalone, "-d", name)

    leaf, authority = site.certbot_chain(account, name)
    root = AuthorityStore(site.home / "pki").certificate(AuthorityKind.ROOT)
    store = crypto.X509Store()
    store.add_cert(crypto.X509.from_cryptography(root))
    chain = [crypto.X509.from_cryptography(authority)]
    crypto.X509StoreContext(store, crypto.X509.from_cryptography(leaf), chain).verify_certificate()
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [each.value for each in names] == [name]
    usages = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usages) == [ExtendedKeyUsageOID.SERVER_AUTH]
    (record,) = [each for each in site.issued() if each.identity == f"dns:{name}"]
    assert record.serial == f"{leaf.serial_number:x}"
    assert record.requester.startswith("acme:")

    site.certbot(account, "renew", "--force-renewal", "--no-random-sleep-on-renew")
    renewed, _ = site.certbot_chain(account, name)
    assert renewed.serial_number != leaf.serial_number

    site.certbot(account, "revoke", "--cert-name", name, "--reason", "keycompromise", "--no-delete-after-revoke")
    revocations = RevocationStore(site.home / "pki", PkiConfig(), clock=utc_now)
    assert revocations.is_revoked(AuthorityKind.EDGE, renewed.serial_number)
    assert not revocations.is_revoked(AuthorityKind.EDGE, leaf.serial_number)


def test_certbot_gets_a_wildcard_by_dns01(site: Site) -> None:
    account = site.account("wild", "*.internal.example")
    hook = site.hook("certbot")
    site.certbot(
        account, "certonly", "--manual", "--preferred-challenges", "dns", "--manual-auth-hook", hook,
        "-d", "*.shop.internal.example", "-d", "shop.internal.example",
    )  # fmt: skip
    leaf, _ = site.certbot_chain(account, "shop.internal.example")
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {each.value for each in names} == {"*.shop.internal.example", "shop.internal.example"}


def test_certbot_gets_a_certificate_for_an_rsa_key(site: Site) -> None:
    name = "mail.internal.example"
    account = site.account("rsa", name)
    standalone = ["--standalone", "--http-01-address", "127.0.0.1", "--http-01-port", site.http_port]
    site.certbot(account, "certonly", *standalone, "-d", name, "--key-type", "rsa", "--rsa-key-size", "3072")
    leaf, _ = site.certbot_chain(account, name)
    assert isinstance(key := leaf.public_key(), rsa.RSAPublicKey)
    assert key.key_size == 3072


def test_certbot_is_refused_a_name_of_another_account(site: Site) -> None:
    account = site.account("narrow", "kept.internal.example")
    output = site.certbot(
        account, "certonly", "--standalone", "--http-01-address", "127.0.0.1", "--http-01-port", site.http_port,
        "-d", "other.internal.example", expect=1,
    )  # fmt: skip
    assert "not among the names of this account" in output


def test_certbot_without_external_account_is_refused(site: Site) -> None:
    path = site.work / "none.ini"
    path.write_text(f"server = {site.directory}\n")
    output = site.certbot({"file": str(path)}, "certonly", "--standalone", "-d", "www.internal.example", expect=1)
    assert "external account" in output.lower() or "eab" in output.lower()


def test_a_revoked_account_gets_no_more_certificates(site: Site) -> None:
    name = "kept.internal.example"
    account = site.account("ended", name)
    arguments = ["certonly", "--standalone", "--http-01-address", "127.0.0.1", "--http-01-port", site.http_port]
    site.certbot(account, *arguments, "-d", name)
    ended = sluice("pki", "acme", "account", "revoke", "ended", "--home", site.home)
    assert ended.returncode == 0
    serial = f"{site.certbot_chain(account, name)[0].serial_number:x}"
    verb = f"sluice pki revoke {serial} --authority edge --reason privilege-withdrawn"
    assert verb in ended.stdout
    output = site.certbot(account, *arguments, "-d", name, "--force-renewal", expect=1)
    assert "revoked" in output
    revoked = sluice(*verb.split()[1:], "--home", site.home)
    assert revoked.returncode == 0, revoked.stdout
