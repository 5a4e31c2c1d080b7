"""``sluice pki`` as people and scripts use it: output, JSON, exit codes, and errors with their remedy."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sluice.core.clock import utc_now
from sluice.pki.identities.directory import read_certificates, read_identity
from sluice.pki.inspect.describe import inspect_bytes
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.csr import new_csr
from sluice.pki.x509.keys import key_from_pem, same_public_key
from tests.command import sluice
from tests.hostile import TRUST_DOMAIN, Hostile, TestPki

TASKMANAGER = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1")


@dataclass(frozen=True)
class Outcome:
    """How the command ended."""

    code: int
    out: str
    err: str

    def json(self) -> dict[str, Any]:
        """Standard output, which must be one JSON document."""
        document = json.loads(self.out)
        assert isinstance(document, dict)
        return document


Command = Callable[..., Outcome]


@pytest.fixture
def sluice_pki(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs ``sluice pki …`` from its entry point, with a home of the test's own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str | Path) -> Outcome:
        done = sluice("pki", *arguments, environment={"SLUICE_HOME": str(tmp_path / "home"), "COLUMNS": "200"})
        return Outcome(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def pki(tmp_path: Path) -> TestPki:
    """A PKI with its authorities in the home that the command uses."""
    return TestPki(tmp_path)


def test_a_second_init_keeps_the_authorities(sluice_pki: Command) -> None:
    first, second = sluice_pki("init", "--algorithm", "ecdsa-p384", "--json"), sluice_pki("init")
    assert (first.code, second.code) == (0, 0)
    assert first.json()["created"] == ["root", "internal", "edge"]
    assert "nothing to do" in second.out
    assert second.out.count("kept") == 3
    certificate = Path(first.json()["authorities"]["edge"])
    (found,) = inspect_bytes(certificate.read_bytes(), utc_now())
    assert getattr(found, "key", "") == "ecdsa-p384"
    again = sluice_pki("init", "--json").json()
    assert (again["created"], again["kept"]) == ([], ["root", "internal", "edge"])


def test_an_issued_identity_is_inspected_and_verified(sluice_pki: Command, pki: TestPki) -> None:
    issued = sluice_pki("issue", "taskmanager/tm-1", "--dns", "worker.example", "--lifetime", "90m", "--json")
    assert issued.code == 0, issued.err
    directory = Path(issued.json()["directory"])
    assert directory == pki.home.identity(Role.TASKMANAGER, "tm-1")
    inspected = sluice_pki("inspect", directory, "--json").json()
    leaf = inspected["files"][0]["items"][0]
    assert (leaf["kind"], leaf["spiffe_ids"], leaf["dns"]) == ("certificate", [str(TASKMANAGER)], ["worker.example"])
    text = sluice_pki("inspect", directory)
    assert str(TASKMANAGER) in text.out
    assert "PRIVATE" not in text.out
    verified = sluice_pki("verify", directory, "--purpose", "client", "--identity", str(TASKMANAGER), "--json")
    assert (verified.code, verified.json()["verified"], verified.json()["identity"]) == (0, True, str(TASKMANAGER))


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
@pytest.mark.parametrize("case", [Hostile.EXPIRED, Hostile.FOREIGN_CA, Hostile.TWO_SPIFFE_IDS])
def test_a_failed_verification_exits_with_1_and_its_reason(
    case: Hostile, as_json: bool, sluice_pki: Command, pki: TestPki
) -> None:
    directory = pki.hostile(case, pretending=TASKMANAGER).directory
    outcome = sluice_pki("verify", directory, *(["--json"] if as_json else []))
    assert outcome.code == 1
    if as_json:
        assert outcome.json()["verified"] is False
        assert outcome.json()["reason"]
    else:
        assert outcome.out == ""
        assert outcome.err.startswith("error: ")


def test_an_edge_certificate_is_not_verified_with_the_internal_anchors(sluice_pki: Command, pki: TestPki) -> None:
    edge = pki.edge_server()
    assert sluice_pki("verify", edge / "chain.pem", "--ca", edge / "ca.pem", "--purpose", "server").code == 0
    inside = pki.directory(TASKMANAGER) / "ca.pem"
    outcome = sluice_pki("verify", edge / "chain.pem", "--ca", inside)
    assert outcome.code == 1
    assert "no path to a trust anchor" in outcome.err


def test_a_key_generated_elsewhere_is_certified_by_csr(sluice_pki: Command, pki: TestPki, tmp_path: Path) -> None:
    key_pem, csr_pem = new_csr(TASKMANAGER, dns=["worker.example"])
    (tmp_path / "tm.csr").write_bytes(csr_pem)
    out = tmp_path / "signed"
    issued = sluice_pki(
        "issue", str(TASKMANAGER), "--csr", tmp_path / "tm.csr", "--dns", "worker.example", "--out", out
    )
    assert issued.code == 0, issued.err
    assert sorted(path.name for path in out.iterdir()) == ["ca.pem", "chain.pem"]
    leaf = read_certificates(out / "chain.pem")[0]
    assert same_public_key(key_from_pem(key_pem, "key").public_key(), leaf.public_key())
    refused = sluice_pki("issue", str(TASKMANAGER), "--csr", tmp_path / "tm.csr", "--out", tmp_path / "refused")
    assert refused.code == 1
    assert "worker.example" in refused.err
    assert not (tmp_path / "refused").exists()
    assert pki.home.pki.exists()


def test_inspect_shows_the_subject_and_the_names_of_a_csr(sluice_pki: Command, tmp_path: Path) -> None:
    (tmp_path / "tm.csr").write_bytes(new_csr(TASKMANAGER, dns=["worker.example"], ips=["10.0.0.7"])[1])
    shown = sluice_pki("inspect", tmp_path / "tm.csr").out
    assert f"request for {TASKMANAGER}" in shown
    assert "subject   CN=taskmanager/tm-1" in shown
    assert "names     worker.example, 10.0.0.7" in shown


def test_the_public_certificate_of_the_gateway_verifies_as_server_only(
    sluice_pki: Command, pki: TestPki, tmp_path: Path
) -> None:
    assert pki.home.pki.exists()
    options = ("--edge-server", "--dns", "cluster.example", "--ip", "127.0.0.1", "--out", tmp_path / "edge")
    outcome = sluice_pki("issue", "gateway/envoy", *options)
    assert outcome.code == 0, outcome.err
    assert sluice_pki("verify", tmp_path / "edge", "--purpose", "server").code == 0
    assert sluice_pki("verify", tmp_path / "edge", "--purpose", "client").code == 1


def test_exported_files_are_private_when_they_hold_a_secret(sluice_pki: Command, pki: TestPki, tmp_path: Path) -> None:
    directory = pki.directory(TASKMANAGER)
    for source, kind, secret in (
        ("edge", "ca", False),
        (directory, "chain", False),
        (directory, "bundle", True),
        (directory, "pkcs12", True),
        ("internal", "pkcs12-trust", False),
    ):
        output = tmp_path / f"{kind}.out"
        outcome = sluice_pki("export", source, "--format", kind, "--output", output, "--json")
        assert outcome.code == 0, outcome.err
        assert outcome.json()["secret"] is secret
        assert stat.S_IMODE(output.stat().st_mode) == (0o600 if secret else 0o644)
        password_file = outcome.json().get("password_file")
        if password_file is not None:
            assert stat.S_IMODE(Path(password_file).stat().st_mode) == 0o600
            assert Path(password_file).read_text().strip() not in outcome.out + outcome.err
        assert sluice_pki("inspect", output).code == 0
    assert read_identity(directory)[0].spiffe_id == TASKMANAGER


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        pytest.param(("issue", "taskmanager/tm-1"), 1, "sluice pki init", id="not-initialized"),
        pytest.param(("issue", "boss/x"), 2, "names no known role", id="unknown-role"),
        pytest.param(("issue", "taskmanager/a/b"), 2, "names no known role", id="name-with-slash"),
        pytest.param(("issue", "taskmanager/tm-1", "--lifetime", "forever"), 2, "90m, 12h, 30d", id="bad-lifetime"),
        pytest.param(("issue", f"job/{'a' * 32}/driver"), 2, "--out", id="job-without-place"),
        pytest.param(("issue", "gateway/x", "--edge-server", "--accept", "a"), 2, "--accept", id="accept-at-the-edge"),
        pytest.param(("issue", "taskmanager/tm-1", "--lifetime", "400d"), 2, "398d", id="lifetime-beyond-reason"),
        pytest.param(("issue", "taskmanager/tm-1", "--lifetime", "30s"), 2, "90m, 12h", id="lifetime-in-seconds"),
        pytest.param(("issue", "taskmanager/tm-1", "--dns", "a b"), 2, "not a DNS name", id="bad-dns-name"),
        pytest.param(("issue", "taskmanager/tm-1", "--ip", "1.2.3"), 2, "not an IP address", id="bad-address"),
        pytest.param(("issue", "taskmanager/tm-1", "--accept", "*"), 2, "spiffe://", id="bad-pattern"),
        pytest.param(("issue", "taskmanager/x", "--edge-server", "--dns", "a.b"), 2, "gateway", id="no-public-role"),
        pytest.param(("issue", "gateway/x", "--edge-server"), 2, "host name", id="public-without-a-name"),
        pytest.param(("token", "create", "ca", "ca-2"), 1, "sluice pki init", id="token-without-authority"),
        pytest.param(
            ("enrol", "jobmanager", "a b", "--ca", "h:1", "--out", "x", "--token-file", "-"), 2, "name", id="bad-name"
        ),
        pytest.param(
            ("enrol", "jobmanager", "a", "--ca", "nowhere", "--out", "x", "--token-file", "-"), 2, "host:port", id="ca"
        ),
        pytest.param(("renew", "tm-1", "--ca", "nowhere"), 2, "host:port", id="renew-bad-address"),
        pytest.param(("ledger", "verify", "--known", "7"), 2, "COUNT:DIGEST", id="bad-ledger-state"),
        pytest.param(("verify", "/nonexistent.pem"), 2, "there is no /nonexistent.pem", id="verify-nothing"),
        pytest.param(("verify", "nothere", "--ca", "/nonexistent.pem"), 2, "there is no nothere", id="no-file"),
        pytest.param(("verify", "x", "--identity", "me"), 2, "must start with spiffe://", id="bad-identity"),
        pytest.param(("inspect", "/nonexistent.pem"), 1, "No such file", id="inspect-nothing"),
        pytest.param(("export", "/nonexistent", "--output", "out.pem"), 1, "cannot read", id="export-nothing"),
        pytest.param(("init", "--algorithm", "rsa-1024"), 2, "ecdsa-p256", id="weak-algorithm"),
        pytest.param(("init", "--trust-domain", "Not Valid"), 2, "trust domain", id="bad-trust-domain"),
        pytest.param(("frobnicate",), 2, "frobnicate", id="unknown-verb"),
    ],
)
def test_mistakes_have_exit_codes_and_remedies(
    arguments: tuple[str, ...], code: int, says: str, sluice_pki: Command
) -> None:
    outcome = sluice_pki(*arguments)
    assert (outcome.code, says in outcome.err) == (code, True), outcome.err
    assert outcome.out == ""


@pytest.mark.parametrize("verb", ["init", "issue", "inspect", "verify", "export"])
def test_help_of_each_verb_shows_an_example(verb: str, sluice_pki: Command) -> None:
    outcome = sluice_pki(verb, "--help")
    assert outcome.code == 0
    assert f"sluice pki {verb}" in outcome.out
    assert "--json" in outcome.out


def test_export_for_a_program_lists_its_files_and_refuses_invalid_options(sluice_pki: Command, tmp_path: Path) -> None:
    assert sluice_pki("init").code == 0
    assert sluice_pki("issue", "zookeeper/zk-1", "--dns", "zk-1.example.org", "--out", "zk-1").code == 0
    written = sluice_pki("export", "zk-1", "--for", "zookeeper", "--output", "out", "--json")
    assert written.code == 0
    assert {Path(file).name for file in written.json()["files"]} == {path.name for path in Path("out").iterdir()}
    assert "3.9.5" in written.json()["proven"]
    told = sluice_pki("export", "zk-1", "--for", "envoy", "--peer", "spiffe://sluice.local/gateway/*", "-o", "envoy")
    assert told.code == 0
    assert f"wrote {tmp_path}/envoy/downstream.yaml" in told.out
    listed = sluice_pki("export", "--list")
    assert listed.code == 0
    assert all(name in listed.out for name in ("spark", "flink", "zookeeper", "kafka", "envoy", "nginx"))
    assert len(sluice_pki("export", "--list", "--json").json()["programs"]) == 6
    for wrong in (
        ["--for", "envoy"],
        ["--for", "envoy", "-o", "x", "--format", "pkcs12"],
        ["--for", "envoy", "-o", "x", "--peer", "spiffe://evil.example/gateway/g"],
        ["--peer", "spiffe://sluice.local/gateway/g", "-o", "x"],
        ["--for", "hadoop", "-o", "x"],
    ):
        refused = sluice_pki("export", "zk-1", *wrong)
        assert (refused.code, refused.out) == (2, ""), wrong
    assert sluice_pki("export", "internal", "--for", "envoy", "-o", "x").code == 2
    refused = sluice_pki("export", "zk-1", "--for", "kafka", "-o", "x", "--peer", "spiffe://sluice.local/gateway/g")
    assert refused.code == 1
    assert "cannot tell" in refused.err
    assert not Path("x").exists()


def test_authorities_certify_the_names_that_the_configuration_lists(sluice_pki: Command, tmp_path: Path) -> None:
    (tmp_path / "sluice.toml").write_text('[pki]\ninternal_names = ["example.org", "10.0.0.0/8"]\n')
    assert sluice_pki("init").code == 0
    shown = sluice_pki("inspect", tmp_path / "home" / "pki" / "authorities" / "internal")
    assert "only URI sluice.local, only email invalid, only DNS example.org, only IP 10.0.0.0/8" in shown.out
    inside = sluice_pki("issue", "taskmanager/tm-1", "--dns", "tm-1.example.org", "--ip", "10.1.2.3")
    assert inside.code == 0
    directory = tmp_path / "home" / "pki" / "identities" / "taskmanager" / "tm-1"
    assert sluice_pki("verify", directory).code == 0
    outside = sluice_pki("issue", "taskmanager/tm-2", "--dns", "tm-2.example.com")
    assert outside.code == 1
    assert "DNS tm-2.example.com is not among those that its authority may certify" in outside.err
    assert "it may: DNS example.org" in outside.err
    assert not directory.with_name("tm-2").exists()


def test_a_malformed_name_in_the_configuration_stops_init(sluice_pki: Command, tmp_path: Path) -> None:
    (tmp_path / "sluice.toml").write_text('[pki]\nedge_names = ["*.example.org"]\n')
    outcome = sluice_pki("init")
    assert outcome.code == 1
    assert "pki.edge_names: '*.example.org' is neither a domain nor a network" in outcome.err
