"""Identity directories: written completely, replaced safely, read only when the parts match."""

from __future__ import annotations

import datetime as dt
import shutil
import stat
import threading
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

from sluice.core.errors import StoreError
from sluice.pki.config import PkiConfig
from sluice.pki.identities.directory import (
    MAX_PEER_PATTERNS,
    previous_certificates as earlier,
    read_certificates,
    read_identity,
    write_identity,
)
from sluice.pki.identities.renewal import renewal_reason
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.keys import public_key_der
from tests.unit.core.files.test_files import disk_full_beyond

DOMAIN = "sluice.local"
TASKMANAGER = SpiffeId.process(DOMAIN, Role.TASKMANAGER, "tm-1")
JOBMANAGER = SpiffeId.process(DOMAIN, Role.JOBMANAGER, "jm-1")
ACCEPT = [f"spiffe://{DOMAIN}/job/{'a' * 32}/*"]


@pytest.fixture
def issuer(tmp_path: Path) -> LocalIssuer:
    made = LocalIssuer(tmp_path / "pki", PkiConfig(trust_domain=DOMAIN))
    made.ensure_authorities()
    return made


@pytest.fixture
def directory(issuer: LocalIssuer, tmp_path: Path) -> Path:
    issuer.issue_to(tmp_path / "identity", TASKMANAGER, accept=ACCEPT)
    return tmp_path / "identity"


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def assert_keystore_opens(directory: Path) -> None:
    """Check that the password beside the keystore opens it, and that its pair is that of the PEM files."""
    store = load_pkcs12((directory / "identity.p12").read_bytes(), (directory / "identity.p12.pass").read_bytes())
    material, _ = read_identity(directory)
    assert store.key is not None
    assert store.cert is not None
    assert store.cert.certificate == material.leaf
    assert public_key_der(store.key.public_key()) == public_key_der(material.leaf.public_key())
    assert tuple(entry.certificate for entry in store.additional_certs) == material.chain


def test_an_identity_directory_has_the_expected_files_and_modes(directory: Path) -> None:
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
    assert modes == {
        "key.pem": 0o600,
        "chain.pem": 0o644,
        "ca.pem": 0o644,
        "identity.p12": 0o600,
        "identity.p12.pass": 0o600,
        "peers": 0o644,
    }
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert (directory / "peers").read_text() == f"{ACCEPT[0]}\n"
    assert (directory / "key.pem").read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----")
    assert_keystore_opens(directory)


def test_a_renewal_replaces_key_chain_and_keystore_and_keeps_the_password(directory: Path, issuer: LocalIssuer) -> None:
    """A JVM that reads the keystore while it is replaced always has the right password."""
    before = content(directory)
    issuer.issue_to(directory, TASKMANAGER, accept=ACCEPT)
    after = content(directory)
    assert after.pop("previous.pem") in before["chain.pem"]
    assert after.keys() == before.keys()
    assert {name for name in after if after[name] != before[name]} == {"key.pem", "chain.pem", "identity.p12"}
    assert_keystore_opens(directory)


def test_replaced_certificates_are_remembered_until_they_expire(tmp_path: Path) -> None:
    now = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
    issuer = LocalIssuer(tmp_path / "pki", PkiConfig(), clock=lambda: now)
    issuer.ensure_authorities()
    known = []
    for hours in (0, 12, 12, 30):
        now += dt.timedelta(hours=hours)
        issuer.issue_to(tmp_path / "tm", TASKMANAGER)
        known.append(len(earlier(tmp_path / "tm")))
    assert known == [0, 1, 2, 0]
    (tmp_path / "tm" / "previous.pem").write_bytes(b"garbage")
    issuer.issue_to(tmp_path / "tm", TASKMANAGER)
    assert len(earlier(tmp_path / "tm")) == 1, "a damaged file is made anew, and keeps nobody from renewing"


def test_passwords_differ_between_identities(directory: Path, issuer: LocalIssuer, tmp_path: Path) -> None:
    issuer.issue_to(tmp_path / "other", TASKMANAGER)
    assert (directory / "identity.p12.pass").read_bytes() != (tmp_path / "other" / "identity.p12.pass").read_bytes()


def test_the_peers_file_is_removed_when_reissued_without_peers(directory: Path, issuer: LocalIssuer) -> None:
    issuer.issue_to(directory, TASKMANAGER)
    assert not (directory / "peers").exists()


def test_a_directory_replaced_by_a_symbolic_link_is_not_renewed(
    directory: Path, issuer: LocalIssuer, tmp_path: Path
) -> None:
    issuer.issue_to(tmp_path / "attempt-1" / "identity", TASKMANAGER)
    shutil.rmtree(tmp_path / "attempt-1" / "identity")
    (tmp_path / "attempt-1" / "identity").symlink_to(directory)
    before = content(directory)
    with pytest.raises(StoreError, match="symbolic link"):
        issuer.issue_to(tmp_path / "attempt-1" / "identity", TASKMANAGER)
    assert content(directory) == before


