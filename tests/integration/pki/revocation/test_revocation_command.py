"""``sluice pki revoke`` and ``sluice pki crl`` as people and scripts use them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sluice.core.home import Home
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.config import PkiConfig
from sluice.pki.identities.directory import read_certificates
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.revocation.crl_files import CRL_FILE
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.profiles import AuthorityKind
from tests.hostile import TRUST_DOMAIN
from tests.integration.pki.test_command import Command, sluice_pki

__all__ = ["sluice_pki"]

TASKMANAGER = f"spiffe://{TRUST_DOMAIN}/taskmanager/tm-1"
JOB = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home with two TaskManagers and a driver's identity."""
    home = Home.at(tmp_path / "home")
    issuer = LocalIssuer(home, PkiConfig())
    issuer.ensure_authorities()
    for name in ("tm-1", "tm-2"):
        issuer.issue_to(home.identity(Role.TASKMANAGER, name), SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, name))
    issuer.issue_to(home.work("tm-1") / "jobs" / JOB / "driver-1" / "identity", SpiffeId.driver(TRUST_DOMAIN, JOB))
    return home


def serial(directory: Path) -> str:
    return f"{read_certificates(directory / 'chain.pem')[0].serial_number:x}"


@pytest.mark.parametrize("how", ["role and name", "spiffe id", "serial", "directory"])
def test_an_identity_is_revoked_by_its_name_spiffe_id_serial_or_directory(
    how: str, home: Home, sluice_pki: Command
) -> None:
    directory = home.identity(Role.TASKMANAGER, "tm-1")
    target = {
        "role and name": "taskmanager/tm-1",
        "spiffe id": TASKMANAGER,
        "serial": serial(directory),
        "directory": str(directory),
    }[how]
    document = sluice_pki("revoke", target, "--reason", "key-compromise", "--json").json()
    assert document["revoked"] == [serial(directory)]
    assert (len(document["pushed"]), document["failed"]) == (3, [])
    (internal,) = sluice_pki("crl", "show", "internal", "--json").json()["lists"]
    (entry,) = internal["revoked"]
    assert (entry["serial"], entry["reason"], entry["identity"]) == (serial(directory), "key-compromise", TASKMANAGER)
    assert internal["number"] == 1
    again = sluice_pki("revoke", target, "--reason", "superseded", "--json").json()
    assert (again["revoked"], again["before"], again["pushed"]) == ([], [serial(directory)], [])


def test_a_revoked_identity_is_reinstated_by_issuing_it_by_name(home: Home, sluice_pki: Command) -> None:
    directory = home.identity(Role.TASKMANAGER, "tm-1")
    revoked = serial(directory)
    assert sluice_pki("revoke", "taskmanager/tm-1", "--reason", "privilege-withdrawn").code == 0
    out = sluice_pki("crl", "show").out
    assert "privilege-withdrawn" in out
    assert "not to be certified again" in out
    assert sluice_pki("issue", "taskmanager/tm-1").code == 0
    assert serial(directory) != revoked
    (internal,) = sluice_pki("crl", "show", "internal", "--json").json()["lists"]
    assert [(entry["serial"], entry["barred"]) for entry in internal["revoked"]] == [(revoked, False)]


def test_intermediate_is_revoked_by_the_root(home: Home, sluice_pki: Command) -> None:
    edge = AuthorityStore(home.pki).certificate(AuthorityKind.EDGE)
    document = sluice_pki("revoke", f"{edge.serial_number:x}", "--reason", "ca-compromise", "--json").json()
    assert document["revoked"] == [f"{edge.serial_number:x}"]
    (root,) = sluice_pki("crl", "show", "root", "--json").json()["lists"]
    assert root["revoked"][0]["reason"] == "ca-compromise"


def test_a_user_certificate_is_revoked_by_the_edge_authority(home: Home, sluice_pki: Command, tmp_path: Path) -> None:
    assert sluice_pki("issue", "user/ada", "--out", tmp_path / "ada").code == 0
    assert sluice_pki("revoke", tmp_path / "ada", "--reason", "affiliation-changed").code == 0
    assert sluice_pki("revoke", "5a3f", "--authority", "edge", "--reason", "unspecified").code == 0
    (edge,) = sluice_pki("crl", "show", "edge", "--json").json()["lists"]
    assert [entry["serial"] for entry in edge["revoked"]] == [serial(tmp_path / "ada"), "5a3f"]
    shown = sluice_pki("crl", "show", "internal")
    assert (shown.code, "nothing revoked, and no list signed yet" in shown.out) == (0, True)
    assert home.root.exists()


