"""``sluice pki verify`` rejects revoked certificates, and reports what it has not checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.core.home import Home
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.identities.directory import CHAIN_FILE, read_certificates
from sluice.pki.revocation.crl import load_crls
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.profiles import ISSUING
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.integration.pki.test_command import Command, pki, sluice_pki  # noqa: F401  fixtures

WEB = SpiffeId.process(TRUST_DOMAIN, Role.GATEWAY, "web")
DNS = ("--dns", "web.example.org", "--dns", "api.example.org", "--ip", "10.1.2.3", "--ip", "fd00::1")
REVOKE = ("revoke", "gateway/web", "--reason", "key-compromise")


@pytest.fixture
def web(sluice_pki: Command, pki: TestPki) -> Path:  # noqa: F811
    """An identity issued to a directory outside the home."""
    assert pki.home.pki.exists()
    assert sluice_pki("issue", "gateway/web", *DNS, "--out", "web").code == 0
    return Path("web").absolute()


def verdict(outcome_json: dict[str, object]) -> tuple[object, object]:
    return outcome_json["verified"], outcome_json["revoked"]


def test_a_certificate_revoked_by_its_identity_is_not_verified(sluice_pki: Command, web: Path) -> None:  # noqa: F811
    assert sluice_pki("verify", web).code == 0
    assert sluice_pki(*REVOKE).code == 0, "what was issued outside the home is known by name"
    refused = sluice_pki("verify", web)
    assert (refused.code, refused.out) == (1, "")
    assert f"{WEB}, serial {read_certificates(web / CHAIN_FILE)[0].serial_number:x}, was revoked at" in refused.err
    assert "(key-compromise)" in refused.err
    document = sluice_pki("verify", web, "--json")
    assert (document.code, verdict(document.json())) == (1, (False, True))


def test_the_crl_is_pushed_to_a_directory_issued_outside_the_home(
    sluice_pki: Command,  # noqa: F811
    web: Path,
) -> None:
    assert not (web / "crl.pem").exists()
    assert sluice_pki(*REVOKE).code == 0
    (listed,) = load_crls((web / "crl.pem").read_bytes())
    assert len(listed) == 1
    (web / "crl.pem").unlink()
    assert sluice_pki("crl", "refresh").code == 0
    assert (web / "crl.pem").exists()


def test_the_crl_in_the_directory_is_checked_without_the_home(
    sluice_pki: Command,  # noqa: F811
    web: Path,
) -> None:
    away = ("--home", "elsewhere")
    unknown = sluice_pki("verify", web, *away)
    assert (unknown.code, "revocation NOT CHECKED of CN=gateway/web" in unknown.out) == (0, True)
    assert "give --crl or --home" in unknown.out
    assert verdict(sluice_pki("verify", web, *away, "--json").json()) == (True, None)
    assert sluice_pki("issue", "gateway/other", "--out", "other").code == 0
    assert sluice_pki(*REVOKE).code == 0
    assert sluice_pki("verify", web, *away).code == 1
    good = sluice_pki("verify", "other", *away)
    assert (good.code, "not revoked, by list number 1" in good.out, "NOT CHECKED" in good.out) == (0, True, False)


@pytest.mark.parametrize("kind", ["pem", "der"])
def test_an_exported_crl_is_enough_to_verify_without_the_home(kind: str, sluice_pki: Command, web: Path) -> None:  # noqa: F811
    assert sluice_pki("crl", "export", "internal", "--output", "list").code == 1, "there is none yet"
    assert sluice_pki("crl", "refresh").code == 0
    exported = sluice_pki("crl", "export", "internal", "--format", kind, "--output", "before", "--json")
    assert (exported.code, exported.json()["lists"][0]["number"]) == (0, 1)
    assert sluice_pki(*REVOKE).code == 0
    assert sluice_pki("crl", "export", "internal", "--format", kind, "--output", "after").code == 0
    (web / "crl.pem").unlink()
    away = ("--home", "elsewhere")
    assert sluice_pki("verify", web, "--crl", "before", *away).code == 0
    assert sluice_pki("verify", web, "--crl", "after", *away).code == 1
    assert sluice_pki("verify", web, "--crl", "before", "--crl", "after", *away).code == 1
    assert sluice_pki("crl", "export", "edge", "--output", "edge").code == 0
    foreign = sluice_pki("verify", web, "--crl", "edge", *away)
    assert (foreign.code, "none of the CRLs given with --crl is valid" in foreign.err) == (1, True)


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x30\x82\x01", b"-----BEGIN X509 CRL-----\n"])
def test_a_damaged_crl_fails_the_verification(content: bytes, sluice_pki: Command, web: Path) -> None:  # noqa: F811
    Path("list").write_bytes(content)
    outcome = sluice_pki("verify", web, "--crl", "list")
    assert (outcome.code, "list holds no revocation list" in outcome.err) == (1, True), outcome.err


def test_a_chain_file_alone_is_verified_with_the_anchors_and_revocations_of_the_home(
    sluice_pki: Command,  # noqa: F811
    web: Path,
) -> None:
    chain = web / CHAIN_FILE
    verified = sluice_pki("verify", chain)
    assert (verified.code, "not revoked, by this home's record" in verified.out) == (0, True)
    nowhere = sluice_pki("verify", chain, "--home", "elsewhere")
    assert (nowhere.code, "--ca" in nowhere.err) == (2, True)
    assert sluice_pki(*REVOKE).code == 0
    assert sluice_pki("verify", chain).code == 1


@pytest.mark.parametrize(
    ("host", "code"),
    [
        pytest.param("web.example.org", 0, id="name"),
        pytest.param("API.Example.ORG.", 0, id="case and final dot"),
        pytest.param("10.1.2.3", 0, id="address"),
        pytest.param("[fd00::1]", 0, id="bracketed v6"),
        pytest.param("fd00:0:0::1", 0, id="v6 written otherwise"),
        pytest.param("example.org", 1, id="parent"),
        pytest.param("x.web.example.org", 1, id="child"),
        pytest.param("10.1.2.4", 1, id="another address"),
        pytest.param("gateway/web", 2, id="the common name"),
        pytest.param("a b", 2, id="no name"),
    ],
)
def test_verify_checks_the_host_as_a_tls_client_would(host: str, code: int, sluice_pki: Command, web: Path) -> None:  # noqa: F811
    outcome = sluice_pki("verify", web, "--host", host)
    assert outcome.code == code, outcome.err
    if code == 1:
        assert "but for web.example.org, api.example.org, 10.1.2.3, fd00::1" in outcome.err


def test_the_host_option_implies_the_server_purpose(sluice_pki: Command, pki: TestPki) -> None:  # noqa: F811
    assert pki.home.pki.exists()
    assert sluice_pki("issue", "user/ada", "--dns", "ada.example.org", "--out", "ada").code == 0
    assert sluice_pki("verify", "ada", "--host", "ada.example.org").code == 1
    assert sluice_pki("verify", "ada", "--host", "ada.example.org", "--purpose", "client").code == 0


def test_identities_issued_by_csr_or_into_a_store_are_revoked_by_name(
    sluice_pki: Command,  # noqa: F811
    pki: TestPki,  # noqa: F811
) -> None:
    from sluice.pki.x509.csr import new_csr

    Path("csr.pem").write_bytes(new_csr(WEB)[1])
    assert sluice_pki("issue", "gateway/web", "--csr", "csr.pem", "--out", "signed").code == 0
    serial = f"{read_certificates(Path('signed') / CHAIN_FILE)[0].serial_number:x}"
    for file in Path("signed").iterdir():
        file.unlink()
    Path("signed").rmdir()  # it went to another machine
    assert sluice_pki(*REVOKE, "--json").json()["revoked"] == [serial]
    Path("inventory.toml").write_text('[[identity]]\nid = "taskmanager/tm-{n}"\ncount = 3\n')
    assert sluice_pki("issue", "--inventory", "inventory.toml", "--store", "cluster.identities").code == 0
    revoked = sluice_pki("revoke", "taskmanager/tm-2", "--reason", "key-compromise", "--json").json()["revoked"]
    assert sluice_pki("unpack", "cluster.identities", "taskmanager/tm-2", "--out", "tm-2").code == 0
    assert revoked == [f"{read_certificates(Path('tm-2') / CHAIN_FILE)[0].serial_number:x}"]
    assert sluice_pki("verify", "tm-2").code == 1
    assert pki.home.pki.exists()


def test_a_directory_replaced_by_a_symlink_gets_no_crl(
    sluice_pki: Command,  # noqa: F811
    web: Path,
    tmp_path: Path,
) -> None:
    web.rename(tmp_path / "moved")
    web.symlink_to(tmp_path / "moved")
    assert sluice_pki(*REVOKE).code == 0
    assert not (tmp_path / "moved" / "crl.pem").exists()


def test_crl_show_accepts_a_new_home_without_crls_and_fails_for_a_damaged_crl(sluice_pki: Command) -> None:  # noqa: F811
    assert sluice_pki("init").code == 0
    shown = sluice_pki("crl", "show")
    assert shown.code == 0
    assert shown.out.count("nothing revoked, and no list signed yet") == 3
    store = AuthorityStore(Home.at(Path("home")).pki)
    assert all(store.exists(kind) for kind in ISSUING)
    assert sluice_pki("revoke", "abcdef", "--authority", "edge", "--reason", "unspecified").code == 0
    (lists,) = Path("home").glob("pki/revocation/edge-*/crl.pem")
    lists.write_bytes(b"garbage")
    assert sluice_pki("crl", "show", "edge").code == 1


def test_a_wildcard_certificate_of_a_service_outside_the_cluster_is_verified_and_renewed(
    sluice_pki: Command,  # noqa: F811
    pki: TestPki,  # noqa: F811
) -> None:
    assert pki.home.pki.exists()
    wildcard = ("--dns", "*.Apps.example.org", "--dns", "apps.example.org", "--dns", "db")
    assert sluice_pki("issue", "gateway/apps", "--edge-server", *wildcard, "--out", "apps").code == 0
    for host, code in (("a.apps.example.org", 0), ("db", 0), ("a.b.apps.example.org", 1), ("example.org", 1)):
        assert sluice_pki("verify", "apps", "--host", host).code == code, host
    assert sluice_pki("renew", "apps", "--force").code == 0
    assert sluice_pki("verify", "apps", "--host", "b.apps.example.org").code == 0
    assert sluice_pki("token", "create", "gateway", "apps", "--edge-server", *wildcard, "--output", "t").code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("taskmanager/tm-1", "--dns", "*.example.org"), id="of a process"),
        pytest.param(("user/ada", "--dns", "*.example.org"), id="of a user"),
        pytest.param(("gateway/x", "--edge-server", "--dns", "*.org"), id="below the top"),
        pytest.param(("gateway/x", "--edge-server", "--dns", "*"), id="of everything"),
        pytest.param(("gateway/x", "--edge-server", "--dns", "a*.example.org"), id="of a part of a label"),
        pytest.param(("gateway/x", "--edge-server", "--dns", "a.*.example.org"), id="in the middle"),
        pytest.param(("gateway/x", "--edge-server", "--dns", "*.*.example.org"), id="of two labels"),
    ],
)
def test_wildcards_that_are_not_allowed_are_refused_at_issue(
    arguments: tuple[str, ...],
    sluice_pki: Command,  # noqa: F811
    pki: TestPki,  # noqa: F811
) -> None:
    assert pki.home.pki.exists()
    assert sluice_pki("issue", *arguments).code == 2
