"""Files written for other programs: modes, passwords and names.

Whatever must be refused is refused before anything is written.
"""

from __future__ import annotations

import datetime as dt
import json
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

from sluice.core.clock import utc_now
from sluice.core.errors import (
    CertificateRejected,
    InvalidIdentity,
    SluiceError,
    StoreError,
)
from sluice.pki.authorities.openssl_anchors import trusted_pem
from sluice.pki.config import PkiConfig
from sluice.pki.export.programs.catalogue import (
    CATALOGUE,
    MAX_PEERS,
    Program,
    export_for,
)
from sluice.pki.identities.directory import read_identity
from sluice.pki.revocation.crl import Reason
from sluice.pki.revocation.store import RevocationStore, RevocationTarget
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.profiles import AuthorityKind
from tests.hostile import TRUST_DOMAIN, TestPki

TASKMANAGER = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1")
WITH_STORES = (Program.SPARK, Program.FLINK, Program.ZOOKEEPER, Program.KAFKA)


def modes(directory: Path) -> set[int]:
    """Return the modes of all files in ``directory``."""
    return {path.stat().st_mode & 0o777 for path in directory.iterdir()}


@pytest.fixture
def pki(tmp_path: Path) -> TestPki:
    """A PKI for this test only."""
    return TestPki(tmp_path / "pki")


@pytest.mark.parametrize("program", Program)
def test_every_exported_file_is_private_and_names_the_tested_program_version(
    program: Program, pki: TestPki, tmp_path: Path
) -> None:
    source, place = pki.directory(TASKMANAGER), tmp_path / "made" / "on-the-way"
    files = export_for(program, source, place, now=utc_now())
    assert sorted(files) == sorted(place.iterdir())
    assert modes(place) == {0o600}
    assert place.stat().st_mode & 0o777 == 0o700
    snippets = [file for file in files if file.suffix in {".conf", ".yaml", ".cfg", ".properties"}]
    assert snippets
    for file in snippets:
        text = file.read_text()
        assert f"tested with {CATALOGUE[program].tested_with}" in text
        assert str(TASKMANAGER) in text
        assert max(map(len, text.splitlines())) < 300
    assert any(str(place) in file.read_text() for file in snippets), "paths are absolute"


@pytest.mark.parametrize("program", WITH_STORES)
def test_the_password_opens_both_stores_and_stays_the_same_after_a_renewal(
    program: Program, pki: TestPki, tmp_path: Path
) -> None:
    source, place = pki.directory(TASKMANAGER), tmp_path / "out"
    export_for(program, source, place, now=utc_now())
    password = (place / "stores.pass").read_bytes()
    pki.issuer.issue_to(source, TASKMANAGER)
    export_for(program, source, place, now=utc_now())
    assert (place / "stores.pass").read_bytes() == password
    opened = load_pkcs12((place / "keystore.p12").read_bytes(), password)
    assert opened.cert is not None
    assert opened.cert.certificate == read_identity(source)[0].leaf, "the new certificate"
    anchors = load_pkcs12((place / "truststore.p12").read_bytes(), password)
    assert [each.certificate for each in anchors.additional_certs] == list(read_identity(source)[0].anchors)


@pytest.mark.parametrize("program", Program)
def test_a_repeated_export_does_not_replace_unchanged_files(program: Program, pki: TestPki, tmp_path: Path) -> None:
    """ZooKeeper, for example, may miss a change when both stores are replaced at once."""
    source, place = pki.directory(TASKMANAGER), tmp_path / "out"

    def generations() -> dict[str, int]:
        return {path.name: path.stat().st_ino for path in place.iterdir()}

    files = export_for(program, source, place, now=utc_now())
    before = generations()
    assert export_for(program, source, place, now=utc_now()) == files
    assert generations() == before
    files[0].chmod(0o644)
    export_for(program, source, place, now=utc_now())
    assert modes(place) == {0o600}