def test_files_of_other_programs_in_the_directory_are_kept(directory: Path, issuer: LocalIssuer) -> None:
    """The JVM keeps its connection evidence there."""
    (directory / "connections.jsonl").write_bytes(b"{}\n")
    issuer.issue_to(directory, TASKMANAGER)
    assert (directory / "connections.jsonl").read_bytes() == b"{}\n"


@pytest.mark.parametrize(
    "pattern",
    [
        pytest.param("", id="empty"),
        pytest.param("*", id="everybody"),
        pytest.param("spiffe://*/job/x", id="any-trust-domain"),
        pytest.param("spiffe://sluice.local", id="no-path"),
        pytest.param("spiffe://sluice.local/a\nspiffe://evil.example/*", id="two-lines"),
        pytest.param("https://sluice.local/x", id="other-scheme"),
    ],
)
def test_an_invalid_peer_pattern_or_too_many_of_them_are_refused(
    pattern: str, issuer: LocalIssuer, tmp_path: Path
) -> None:
    with pytest.raises(StoreError, match="pattern"):
        issuer.issue_to(tmp_path / "x", TASKMANAGER, accept=[pattern])
    with pytest.raises(StoreError, match="more than"):
        issuer.issue_to(tmp_path / "x", TASKMANAGER, accept=ACCEPT * (MAX_PEER_PATTERNS + 1))
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("name", ["key.pem", "chain.pem", "ca.pem"])
def test_mixed_or_damaged_set_is_not_read(name: str, directory: Path, issuer: LocalIssuer, tmp_path: Path) -> None:
    issuer.issue_to(tmp_path / "other", TASKMANAGER)
    whole = (directory / name).read_bytes()
    if name != "ca.pem":
        shutil.copy(tmp_path / "other" / name, directory / name)
        with pytest.raises(StoreError, match="is not the key of"):
            read_identity(directory)
    for data in (b"", b"garbage", whole[: len(whole) // 3], whole[:-40]):
        (directory / name).write_bytes(data)
        with pytest.raises(StoreError, match=name):
            read_identity(directory)
    (directory / name).unlink()
    with pytest.raises(StoreError, match=name):
        read_identity(directory)


def test_leaf_is_not_taken_as_a_trust_anchor(directory: Path) -> None:
    """With partial chains every certificate in ca.pem is an anchor: only authorities may be in it."""
    (directory / "ca.pem").write_bytes((directory / "chain.pem").read_bytes())
    with pytest.raises(StoreError, match="not an authority's"):
        read_identity(directory)


def test_parts_that_do_not_belong_together_are_not_written(
    directory: Path, issuer: LocalIssuer, tmp_path: Path
) -> None:
    issuer.issue_to(tmp_path / "other", TASKMANAGER)
    before = content(directory)
    with pytest.raises(StoreError, match="is not the key of"):
        write_identity(
            directory,
            key_pem=(tmp_path / "other" / "key.pem").read_bytes(),
            chain_pem=before["chain.pem"],
            ca_pem=before["ca.pem"],
        )
    assert content(directory) == before


@pytest.mark.parametrize("limit", [10, 100, 300, 800, 1200])
def test_a_full_disk_leaves_the_previous_identity_unchanged(
    limit: int, directory: Path, issuer: LocalIssuer, tmp_path: Path
) -> None:
    before = content(directory)
    with disk_full_beyond(limit), pytest.raises(StoreError, match="cannot write"):
        issuer.issue_to(directory, TASKMANAGER, accept=ACCEPT)
    assert content(directory) == before
    with disk_full_beyond(limit), pytest.raises(StoreError, match="cannot write"):
        issuer.issue_to(tmp_path / "new", TASKMANAGER)
    assert not (tmp_path / "new").exists()
    assert [path.name for path in tmp_path.glob(".new*")] == []


def test_writers_at_the_same_time_leave_one_whole_set(directory: Path, issuer: LocalIssuer) -> None:
    failures: list[Exception] = []

    def renew() -> None:
        try:
            for _ in range(5):
                issuer.issue_to(directory, TASKMANAGER, accept=ACCEPT)
        except StoreError as error:
            failures.append(error)

    writers = [threading.Thread(target=renew) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert failures == []
    assert len(content(directory)) == 7
    serials = {each.serial_number for each in [*read_certificates(directory / "chain.pem")[:1], *earlier(directory)]}
    assert len(serials) == 21, "each certificate that was issued can be revoked"
    assert_keystore_opens(directory)


def test_the_renewal_reason_names_half_life_clock_and_wrong_identity(directory: Path) -> None:
    now = dt.datetime.now(dt.UTC)
    assert renewal_reason(directory, TASKMANAGER, now) == ""
    assert "half of its life" in renewal_reason(directory, TASKMANAGER, now + dt.timedelta(hours=13))
    assert "not valid yet" in renewal_reason(directory, TASKMANAGER, now - dt.timedelta(hours=1))
    assert str(TASKMANAGER) in renewal_reason(directory, JOBMANAGER, now)
    (directory / "key.pem").write_bytes(b"")
    assert "key.pem" in renewal_reason(directory, TASKMANAGER, now)