def test_earlier_certificates_of_the_identity_are_revoked_with_it(home: Home, sluice_pki: Command) -> None:
    """A renewal leaves an unexpired certificate behind, and whoever stole its key can still use it."""
    directory = home.identity(Role.TASKMANAGER, "tm-1")
    serials = [serial(directory)]
    for _ in range(2):
        assert sluice_pki("issue", "taskmanager/tm-1", "--force").code == 0
        serials.append(serial(directory))
    document = sluice_pki("revoke", "taskmanager/tm-1", "--reason", "key-compromise", "--json").json()
    assert sorted(document["revoked"]) == sorted(serials)
    assert sluice_pki("issue", "taskmanager/tm-2", "--force").code == 0
    former = serial(home.identity(Role.TASKMANAGER, "tm-2"))
    assert sluice_pki("issue", "taskmanager/tm-2", "--force").code == 0
    assert sluice_pki("revoke", former, "--reason", "superseded", "--json").json()["revoked"] == [former]


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        pytest.param(["taskmanager/tm-9", "--reason", "superseded"], 1, "no certificate of", id="unknown identity"),
        pytest.param(["abcdef", "--reason", "superseded"], 1, "--authority", id="unknown serial"),
        pytest.param(["no such thing", "--reason", "superseded"], 2, "neither a serial number", id="neither"),
        pytest.param(["taskmanager/tm-1", "--reason", "certificate-hold"], 2, "certificate-hold", id="hold"),
        pytest.param(["taskmanager/tm-1", "--reason", "remove-from-crl"], 2, "remove-from-crl", id="removal"),
        pytest.param(["taskmanager/tm-1"], 2, "--reason", id="no reason"),
        pytest.param(
            ["taskmanager/tm-1", "--reason", "ca-compromise"], 2, "this is not one", id="ca-compromise of a leaf"
        ),
        pytest.param(["0" * 40, "--authority", "edge", "--reason", "superseded"], 1, "not the serial", id="zero"),
    ],
)
def test_an_invalid_revocation_is_refused_with_its_reason(
    arguments: list[str], code: int, why: str, home: Home, sluice_pki: Command
) -> None:
    outcome = sluice_pki("revoke", *arguments)
    assert outcome.code == code, outcome.err
    assert why in outcome.err
    assert not list(home.root.rglob(CRL_FILE))


def test_certificate_of_another_home_is_not_revoked_here(home: Home, sluice_pki: Command, tmp_path: Path) -> None:
    stranger = LocalIssuer(Home.at(tmp_path / "stranger"), PkiConfig())
    stranger.ensure_authorities()
    stranger.issue_to(tmp_path / "theirs", SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1"))
    outcome = sluice_pki("revoke", tmp_path / "theirs", "--reason", "superseded")
    assert outcome.code == 1
    assert "not certified by an authority" in outcome.err
    assert not list(home.root.rglob(CRL_FILE))


def test_crl_refresh_signs_once_pushes_everywhere_and_repairs_damaged_copies(home: Home, sluice_pki: Command) -> None:
    document = sluice_pki("crl", "refresh", "--json").json()
    assert (document["signed"], len(document["pushed"])) == (["root", "internal", "edge"], 3)
    assert sluice_pki("crl", "refresh", "--json").json() == {"signed": [], "pushed": [], "failed": []}
    assert sluice_pki("crl", "show").code == 0
    (home.identity(Role.TASKMANAGER, "tm-1") / CRL_FILE).write_bytes(b"garbage")
    assert len(sluice_pki("crl", "refresh", "--json").json()["pushed"]) == 1, "what was damaged is repaired"
    (home.pki / "authorities" / "root" / "key.pem").unlink()
    outcome = sluice_pki("crl", "refresh", "--force", "--json")
    assert outcome.code == 1
    assert outcome.json()["signed"] == ["internal", "edge"]
    assert "bring it back" in outcome.json()["failed"][0]


def test_crl_show_reports_a_damaged_crl(home: Home, sluice_pki: Command) -> None:
    assert sluice_pki("crl", "refresh").code == 0
    (path,) = home.pki.glob("revocation/internal-*/crl.pem")
    path.write_bytes(b"garbage")
    outcome = sluice_pki("crl", "show")
    assert outcome.code == 1
    assert "internal: this is not a PEM file" in outcome.out
    assert sluice_pki("crl", "refresh", "--json").json()["signed"] == ["internal"]


def test_openssl_refuses_only_the_revoked_certificate(home: Home, sluice_pki: Command) -> None:
    """The CRLs are standard ones: another implementation refuses the same certificate, and only that."""
    good, bad = home.identity(Role.TASKMANAGER, "tm-2"), home.identity(Role.TASKMANAGER, "tm-1")
    assert sluice_pki("revoke", bad, "--reason", "key-compromise").code == 0
    argv = [
        "openssl",
        "verify",
        "-partial_chain",
        "-crl_check",
        "-trusted",
        "ca.pem",
        "-CRLfile",
        "crl.pem",
        "chain.pem",
    ]
    answers = []
    for directory in (good, bad):
        run = subprocess.run(
            argv,
            cwd=directory,
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
        answers.append((run.returncode == 0, "certificate revoked" in run.stderr))
    assert answers == [(True, False), (False, True)]