@pytest.mark.parametrize("program", WITH_STORES)
def test_a_renewal_replaces_the_key_store_and_leaves_the_trust_store(
    program: Program, pki: TestPki, tmp_path: Path
) -> None:
    source, place = pki.directory(TASKMANAGER), tmp_path / "out"
    export_for(program, source, place, now=utc_now())
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    pki.issuer.issue_to(source, TASKMANAGER)
    export_for(program, source, place, now=utc_now())
    changed = {path.name for path in place.iterdir() if path.read_bytes() != before[path.name]}
    assert "keystore.p12" in changed
    assert changed.isdisjoint({"truststore.p12", "stores.pass"})


@pytest.mark.parametrize("damage", [b"", b"no store at all"])
def test_a_damaged_store_is_replaced(damage: bytes, pki: TestPki, tmp_path: Path) -> None:
    source, place = pki.directory(TASKMANAGER), tmp_path / "out"
    export_for(Program.FLINK, source, place, now=utc_now())
    for name in ("keystore.p12", "truststore.p12"):
        (place / name).write_bytes(damage)
    export_for(Program.FLINK, source, place, now=utc_now())
    password = (place / "stores.pass").read_bytes()
    assert load_pkcs12((place / "keystore.p12").read_bytes(), password).key is not None
    assert len(load_pkcs12((place / "truststore.p12").read_bytes(), password).additional_certs) == 1


@pytest.mark.parametrize("found", [b"", b"short", b"with=quote'", "ünicode-pässwörd".encode()])
def test_a_password_that_would_need_quoting_is_replaced(found: bytes, pki: TestPki, tmp_path: Path) -> None:
    place = tmp_path / "out"
    place.mkdir(mode=0o700)
    (place / "stores.pass").write_bytes(found)
    (place / "stores.pass").chmod(0o600)
    export_for(Program.FLINK, pki.directory(TASKMANAGER), place, now=utc_now())
    assert (place / "stores.pass").read_bytes() != found


def test_the_store_password_is_only_in_the_configuration_files_that_need_it(pki: TestPki, tmp_path: Path) -> None:
    source = pki.directory(TASKMANAGER)
    having = {}
    for program in WITH_STORES:
        place = tmp_path / program
        files = export_for(program, source, place, now=utc_now())
        password = (place / "stores.pass").read_bytes()
        having[program] = {file.name for file in files if password in file.read_bytes()} - {"stores.pass"}
    assert having == {
        Program.SPARK: {"spark-defaults.conf"},
        Program.FLINK: {"config.yaml"},
        Program.ZOOKEEPER: set(),
        Program.KAFKA: {"server.properties", "client.properties"},
    }


@pytest.mark.parametrize("name", ["with space", "semi;colon", "quote'", "new\nline", "dollar$", "hash#"])
def test_a_path_that_would_need_quoting_is_refused(name: str, pki: TestPki, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="quoting"):
        export_for(Program.NGINX, pki.directory(TASKMANAGER), tmp_path / name, now=utc_now())
    assert not (tmp_path / name).exists()


def test_a_directory_writable_by_others_is_refused_and_a_readable_one_left_unchanged(
    pki: TestPki, tmp_path: Path
) -> None:
    source, place = pki.directory(TASKMANAGER), tmp_path / "etc"
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(StoreError, match="only you can write"):
        export_for(Program.NGINX, source, place, now=utc_now())
    place.chmod(0o755)
    (place / ".somebody.elses.tmp").touch()
    export_for(Program.NGINX, source, place, now=utc_now())
    assert place.stat().st_mode & 0o777 == 0o755
    assert (place / ".somebody.elses.tmp").exists()
    with pytest.raises(StoreError, match="the identity itself"):
        export_for(Program.NGINX, source, source, now=utc_now())


