"""Revoked identities and the commands that certify.

No revoked identity becomes valid again through an inventory file, a timer or a store.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.pki.identities.directory import previous_certificates, read_certificates
from sluice.pki.revocation.crl import load_crls
from sluice.pki.revocation.crl_files import CRL_FILE
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.csr import new_csr
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.integration.pki.test_command import Command, pki, sluice_pki  # noqa: F401  fixtures

INVENTORY = """
[[identity]]
id = "taskmanager/tm-{n}"
count = 2
"""
TM_1 = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1")
REVOKE = ("revoke", "taskmanager/tm-1", "--reason", "privilege-withdrawn")


@pytest.fixture
def inventory(sluice_pki: Command, pki: TestPki, tmp_path: Path) -> Path:  # noqa: F811
    """An inventory of two issued identities, of which the first has been revoked."""
    assert pki.home.pki.exists()
    file = tmp_path / "cluster.toml"
    file.write_text(INVENTORY)
    assert sluice_pki("issue", "--inventory", file).code == 0
    assert sluice_pki(*REVOKE).code == 0
    return file


def serial_of(file: Path) -> int:
    return read_certificates(file)[0].serial_number


def serial(directory: Path) -> int:
    return serial_of(directory / "chain.pem")


def test_inventory_refuses_a_revoked_identity_unless_forced(
    sluice_pki: Command,  # noqa: F811
    pki: TestPki,  # noqa: F811
    inventory: Path,
) -> None:
    directory = pki.home.identity(Role.TASKMANAGER, "tm-1")
    revoked = serial(directory)
    inventory.write_text(INVENTORY.replace("count = 2", "count = 3"))
    outcome = sluice_pki("issue", "--inventory", inventory)
    assert (outcome.code, serial(directory)) == (1, revoked)
    assert f"refused {TM_1}: it was revoked at" in outcome.out
    assert "1 issued, 0 renewed, 1 kept, 1 refused" in outcome.out
    assert "sluice pki issue IDENTITY" in outcome.out
    assert sluice_pki("issue", "--inventory", inventory, "--json").json()["refused"] == 1
    forced = sluice_pki("issue", "--inventory", inventory, "--force")
    assert (forced.code, "(privilege-withdrawn) and is admitted again" in forced.out) == (0, True), forced.err
    assert serial(directory) != revoked
    assert [each.serial_number for each in previous_certificates(directory)] == [revoked]
    assert sluice_pki("issue", "--inventory", inventory).code == 0


def test_issue_names_the_refused_identity_of_a_large_inventory(
    sluice_pki: Command,  # noqa: F811
    inventory: Path,
    tmp_path: Path,
) -> None:
    inventory.write_text(INVENTORY.replace("count = 2", "count = 150"))
    outcome = sluice_pki("issue", "--inventory", inventory, "--store", tmp_path / "store")
    assert outcome.code == 1
    assert f"refused {TM_1}: it was revoked at" in outcome.out
    assert "issued  149: it was not there" in outcome.out
    assert len(sluice_pki("unpack", tmp_path / "store", "--json").json()["identities"]) == 149
    out = tmp_path / "tm-2"
    assert sluice_pki("unpack", tmp_path / "store", "taskmanager/tm-2", "--out", out).code == 0
    (listed,) = load_crls((out / CRL_FILE).read_bytes())
    assert len(listed) == 1


def test_a_store_is_not_unpacked_while_the_homes_crl_is_unusable(
    sluice_pki: Command,  # noqa: F811
    pki: TestPki,  # noqa: F811
    inventory: Path,
    tmp_path: Path,
) -> None:
    store, out = tmp_path / "store", tmp_path / "tm-2"
    assert sluice_pki("issue", "--inventory", inventory, "--store", store).code == 1
    (listed,) = pki.home.pki.glob("revocation/internal-*/crl.pem")
    listed.write_bytes(b"garbage")
    assert sluice_pki("unpack", store, "taskmanager/tm-2", "--out", out).code == 1
    assert not out.exists()


def test_renewal_never_reinstates_a_revoked_identity(
    sluice_pki: Command,  # noqa: F811
    pki: TestPki,  # noqa: F811
    inventory: Path,
) -> None:
    assert inventory.exists()
    directory = pki.home.identity(Role.TASKMANAGER, "tm-1")
    revoked, other = serial(directory), serial(pki.home.identity(Role.TASKMANAGER, "tm-2"))
    for force in ((), ("--force",)):
        outcome = sluice_pki("renew", "--json", *force)
        assert outcome.code == 1
        found = {one["identity"]: one["action"] for one in outcome.json()["identities"]}
        assert found[str(TM_1)] == "refused"
        assert serial(directory) == revoked
    assert serial(pki.home.identity(Role.TASKMANAGER, "tm-2")) != other
    by_hand = sluice_pki("issue", "taskmanager/tm-1")
    assert (by_hand.code, "had been revoked and is admitted again" in by_hand.out) == (0, True)
    assert sluice_pki("renew").code == 0


def test_issue_by_csr_reinstates_a_revoked_identity_and_writes_the_crl(
    sluice_pki: Command,  # noqa: F811
    inventory: Path,
    tmp_path: Path,
) -> None:
    assert inventory.exists()
    request = tmp_path / "tm-1.csr"
    request.write_bytes(new_csr(TM_1)[1])
    document = sluice_pki("issue", "taskmanager/tm-1", "--csr", request, "--out", tmp_path / "tm-1", "--json").json()
    assert document["reinstated"] is True
    assert (tmp_path / "tm-1" / CRL_FILE).exists()
    (internal,) = sluice_pki("crl", "show", "internal", "--json").json()["lists"]
    assert [entry["barred"] for entry in internal["revoked"]] == [False]


def test_renewal_by_an_online_authority_requires_directories(sluice_pki: Command) -> None:  # noqa: F811
    outcome = sluice_pki("renew", "--ca", "ca.example.org:8444")
    assert (outcome.code, "name the directories" in outcome.err) == (2, True)
    assert "--ca" in sluice_pki("renew", "--help").out


def test_root_with_a_passphrase_revokes_an_intermediate(sluice_pki: Command, tmp_path: Path) -> None:  # noqa: F811
    passphrase = tmp_path / "passphrase"
    passphrase.write_text("correct horse battery\n")
    passphrase.chmod(0o600)
    secret = ("--root-passphrase-file", passphrase)
    assert sluice_pki("init", *secret).code == 0
    edge = f"{serial_of(tmp_path / 'home/pki/authorities/edge/cert.pem'):x}"
    refused = sluice_pki("revoke", edge, "--reason", "ca-compromise")
    assert (refused.code, "--root-passphrase-file" in refused.err) == (1, True)
    assert sluice_pki("revoke", edge, "--reason", "ca-compromise", *secret, "--json").json()["revoked"] == [edge]
    refreshed = sluice_pki("crl", "refresh", "--force", "--json", *secret)
    assert (refreshed.code, refreshed.json()["signed"]) == (0, ["root", "internal", "edge"])


@pytest.mark.parametrize(
    ("content", "options", "code", "says"),
    [
        pytest.param("other names", (), 1, "req.csr: the request asks for names it may not have", id="other-names"),
        pytest.param("garbage", (), 1, "req.csr: this is not a certificate signing request", id="garbage"),
        pytest.param("good", ("--lifetime", "399d"), 2, "a lifetime of 399d", id="impossible-lifetime"),
        pytest.param("good", ("--dns", "outside.example"), 1, "does not ask for outside.example", id="name-not-asked"),
        pytest.param("outside", ("--dns", "outside.example"), 1, "may certify", id="beyond-the-authority"),
        pytest.param("good", ("--out", "file/within"), 1, "cannot create", id="no-place"),
        pytest.param(None, ("--lifetime", "399d"), 2, "a lifetime of 399d", id="no-request-impossible-lifetime"),
        pytest.param(None, ("--dns", "outside.example"), 1, "may certify", id="no-request-beyond-the-authority"),
    ],
)
def test_a_refused_issue_lifts_no_revocation(
    *,
    content: str | None,
    options: tuple[str, ...],
    code: int,
    says: str,
    sluice_pki: Command,  # noqa: F811
    tmp_path: Path,
) -> None:
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "home" / "sluice.toml").write_text('[pki]\ninternal_names = ["inside.example"]\n')
    assert sluice_pki("init").code == 0
    assert sluice_pki("issue", "taskmanager/tm-1").code == 0
    assert sluice_pki(*REVOKE).code == 0
    (tmp_path / "file").write_text("")
    requests = {
        "other names": new_csr(TM_1, dns=["inside.example"])[1],
        "garbage": b"garbage",
        "good": new_csr(TM_1)[1],
        "outside": new_csr(TM_1, dns=["outside.example"])[1],
    }
    by_request: tuple[str | Path, ...] = ()
    if content is not None:
        (tmp_path / "req.csr").write_bytes(requests[content])
        by_request = ("--csr", tmp_path / "req.csr", "--out", "signed")
    refused = sluice_pki("issue", "taskmanager/tm-1", *by_request, *options)
    assert (refused.code, says in refused.err) == (code, True), refused.err
    assert not (tmp_path / "signed").exists()
    (entry,) = sluice_pki("crl", "show", "internal", "--json").json()["lists"][0]["revoked"]
    assert entry["barred"] is True
    assert sluice_pki("renew", "--force").code == 1, "it is still refused"


def test_a_failed_inventory_into_a_store_lifts_no_revocation(
    sluice_pki: Command,  # noqa: F811
    tmp_path: Path,
) -> None:
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "home" / "sluice.toml").write_text('[pki]\ninternal_names = ["inside.example"]\n')
    assert sluice_pki("init").code == 0
    assert sluice_pki("issue", "taskmanager/tm-1").code == 0
    assert sluice_pki(*REVOKE).code == 0
    last = '[[identity]]\nid = "taskmanager/last"\ndns = ["outside.example"]\n'
    (tmp_path / "all.toml").write_text(INVENTORY + last)
    failed = sluice_pki("issue", "--inventory", "all.toml", "--store", "all.identities", "--force")
    assert (failed.code, "may certify" in failed.err) == (1, True)
    (entry,) = sluice_pki("crl", "show", "internal", "--json").json()["lists"][0]["revoked"]
    assert entry["barred"] is True
