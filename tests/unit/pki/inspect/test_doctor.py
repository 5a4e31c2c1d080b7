"""The doctor reports exactly what is wrong, and nothing in a good home: one broken home per code."""

from __future__ import annotations

import ast
import datetime as dt
import fcntl
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa

import sluice.pki as package
from sluice.cli.cluster.records import (
    ClusterRecord,
    ProcessRecord,
    record_path,
    write_record,
)
from sluice.core.files import (
    PUBLIC_MODE,
    SECRET_MODE,
    replace_set,
    write_public,
)
from sluice.core.home import Home
from sluice.pki.authorities.signing import (
    Authority,
    authority_key_identifier,
    create_intermediate,
    to_pem,
)
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.ca.address import CaAddress, publish_ca
from sluice.pki.ca.authority import OnlineAuthority
from sluice.pki.identities.directory import read_certificates, read_identity
from sluice.pki.inspect.doctor.examine import judge
from sluice.pki.inspect.doctor.facts import ListenerFact
from sluice.pki.inspect.doctor.online import clock_findings, listener_findings, process_findings
from sluice.pki.inspect.doctor.scan import read_home
from sluice.pki.inspect.findings import Finding, Severity, worst_first
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.ledger.file import ledger_path
from sluice.pki.revocation.crl import sign_crl
from sluice.pki.revocation.crl_files import push_crls
from sluice.pki.rotation.rotator import Rotator
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509 import pkcs12 as keystore
from sluice.pki.x509.keys import generate_key, key_to_pem
from sluice.pki.x509.profiles import AuthorityKind, leaf_key_usage
from tests.command import sluice
from tests.hostile import TRUST_DOMAIN, Hostile, TestPki

TASKMANAGER = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1")
MINUTES = dt.timedelta(minutes=1)
JOB = "work/tm-1/jobs/" + "a" * 32 + "/driver-1/identity"


@dataclass
class Patient:
    """A home that tests break."""

    pki: TestPki
    root: Authority
    home: Home

    @property
    def identity(self) -> Path:
        """The directory of a TaskManager."""
        return self.home.identity(Role.TASKMANAGER, "tm-1")

    @property
    def issuer(self) -> LocalIssuer:
        """The local issuer of this home."""
        return LocalIssuer(self.home, self.pki.config)

    @property
    def internal(self) -> Authority:
        """The internal authority of this home, with its key."""
        return AuthorityStore(self.home.pki).load(AuthorityKind.INTERNAL)

    @property
    def internal_list(self) -> Path:
        """The path of the internal authority's CRL."""
        (found,) = self.home.pki.glob("revocation/internal-*/crl.pem")
        return found

    def examine(self, *, at: dt.datetime | None = None, running: bool = False) -> list[Finding]:
        """Return the doctor's findings for the files of the home."""
        return judge(read_home(self.home, running=running), at or now())


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Patient:
    """A good home: two identities, CRLs, a ledger with one record, and the root key removed."""
    pki = TestPki(tmp_path_factory.mktemp("doctor"))
    home = pki.home.create()
    pki.issuer.issue_to(home.identity(Role.TASKMANAGER, "tm-1"), TASKMANAGER)
    authority = OnlineAuthority(home.pki, pki.config)
    authority.issue_own(home.identity(Role.CA, "ca-1"), "ca-1", "127.0.0.1")
    authority.close()
    pki.issuer.revocations.refresh_all()
    push_crls(home, pki.issuer.revocations.lists(), now())
    store = AuthorityStore(home.pki)
    root = store.load(AuthorityKind.ROOT)
    (store.directory(AuthorityKind.ROOT) / "key.pem").unlink()
    return Patient(pki, root, home)


@pytest.fixture
def patient(template: Patient, tmp_path: Path) -> Patient:
    """A copy of the good home."""
    shutil.copytree(template.home.root, tmp_path / "home")
    return replace(template, home=Home.at(tmp_path / "home"))


def codes(findings: list[Finding]) -> list[str]:
    return [each.code for each in findings]


def test_a_good_home_has_no_findings(patient: Patient) -> None:
    assert patient.examine() == []
    assert patient.examine(running=True) == []


def forged(case: Hostile) -> Callable[[Patient], None]:
    """Return a function that replaces the TaskManager's directory by a forged one."""

    def break_it(patient: Patient) -> None:
        shutil.rmtree(patient.identity)
        shutil.copytree(patient.pki.hostile(case, pretending=TASKMANAGER).directory, patient.identity)

    return break_it