@pytest.mark.parametrize("program", Program)
def test_an_identity_that_cannot_be_a_server_is_refused(program: Program, pki: TestPki, tmp_path: Path) -> None:
    user = pki.directory(SpiffeId.process(TRUST_DOMAIN, Role.USER, "ada"))
    with pytest.raises(CertificateRejected, match="not for a"):
        export_for(program, user, tmp_path / "out", now=utc_now())
    assert not (tmp_path / "out").exists()


def test_the_public_gateway_certificate_is_exported_only_for_nginx(pki: TestPki, tmp_path: Path) -> None:
    public = pki.edge_server()
    export_for(Program.NGINX, public, tmp_path / "nginx", now=utc_now())
    for program in set(Program) - {Program.NGINX}:
        with pytest.raises(CertificateRejected, match="not for a client"):
            export_for(program, public, tmp_path / program, now=utc_now())


def test_an_expired_certificate_is_not_handed_over(pki: TestPki, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="expired"):
        export_for(Program.ENVOY, pki.directory(TASKMANAGER), tmp_path / "out", now=utc_now() + dt.timedelta(days=2))


def test_an_ed25519_key_is_not_exported_for_envoy(tmp_path: Path) -> None:
    pki = TestPki(tmp_path / "pki", PkiConfig(trust_domain=TRUST_DOMAIN, key_algorithm="ed25519"))
    with pytest.raises(CertificateRejected, match="ed25519"):
        export_for(Program.ENVOY, pki.directory(TASKMANAGER), tmp_path / "out", now=utc_now())
    assert not list((tmp_path / "out").iterdir())


BELOW = f"spiffe://{TRUST_DOMAIN}/taskmanager/*"


@pytest.mark.parametrize(
    ("peers", "error"),
    [
        pytest.param(["spiffe://evil.example/taskmanager/tm-1"], InvalidIdentity, id="foreign trust domain"),
        pytest.param([f"spiffe://{TRUST_DOMAIN}.evil/taskmanager/*"], InvalidIdentity, id="longer trust domain"),
        pytest.param([f"spiffe://{TRUST_DOMAIN}/*"], InvalidIdentity, id="everybody"),
        pytest.param([f"spiffe://{TRUST_DOMAIN}/task*"], InvalidIdentity, id="half a role"),
        pytest.param([f'spiffe://{TRUST_DOMAIN}/a"b/*'], InvalidIdentity, id="quotation mark"),
        pytest.param(["taskmanager/tm-1"], InvalidIdentity, id="no SPIFFE ID"),
        pytest.param([BELOW] * (MAX_PEERS + 1), CertificateRejected, id="too many"),
    ],
)
@pytest.mark.parametrize("program", [Program.ENVOY, Program.NGINX])
def test_invalid_peer_patterns_are_refused(
    program: Program, peers: list[str], error: type[SluiceError], pki: TestPki, tmp_path: Path
) -> None:
    with pytest.raises(error):
        export_for(program, pki.directory(TASKMANAGER), tmp_path / "out", now=utc_now(), peers=peers)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("program", WITH_STORES)
def test_peers_are_refused_for_programs_that_cannot_check_names(program: Program, pki: TestPki, tmp_path: Path) -> None:
    with pytest.raises(CertificateRejected, match="cannot tell"):
        export_for(program, pki.directory(TASKMANAGER), tmp_path / "out", now=utc_now(), peers=[BELOW])


def test_envoy_peer_patterns_match_whole_names_or_whole_path_segments(pki: TestPki, tmp_path: Path) -> None:
    source, place = pki.directory(TASKMANAGER), tmp_path / "out"
    export_for(Program.ENVOY, source, place, now=utc_now())
    assert f'matcher: {{"prefix": "spiffe://{TRUST_DOMAIN}/"}}' in (place / "upstream.yaml").read_text()
    export_for(Program.ENVOY, source, place, now=utc_now(), peers=[BELOW, str(TASKMANAGER)])
    text = (place / "downstream.yaml").read_text()
    assert f'{{"prefix": "spiffe://{TRUST_DOMAIN}/taskmanager/"}}' in text
    assert f'{{"exact": "{TASKMANAGER}"}}' in text
    assert text.count("san_type") == 2


