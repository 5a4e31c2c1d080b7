"""``sluice pki issue --inventory``, ``unpack``, ``needs-renewal`` and ``renew`` as scripts use them."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from sluice.core.clock import utc_now
from sluice.core.home import Home
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.config import PkiConfig
from sluice.pki.identities.directory import read_certificates, read_identity
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.spiffe_id import Role, SpiffeId
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.integration.pki.test_command import Command, pki, sluice_pki  # noqa: F401  fixtures

CLUSTER = """
[[identity]]
id = "jobmanager/jm-1"
[[identity]]
id = "taskmanager/tm-{n}"
dns = ["tm-{n}.example"]
count = 2
"""
TASKMANAGER = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1")


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    """An inventory file with three identities."""
    file = tmp_path / "cluster.toml"
    file.write_text(CLUSTER)
    return file


def test_a_second_issue_of_an_inventory_keeps_every_directory(
    sluice_pki: Command,  # noqa: F811
    pki: TestPki,  # noqa: F811
    inventory: Path,
) -> None:
    first = sluice_pki("issue", "--inventory", inventory, "--json").json()
    assert (first["issued"], first["renewed"], first["kept"]) == (3, 0, 0)
    directory = pki.home.identity(Role.TASKMANAGER, "tm-1")
    leaf = read_identity(directory)[0].leaf
    second = sluice_pki("issue", "--inventory", inventory)
    assert "kept    spiffe://sluice.local/jobmanager/jm-1: renewed from" in second.out
    assert "0 issued, 0 renewed, 3 kept, 0 refused" in second.out
    assert read_identity(directory)[0].leaf == leaf


def test_one_identity_is_unpacked_from_a_store_of_many(
    sluice_pki: Command,  # noqa: F811
    pki: TestPki,  # noqa: F811
    inventory: Path,
    tmp_path: Path,
) -> None:
    assert pki.home.pki.exists()
    inventory.write_text(CLUSTER.replace("count = 2", "count = 200"))
    store = tmp_path / "cluster.identities"
    issued = sluice_pki("issue", "--inventory", inventory, "--store", store)
    assert (issued.code, "issued  201: it was not there" in issued.out) == (0, True), issued.err
    before = store.read_bytes()
    again = sluice_pki("issue", "--inventory", inventory, "--store", store, "--json").json()
    assert (again["kept"], again["issued"]) == (201, 0)
    assert store.read_bytes() == before
    assert len(sluice_pki("unpack", store, "--json").json()["identities"]) == 201
    assert sluice_pki("unpack", store, "taskmanager/tm-1", "--out", tmp_path / "tm-1").code == 0
    assert sluice_pki("verify", tmp_path / "tm-1", "--identity", str(TASKMANAGER)).code == 0
    absent = sluice_pki("unpack", store, "taskmanager/tm-999", "--out", tmp_path / "tm-999")
    assert (absent.code, "is not in" in absent.err) == (1, True)


def test_issue_of_one_identity_keeps_it_until_it_is_due(sluice_pki: Command, pki: TestPki) -> None:  # noqa: F811
    assert pki.home.pki.exists()
    first = sluice_pki("issue", "taskmanager/tm-1", "--json").json()
    kept = sluice_pki("issue", "taskmanager/tm-1", "--json").json()
    assert (kept["action"], kept["serial"]) == ("kept", first["serial"])
    assert "still good" in sluice_pki("issue", "taskmanager/tm-1").out
    renamed = sluice_pki("issue", "taskmanager/tm-1", "--dns", "new.example")
    assert "because it lacks the name new.example" in renamed.out
    forced = sluice_pki("issue", "taskmanager/tm-1", "--dns", "new.example", "--force", "--json").json()
    assert (forced["action"], forced["reason"]) == ("renewed", "it was asked for")


def test_needs_renewal_exits_with_a_code_for_each_outcome(sluice_pki: Command, pki: TestPki, tmp_path: Path) -> None:  # noqa: F811
    directory = pki.directory(TASKMANAGER)
    damaged = tmp_path / "damaged.pem"
    damaged.write_bytes((directory / "chain.pem").read_bytes()[:200])
    for arguments, code in (
        ((directory,), 1),
        ((directory / "chain.pem", "--bundle"), 1),
        ((directory, "--expires-in", "25h"), 0),
        ((directory, "--expires-in", "0%"), 0),
        ((tmp_path / "nothing.pem",), 2),
        ((tmp_path,), 2),
        ((damaged,), 255),
        ((directory, "--expires-in", "soon"), 255),
        ((f"unix:{tmp_path}/nobody.sock",), 255),
        (("https://ada@host",), 255),
    ):
        outcome = sluice_pki("needs-renewal", *arguments)
        assert (outcome.code, outcome.out) == (code, ""), outcome
        assert bool(outcome.err) is (code in {2, 255})
        document = sluice_pki("needs-renewal", *arguments, "--json").json()
        assert document["exit_code"] == code
        assert document["needs_renewal"] is {0: True, 1: False}.get(code)
    assert "has less than" in sluice_pki("needs-renewal", directory, "--expires-in", "25h", "--verbose").out
    for wrong in ((), (directory, "--nonsense"), (directory, "--expires-in")):
        assert sluice_pki("needs-renewal", *wrong).code == 255


def test_renew_renews_only_what_is_due(sluice_pki: Command, tmp_path: Path) -> None:  # noqa: F811
    """One of the two identities is past half of its lifetime."""
    home, config = Home.at(tmp_path / "home"), PkiConfig()
    past = utc_now() - dt.timedelta(hours=20)
    AuthorityStore(home.pki).ensure(config, past)
    for name, clock in (("old", lambda: past), ("new", utc_now)):
        spiffe_id = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, name)
        LocalIssuer(home, config, clock=clock).issue_to(
            home.identity(Role.TASKMANAGER, name), spiffe_id, dns=["tm.example"]
        )
    old = home.identity(Role.TASKMANAGER, "old")
    outcome = sluice_pki("renew", "--json")
    found = {one["identity"].rpartition("/")[2]: one["action"] for one in outcome.json()["identities"]}
    assert found == {"old": "renewed", "new": "kept"}
    assert read_identity(old)[0].leaf.not_valid_after_utc > utc_now() + dt.timedelta(hours=23)
    assert "tm.example" in sluice_pki("inspect", old).out
    assert sluice_pki("renew", old).out.startswith("kept")
    assert sluice_pki("renew", old, "--force").out.startswith("renewed")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        pytest.param(("issue",), 2, "--inventory", id="nothing"),
        pytest.param(("issue", "user/a", "--inventory", "x.toml"), 2, "names the identities itself", id="both"),
        pytest.param(("issue", "user/a", "--store", "x"), 2, "--inventory", id="store-of-one"),
        pytest.param(("issue", "--inventory", "nothing.toml"), 1, "No such file", id="no-inventory"),
        pytest.param(("issue", "--inventory", "cluster.toml"), 1, "sluice pki init", id="not-initialized"),
        pytest.param(("unpack", "nothing"), 1, "No such file", id="no-store"),
        pytest.param(("renew",), 2, "no identity below", id="nothing-to-renew"),
        pytest.param(("renew", "nothing"), 1, "cannot read", id="renew-nothing"),
    ],
)
def test_mistakes_are_reported_with_exit_codes(
    arguments: tuple[str, ...],
    code: int,
    says: str,
    sluice_pki: Command,  # noqa: F811
    inventory: Path,
) -> None:
    assert inventory.exists()
    outcome = sluice_pki(*arguments)
    assert (outcome.code, says in outcome.err) == (code, True), outcome.err


@pytest.mark.parametrize("verb", ["unpack", "needs-renewal", "renew"])
def test_help_of_each_verb_shows_an_example(verb: str, sluice_pki: Command) -> None:  # noqa: F811
    outcome = sluice_pki(verb, "--help")
    assert f"sluice pki {verb}" in outcome.out
    assert "--json" in outcome.out


def test_an_encrypted_root_needs_its_passphrase_only_for_a_new_authority(sluice_pki: Command, tmp_path: Path) -> None:  # noqa: F811
    """From then on everything else works without the passphrase."""
    passphrase = tmp_path / "passphrase"
    passphrase.write_text("correct horse battery\n")
    passphrase.chmod(0o600)
    made = sluice_pki("init", "--root-passphrase-file", passphrase)
    assert (made.code, "horse" in made.out + made.err) == (0, False), made.err
    assert sluice_pki("issue", "taskmanager/tm-1").code == 0
    (tmp_path / "home/pki/authorities/edge").rename(tmp_path / "edge")
    refused = sluice_pki("init")
    assert (refused.code, "--root-passphrase-file" in refused.err) == (1, True)
    assert sluice_pki("init", "--root-passphrase-file", passphrase, "--json").json()["created"] == ["edge"]


def test_a_root_on_another_machine_certifies_the_authorities_by_csr(sluice_pki: Command, tmp_path: Path) -> None:  # noqa: F811
    """Only a CSR goes there and only certificates come back."""
    there = ("--home", tmp_path / "offline")
    passphrase = tmp_path / "passphrase"
    passphrase.write_text("correct horse battery\n")
    passphrase.chmod(0o600)
    secret = ("--root-passphrase-file", passphrase)
    assert sluice_pki("init", *there, *secret).code == 0
    for kind in ("internal", "edge"):
        csr, signed = tmp_path / f"{kind}.csr", tmp_path / f"{kind}.pem"
        assert sluice_pki("authority", "csr", kind, "--output", csr).code == 0
        again = sluice_pki("authority", "csr", kind, "--output", csr)
        assert (again.code, "waits for its certificate" in again.err) == (1, True)
        refused = sluice_pki("authority", "sign", kind, csr, "--output", signed, *there)
        assert (refused.code, "is encrypted" in refused.err) == (1, True)
        answer = sluice_pki("authority", "sign", kind, csr, "--output", signed, *there, *secret, "--json").json()
        assert "PRIVATE" not in csr.read_text() + signed.read_text()
        imported = sluice_pki("authority", "import", kind, signed, "--json")
        assert imported.json()["root_sha256"] == answer["root_sha256"]
        assert sluice_pki("authority", "import", kind, signed).code == 1
        assert sluice_pki("authority", "csr", kind, "--output", csr).code == 1
    assert not (tmp_path / "home/pki/authorities/root/key.pem").exists()
    assert "nothing to do" in sluice_pki("init").out
    issued = sluice_pki("issue", "taskmanager/tm-1", "--json").json()
    root = tmp_path / "offline/pki/authorities/root/cert.pem"
    assert sluice_pki("verify", issued["directory"], "--ca", root).code == 0


@pytest.mark.parametrize("asked", ["90d", "2h"])
def test_renewal_keeps_the_lifetime_or_reports_the_change(
    asked: str,
    sluice_pki: Command,  # noqa: F811
    pki: TestPki,  # noqa: F811
) -> None:
    assert pki.home.pki.exists()
    assert sluice_pki("issue", "gateway/web", "--edge-server", "--dns", "a.example", "--lifetime", asked).code == 0
    directory = pki.home.identity(Role.GATEWAY, "web")

    def life() -> dt.timedelta:
        leaf = read_certificates(directory / "chain.pem")[0]
        return leaf.not_valid_after_utc - leaf.not_valid_before_utc

    before = life()
    renewed = sluice_pki("renew", directory, "--force", "--json").json()["identities"][0]
    assert (renewed["action"], renewed["lifetime_changed"], life()) == ("renewed", "", before)
    shorter = sluice_pki("renew", directory, "--force", "--lifetime", "1h")
    assert (shorter.code, "; it lives" in shorter.out) == (0, True)
    assert sluice_pki("renew", directory, "--lifetime", "399d").code == 2
    assert sluice_pki("renew", directory, "--ca", "localhost:1", "--lifetime", "1h").code == 2


def test_a_renewed_lifetime_is_limited_by_the_configuration_and_the_change_reported(
    sluice_pki: Command,  # noqa: F811
    pki: TestPki,  # noqa: F811
) -> None:
    assert sluice_pki("issue", "taskmanager/tm-9", "--lifetime", "90d").code == 0
    (pki.home.root / "sluice.toml").write_text("[pki]\nmax_leaf_hours = 720\n")
    renewed = sluice_pki("renew", "--force")
    assert "it lives 30d from now on, 90d before" in renewed.out
    refused = sluice_pki("issue", "taskmanager/tm-9", "--force", "--lifetime", "31d")
    assert (refused.code, "at most 30d (pki.max_leaf_hours)" in refused.err) == (1, True)