def signed(
    make_key: Callable[[], rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey],
    finish: Callable[[x509.Certificate, Authority], x509.Certificate] = lambda leaf, _: leaf,
) -> Callable[[Patient], None]:
    """Return a function that gives the TaskManager a certificate for such a key.

    ``finish`` may change the certificate.
    """

    def break_it(patient: Patient) -> None:
        key, internal = make_key(), patient.internal
        leaf = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "weak")]))
            .issuer_name(internal.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now() - 5 * MINUTES)
            .not_valid_after(now() + 60 * MINUTES)
            .add_extension(leaf_key_usage(), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(str(TASKMANAGER))]), False)
            .add_extension(authority_key_identifier(internal.certificate), critical=False)
            .sign(internal.key, hashes.SHA256())
        )
        leaf = finish(leaf, internal)
        password = keystore.random_password()
        replace_set(
            patient.identity,
            {
                "key.pem": (key_to_pem(key), SECRET_MODE),
                "chain.pem": (to_pem(leaf, internal.certificate), PUBLIC_MODE),
                "identity.p12": (keystore.key_store(key, leaf, [internal.certificate], password), SECRET_MODE),
                "identity.p12.pass": (password, SECRET_MODE),
            },
        )

    return break_it


def with_sha1(leaf: x509.Certificate, signer: Authority) -> x509.Certificate:
    """Return the certificate signed with SHA-1, as around 2010; the library no longer signs with it."""

    def element(tag: int, content: bytes) -> bytes:
        size = len(content)
        octets = size.to_bytes((size.bit_length() + 7) // 8, "big")
        return bytes([tag]) + (bytes([size]) if size < 128 else bytes([0x80 | len(octets)]) + octets) + content

    sha256, sha1 = bytes.fromhex("300a06082a8648ce3d040302"), bytes.fromhex("300906072a8648ce3d0401")
    content = leaf.tbs_certificate_bytes[4:].replace(sha256, sha1, 1)
    body = element(0x30, content)
    assert isinstance(signer.key, ec.EllipticCurvePrivateKey)
    signature = signer.key.sign(body, ec.ECDSA(hashes.SHA1()))  # noqa: S303  it is the point
    return x509.load_der_x509_certificate(element(0x30, body + sha1 + element(0x03, b"\0" + signature)))


def chain(*kinds: AuthorityKind) -> Callable[[Patient], None]:
    """Return a function that makes ``chain.pem`` the leaf and these authorities."""

    def break_it(patient: Patient) -> None:
        store = AuthorityStore(patient.home.pki)
        leaf = read_certificates(patient.identity / "chain.pem")[0]
        write_public(patient.identity / "chain.pem", to_pem(leaf, *(store.certificate(kind) for kind in kinds)))

    return break_it


def mode(path: str, bits: int) -> Callable[[Patient], None]:
    return lambda patient: (patient.home.root / path).chmod(bits)


def missing(name: str) -> Callable[[Patient], None]:
    return lambda patient: (patient.identity / name).unlink()


def cut(path: str) -> Callable[[Patient], None]:
    def break_it(patient: Patient) -> None:
        file = patient.home.root / path
        file.write_bytes(file.read_bytes()[:-40])

    return break_it


def content(name: str, data: bytes) -> Callable[[Patient], None]:
    def break_it(patient: Patient) -> None:
        (patient.identity / name).write_bytes(data)

    return break_it


def stale_keystore(patient: Patient) -> None:
    before = (patient.identity / "identity.p12").read_bytes()
    patient.issuer.issue_to(patient.identity, TASKMANAGER)
    (patient.identity / "identity.p12").write_bytes(before)


def short_leaf(patient: Patient) -> None:
    patient.issuer.issue_to(patient.identity, TASKMANAGER, lifetime=60 * MINUTES)


def short_list(patient: Patient) -> None:
    pem = sign_crl(patient.internal, [], number=99, now=now(), lifetime=60 * MINUTES)
    write_public(patient.internal_list, pem)


def job_identity(patient: Patient) -> None:
    shutil.copytree(patient.identity, patient.home.root / JOB)


def short_job_identity(patient: Patient) -> None:
    short_leaf(patient)
    job_identity(patient)
    patient.issuer.issue_to(patient.identity, TASKMANAGER)


def edge_of_last_year(patient: Patient) -> None:
    old = create_intermediate(AuthorityKind.EDGE, patient.root, patient.pki.config, now() - dt.timedelta(days=350))
    directory = AuthorityStore(patient.home.pki).directory(AuthorityKind.EDGE)
    files = {"cert.pem": (to_pem(old.certificate), PUBLIC_MODE), "key.pem": (key_to_pem(old.key), SECRET_MODE)}
    replace_set(directory, files)
    for each in patient.home.pki.glob("revocation/edge-*"):
        shutil.rmtree(each)


def plain_root_key(patient: Patient) -> None:
    directory = AuthorityStore(patient.home.pki).directory(AuthorityKind.ROOT)
    replace_set(directory, {"key.pem": (key_to_pem(patient.root.key), SECRET_MODE)})


def edge_of_another_root(patient: Patient) -> None:
    directory = AuthorityStore(patient.home.pki).directory(AuthorityKind.EDGE)
    root = Authority(AuthorityKind.ROOT, patient.root.certificate, generate_key())
    stranger = create_intermediate(AuthorityKind.EDGE, root, patient.pki.config, now())
    files = {
        "cert.pem": (to_pem(stranger.certificate), PUBLIC_MODE),
        "key.pem": (key_to_pem(stranger.key), SECRET_MODE),
    }
    replace_set(directory, files)
    for each in patient.home.pki.glob("revocation/edge-*"):
        shutil.rmtree(each)


def ledger_with_another_byte(patient: Patient) -> None:
    path = ledger_path(patient.home.pki)
    path.write_bytes(path.read_bytes().replace(b'"ca/ca-1"', b'"ca/ca-2"').replace(b"issued", b"isSued", 1))


def leftover(patient: Patient) -> None:
    path = patient.identity / ".key.pem.0123456789ab.tmp"
    path.write_bytes(b"half a key")
    path.chmod(0o600)


def other_key(directory: str) -> Callable[[Patient], None]:
    def break_it(patient: Patient) -> None:
        replace_set(patient.home.root / directory, {"key.pem": (key_to_pem(generate_key()), SECRET_MODE)})

    return break_it


def written(shift: dt.timedelta) -> Callable[[Patient], None]:
    def break_it(patient: Patient) -> None:
        at = (now() + shift).timestamp()
        os.utime(patient.identity / "chain.pem", (at, at))

    return break_it


NOW = dt.timedelta(0)
TM = "pki/identities/taskmanager/tm-1"
_P256 = lambda: ec.generate_private_key(ec.SECP256R1())  # noqa: E731  a value of the table
_RSA = lambda: rsa.generate_private_key(65537, 2048)  # noqa: E731
Break = Callable[[Patient], None]

# Code, severity, what is broken, the path that is named, how much later one looks, whether a cluster runs then.
BROKEN: list[tuple[str, Severity, Break, str, dt.timedelta, bool]] = [
    ("key-readable", Severity.ERROR, mode(f"{TM}/key.pem", 0o640), f"{TM}/key.pem", NOW, False),
    ("key-readable", Severity.ERROR, mode("pki/ca/ledger.jsonl", 0o644), "pki/ca/ledger.jsonl", NOW, False),
    ("directory-open", Severity.WARNING, mode(TM, 0o750), TM, NOW, False),
    ("directory-open", Severity.ERROR, mode("pki", 0o777), "pki", NOW, False),
    ("file-writable", Severity.ERROR, mode(f"{TM}/ca.pem", 0o664), f"{TM}/ca.pem", NOW, False),
    ("leftover", Severity.NOTE, leftover, f"{TM}/.key.pem.0123456789ab.tmp", NOW, False),
    ("unreadable", Severity.ERROR, content("identity.p12", b"x" * ((1 << 20) + 1)),
     f"{TM}/identity.p12", NOW, False),
    ("orphaned-key", Severity.WARNING, missing("chain.pem"), f"{TM}/key.pem", NOW, True),
    ("orphaned-job", Severity.WARNING, job_identity, JOB, NOW, False),
    ("orphaned-job", Severity.WARNING, short_job_identity, JOB, 90 * MINUTES, True),
    ("damaged", Severity.ERROR, content("chain.pem", b"-----BEGIN CERTIFICATE-----\nMIIB"), TM, NOW, False),
    ("damaged", Severity.ERROR, missing("ca.pem"), TM, NOW, False),
    ("damaged", Severity.ERROR, cut("pki/authorities/edge/key.pem"), "pki/authorities/edge/key.pem", NOW, False),
    ("key-mismatch", Severity.ERROR, other_key(TM), f"{TM}/key.pem", NOW, False),
    ("key-mismatch", Severity.ERROR, other_key("pki/authorities/internal"), "pki/authorities/internal/key.pem",
     NOW, False),
    ("spiffe-rules", Severity.ERROR, forged(Hostile.TWO_SPIFFE_IDS), f"{TM}/chain.pem", NOW, False),
    ("spiffe-rules", Severity.ERROR, forged(Hostile.NO_SPIFFE_ID), f"{TM}/chain.pem", NOW, False),
    ("expired", Severity.ERROR, forged(Hostile.EXPIRED), f"{TM}/chain.pem", NOW, False),
    ("not-yet-valid", Severity.ERROR, forged(Hostile.NOT_YET_VALID), f"{TM}/chain.pem", NOW, False),
    ("self-signed", Severity.WARNING, forged(Hostile.SELF_SIGNED), f"{TM}/chain.pem", NOW, False),
    ("weak-key", Severity.WARNING, signed(_RSA), f"{TM}/chain.pem", NOW, False),
    ("weak-hash", Severity.ERROR, signed(_P256, with_sha1), f"{TM}/chain.pem", NOW, False),
    ("missing-intermediate", Severity.ERROR, chain(), f"{TM}/chain.pem", NOW, False),
    ("chain-order", Severity.WARNING, chain(AuthorityKind.ROOT, AuthorityKind.INTERNAL), f"{TM}/chain.pem",
     NOW, False),
    ("chain-extra", Severity.NOTE, chain(AuthorityKind.INTERNAL, AuthorityKind.EDGE), f"{TM}/chain.pem",
     NOW, False),
    ("chain-does-not-verify", Severity.ERROR, forged(Hostile.EDGE_CERTIFICATE), f"{TM}/chain.pem", NOW, False),
    ("chain-does-not-verify", Severity.ERROR, edge_of_another_root, "pki/authorities/edge/cert.pem", NOW, False),
    ("foreign-authority", Severity.WARNING, forged(Hostile.FOREIGN_CA), TM, NOW, False),
    ("not-renewed", Severity.WARNING, short_leaf, f"{TM}/chain.pem", 45 * MINUTES, True),
    ("keystore-password", Severity.ERROR, content("identity.p12.pass", b"x"),
     f"{TM}/identity.p12", NOW, False),
    ("keystore-password", Severity.ERROR, missing("identity.p12.pass"), f"{TM}/identity.p12",
     NOW, False),
    ("keystore-stale", Severity.WARNING, stale_keystore, f"{TM}/identity.p12", NOW, False),
    ("clock-skew", Severity.WARNING, written(60 * MINUTES), f"{TM}/chain.pem", NOW, False),
    ("clock-skew", Severity.WARNING, written(-60 * MINUTES), f"{TM}/chain.pem", NOW, False),
    ("authority-ends-soon", Severity.WARNING, edge_of_last_year, "pki/authorities/edge/cert.pem", NOW, False),
    ("root-key-plain", Severity.NOTE, plain_root_key, "pki/authorities/root/key.pem", NOW, False),
    ("list-bad", Severity.ERROR, cut(f"{TM}/crl.pem"), f"{TM}/crl.pem", NOW, False),
    ("list-expired", Severity.ERROR, short_list, "crl.pem", 90 * MINUTES, False),
    ("list-not-renewed", Severity.WARNING, short_list, "crl.pem", 45 * MINUTES, True),
    ("ledger-broken", Severity.ERROR, ledger_with_another_byte, "pki/ca/ledger.jsonl", NOW, False),
]  # fmt: skip


@pytest.mark.parametrize("row", [pytest.param(row, id=f"{row[0]}-{number}") for number, row in enumerate(BROKEN)])
def test_each_broken_home_has_exactly_its_one_finding(
    row: tuple[str, Severity, Break, str, dt.timedelta, bool], patient: Patient
) -> None:
    code, severity, break_it, path, later, running = row
    break_it(patient)
    found = patient.examine(at=now() + later, running=running)
    assert [(each.code, each.severity) for each in found] == [(code, severity)], found
    assert found[0].path.endswith(path)
    assert found[0].what
    assert found[0].why
    assert found[0].remedy


def test_a_short_certificate_lifetime_is_not_reported_too_early(patient: Patient) -> None:
    short_leaf(patient)
    short_list(patient)
    assert patient.examine(at=now() + 20 * MINUTES, running=True) == []
    assert patient.examine(at=now() + 45 * MINUTES, running=False) == []


def test_identity_of_a_running_job_is_no_orphan(patient: Patient) -> None:
    job_identity(patient)
    assert patient.examine(running=True) == []


def test_no_phase_of_a_rotation_causes_a_finding(patient: Patient) -> None:
    def renew() -> list[str]:
        for role, name in ((Role.TASKMANAGER, "tm-1"), (Role.CA, "ca-1")):
            spiffe_id = SpiffeId.process(TRUST_DOMAIN, role, name)
            patient.issuer.issue_to(patient.home.identity(role, name), spiffe_id)
        return []

    plain_root_key(patient)
    rotator = Rotator(patient.home, patient.pki.config, renew=renew)
    for verb in (rotator.prepare, rotator.activate, rotator.finish):
        verb(AuthorityKind.INTERNAL)
        found = patient.examine()
        assert codes(found) == ["root-key-plain"], (verb.__name__, found)


def test_an_enrolled_node_without_authorities_has_no_findings(patient: Patient) -> None:
    for name in ("authorities", "revocation", "ca"):
        shutil.rmtree(patient.home.pki / name)
    assert patient.examine() == []


def test_staged_files_are_a_leftover_only_when_no_writer_holds_the_lock(patient: Patient) -> None:
    leftover(patient)
    descriptor = os.open(patient.identity.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        assert patient.examine() == []
    finally:
        os.close(descriptor)
    assert codes(patient.examine()) == ["leftover"]


def test_a_file_with_another_owner_is_a_finding(patient: Patient) -> None:
    facts = read_home(patient.home, running=False)
    stranger = replace(facts.files[-1], uid=facts.owner + 1)
    found = judge(replace(facts, files=(*facts.files[:-1], stranger)), now())
    assert [(each.code, each.severity, each.path) for each in found] == [
        ("foreign-owner", Severity.ERROR, str(stranger.path))
    ]
    assert f"chown {facts.owner}" in found[0].remedy


def test_a_stale_or_unreachable_listener_is_a_finding(patient: Patient) -> None:
    one, other = read_certificates(patient.identity / "chain.pem")
    same = ListenerFact("host:1", patient.identity, one, one)
    assert listener_findings(same) == []
    assert codes(listener_findings(replace(same, presented=other))) == ["listener-stale"]
    assert codes(listener_findings(replace(same, presented=None, error="refused"))) == ["listener-unreachable"]
    assert listener_findings(replace(same, expected=None)) == []  # the directory itself is a finding


def test_a_skewed_peer_clock_and_a_dead_process_are_findings() -> None:
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    for theirs in (None, at, at + MINUTES, at.replace(tzinfo=None)):
        assert clock_findings("host:1", theirs, at) == []
    for theirs in (at - 3 * MINUTES, at + 3 * MINUTES):
        assert codes(clock_findings("host:1", theirs, at)) == ["peer-clock"]
    assert codes(process_findings(("ca", "envoy"), Path("cluster.json"))) == ["process-dead"]


def test_findings_are_sorted_worst_first() -> None:
    def one(severity: Severity, path: str) -> Finding:
        return Finding(severity=severity, code="x", path=path, what="")

    mixed = [one(Severity.NOTE, "a"), one(Severity.ERROR, "b"), one(Severity.WARNING, "a"), one(Severity.ERROR, "a")]
    assert [(each.severity, each.path) for each in worst_first(mixed)] == [
        ("error", "a"), ("error", "b"), ("warning", "a"), ("note", "a"),
    ]  # fmt: skip


GONE = 2**22 + 1
"""A pid that no process can have: Linux gives out none above 2**22 (proc(5), pid_max)."""

TESTED_ELSEWHERE = {
    "announcement-stale", "foreign-owner", "listener-stale", "listener-unreachable", "peer-clock", "process-dead",
    "superseded-shown",
    "no-spiffe-id",  # of a listener only: in a home it breaks the rules
}  # fmt: skip


def _codes_in_the_source() -> Iterator[str]:
    root = Path(package.__file__).parent
    for path in [root / "inspect" / "chain_findings.py", *(root / "inspect" / "doctor").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            codes = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            if ast.unparse(node.func) in {"Finding.error", "Finding.warning", "Finding.note", "_error"}:
                codes.append(node.args[0])
            for code in codes:
                yield from (str(each.value) for each in ast.walk(code) if isinstance(each, ast.Constant))


def test_every_finding_code_is_tested_and_documented() -> None:
    in_source = set(_codes_in_the_source())
    assert {row[0] for row in BROKEN} | TESTED_ELSEWHERE == in_source
    guide = (Path(__file__).parents[4] / "docs" / "reference" / "pki-doctor.md").read_text()
    assert [code for code in sorted(in_source) if f"`{code}`" not in guide] == []


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def doctor(patient: Patient) -> Run:
    """A function that runs ``sluice pki doctor``."""

    def run(*arguments: str) -> tuple[int, str, str]:
        environment = {"SLUICE_HOME": str(patient.home.root), "COLUMNS": "300"}
        done = sluice("pki", "doctor", *arguments, environment=environment)
        return done.returncode, done.stdout, done.stderr

    return run


def test_the_doctor_command_reports_nothing_for_a_good_home(doctor: Run, patient: Patient) -> None:
    code, out, _ = doctor()
    assert (code, out) == (0, f"nothing found in {patient.home.root}\n")
    code, out, _ = doctor(str(patient.home.root), "--json", "--fail-on", "note")
    assert (code, json.loads(out)["findings"]) == (0, [])


@pytest.mark.parametrize(
    ("break_it", "fail_on", "code"),
    [
        (leftover, "note", 1),
        (leftover, "warning", 0),
        (stale_keystore, None, 1),
        (stale_keystore, "error", 0),
        (forged(Hostile.EXPIRED), "error", 1),
        (forged(Hostile.EXPIRED), "never", 0),
        (forged(Hostile.EXPIRED), "sometimes", 2),
    ],
)
def test_the_exit_code_depends_on_severity_and_fail_on(
    break_it: Break, fail_on: str | None, code: int, doctor: Run, patient: Patient
) -> None:
    break_it(patient)
    assert doctor(*([] if fail_on is None else ["--fail-on", fail_on]))[0] == code


def test_the_doctor_command_shows_remedies_and_no_secrets(doctor: Run, patient: Patient) -> None:
    (patient.identity / "key.pem").chmod(0o644)
    code, out, _ = doctor()
    assert code == 1
    assert "[key-readable]" in out
    assert f"chmod 600 {patient.identity}/key.pem" in out
    key_lines = (patient.identity / "key.pem").read_text().splitlines()[1:-1]
    assert not any(line in out for line in key_lines)
    (found,) = json.loads(doctor("--json")[1])["findings"]
    assert set(found) == {"severity", "code", "path", "what", "why", "remedy"}


def test_a_missing_home_is_a_usage_error(doctor: Run, tmp_path: Path) -> None:
    code, _, err = doctor(str(tmp_path / "nowhere"))
    assert (code, "is not a home" in err) == (2, True)


def test_dead_processes_and_stale_announcements_are_reported_once(doctor: Run, patient: Patient) -> None:
    alive = ProcessRecord.of("launcher", os.getpid())
    dead = ProcessRecord("ca", alive.pid, alive.started_at - 1000)
    write_record(patient.home, ClusterRecord(alive, (dead,)))
    code, out, _ = doctor("--json")
    (found,) = json.loads(out)["findings"]
    assert (code, found["code"], found["path"]) == (1, "process-dead", str(record_path(patient.home)))
    # The whole cluster crashed: that its announcements are stale follows from it.
    publish_ca(patient.home, CaAddress(name="ca-1", mutual=("127.0.0.1", 1), enrolment=("127.0.0.1", 1), pid=GONE))
    write_record(patient.home, ClusterRecord(dead, (dead,)))
    assert [each["code"] for each in json.loads(doctor("--json")[1])["findings"]] == ["process-dead"]
    record_path(patient.home).unlink()
    assert [each["code"] for each in json.loads(doctor("--json")[1])["findings"]] == ["announcement-stale"]


def test_examining_changes_nothing(patient: Patient) -> None:
    def state() -> list[tuple[str, int, int]]:
        return sorted(
            (str(path), stat.S_IMODE(path.stat().st_mode), path.stat().st_mtime_ns)
            for path in patient.home.root.rglob("*")
        )

    leftover(patient)
    before = state()
    patient.examine()
    assert state() == before
    assert read_identity(patient.identity)[0].spiffe_id == TASKMANAGER