def test_a_peer_longer_than_the_certificate_subject_is_refused_for_nginx(pki: TestPki, tmp_path: Path) -> None:
    """A subject holds 64 characters: two long identities may have the same subject."""
    source = pki.directory(TASKMANAGER)
    fits = f"spiffe://{TRUST_DOMAIN}/taskmanager/{'a' * 51}"
    export_for(Program.NGINX, source, tmp_path / "fits", now=utc_now(), peers=[fits, BELOW])
    text = (tmp_path / "fits" / "http.conf").read_text()
    assert f'"~^CN=taskmanager/{"a" * 51}$" 1;' in text
    assert '"~^CN=taskmanager/" 1;' in text
    assert '"~^CN=" 1;' not in text
    with pytest.raises(CertificateRejected, match="longer than the subject"):
        export_for(Program.NGINX, source, tmp_path / "cut", now=utc_now(), peers=[f"{fits}a"])


def test_revoked_serial_numbers_are_written_as_nginx_writes_them(pki: TestPki, tmp_path: Path) -> None:
    """Serial numbers are whole bytes: an odd number of digits gets a leading zero."""
    revocations = RevocationStore(pki.home.pki, pki.config, clock=utc_now)
    end = utc_now() + dt.timedelta(hours=1)
    revocations.revoke(
        AuthorityKind.INTERNAL, [RevocationTarget(0xABC, "", end), RevocationTarget(0xD1, "", end)], Reason.SUPERSEDED
    )
    source = pki.directory(TASKMANAGER)
    export_for(Program.NGINX, source, tmp_path / "nginx", now=utc_now())
    text = (tmp_path / "nginx" / "http.conf").read_text()
    assert "    D1 1;\n    0ABC 1;\n" in text
    export_for(Program.ENVOY, source, tmp_path / "envoy", now=utc_now())
    trust = json.loads((tmp_path / "envoy" / "trust.json").read_text())["resources"][0]["validation_context"]
    assert trust["only_verify_leaf_cert_crl"] is True
    assert "X509 CRL" in trust["crl"]["inline_string"]


def test_openssl_trusts_a_marked_intermediate_but_not_the_other_authority(pki: TestPki, tmp_path: Path) -> None:
    """`openssl verify` runs without -partial_chain, as in programs that do not set it."""
    internal, user = pki.directory(TASKMANAGER), pki.directory(SpiffeId.process(TRUST_DOMAIN, Role.USER, "ada"))
    (tmp_path / "trust.pem").write_bytes(trusted_pem(read_identity(internal)[0].anchors))

    def verifies(anchors: Path, directory: Path) -> bool:
        chain = directory / "chain.pem"
        done = subprocess.run(
            ["openssl", "verify", "-purpose", "sslclient", "-CAfile", anchors, "-untrusted", chain, chain],
            capture_output=True,
            check=False,
        )
        return done.returncode == 0

    assert verifies(tmp_path / "trust.pem", internal)
    assert not verifies(internal / "ca.pem", internal), "the mark is what makes the difference"
    assert not verifies(tmp_path / "trust.pem", user)


def test_a_failing_export_changes_nothing(pki: TestPki, tmp_path: Path) -> None:
    source, place = pki.directory(TASKMANAGER), tmp_path / "out"
    export_for(Program.FLINK, source, place, now=utc_now())
    before = {path: path.read_bytes() for path in place.iterdir()}
    (source / "key.pem").write_bytes((pki.directory(TASKMANAGER) / "key.pem").read_bytes())
    with pytest.raises(StoreError, match="is not the key"):
        export_for(Program.FLINK, source, place, now=utc_now())
    assert {path: path.read_bytes() for path in place.iterdir()} == before
