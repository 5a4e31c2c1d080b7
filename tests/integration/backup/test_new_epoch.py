"""Restoring an earlier state undoes no revocation.

Nothing from before the restoration can renew, sign in or be replayed.
"""

from __future__ import annotations

import datetime as dt
import json
import shutil
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from sluice.core.clock import utc_now
from sluice.core.files import write_secret
from sluice.core.home import Home
from sluice.gateway.credentials.revocations import Revocations
from sluice.gateway.credentials.token_file import TokenStore
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.ca.token_store import TokenStore as JoinTokens
from sluice.pki.errors import CertificateSuperseded, EnrolmentRefused
from sluice.pki.identities.join_tokens import mint
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.revocation.crl import Reason
from sluice.pki.revocation.crl_files import install_crls
from sluice.pki.revocation.store import RevocationStore, RevocationTarget
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.csr import new_csr
from tests.command import sluice
from tests.integration.backup.lived_in import (
    CONFIG,
    EDGE,
    INTERNAL,
    OTHER,
    WORKER,
    LivedIn,
    authority_of,
    enrol,
    leaf_of,
    revoke,
)

ACCEPT = "--accept-lost-revocations"
LATER = SpiffeId.process(CONFIG.trust_domain, Role.TASKMANAGER, "tm-3")


def revocations(home: Home) -> RevocationStore:
    return RevocationStore(home.pki, CONFIG, clock=utc_now)


def survivor(lived_in: LivedIn) -> Path:
    """Return an identity directory of another machine, with the current CRLs of the internal authorities."""
    directory = lived_in.root / "survivor"
    if not directory.exists():
        LocalIssuer(lived_in.home, CONFIG).issue_to(
            directory, SpiffeId.process(CONFIG.trust_domain, Role.JOBMANAGER, "j")
        )
    lists = revocations(lived_in.home).lists()
    install_crls(
        directory, b"".join(each.pem for each in lists if "internal" in each.issuer.rfc4514_string()), utc_now()
    )
    return directory


def edge_list(lived_in: LivedIn) -> Path:
    current = revocations(lived_in.home).current(EDGE)
    assert current is not None
    path = lived_in.root / "edge-list.pem"
    path.write_bytes(current.pem)
    return path


def gateway_file(lived_in: LivedIn) -> Path:
    path = lived_in.root / "revocations.jsonl"
    shutil.copy(lived_in.home.gateway / "revocations.jsonl", path)
    return path


def rotate(home: Home) -> None:
    """Rotate the internal authority; leave out identities that have not joined again."""
    for verb in (("prepare",), ("activate",), ("finish", "--force", str(WORKER))):
        done = sluice("pki", "rotate", *verb, "internal", "--home", home.root)
        assert done.returncode == 0, done.stderr


def refused(lived_in: LivedIn, backup: Path, *options: str | Path) -> str:
    done = sluice(
        "backup", "restore", backup, "--home", lived_in.root / "restored", "--identity", lived_in.key, *options
    )
    assert done.returncode == 1
    assert not (lived_in.root / "restored").exists()
    return done.stderr


def test_certificates_older_than_the_restoration_cannot_renew_and_a_new_one_can(lived_in: LivedIn) -> None:
    backup = lived_in.back_up()
    with authority_of(lived_in.home) as authority:  # a thief with the old key was refused here
        newer = leaf_of(authority.renew(lived_in.worker, new_csr(WORKER)[1]))
    unknown = enrol(lived_in.home, LATER)
    home = lived_in.restore(backup, ACCEPT)
    with authority_of(home) as authority:
        for certificate, identity in ((lived_in.worker, WORKER), (newer, WORKER), (unknown, LATER)):
            with pytest.raises(CertificateSuperseded, match="older than the restoration"):
                authority.renew(certificate, new_csr(identity)[1])
            with pytest.raises(CertificateSuperseded):
                authority.require_newest(certificate)
    joined = enrol(home, WORKER)
    with authority_of(home) as authority:
        renewed = leaf_of(authority.renew(joined, new_csr(WORKER)[1]))
        authority.require_newest(renewed)
        with pytest.raises(CertificateSuperseded):
            authority.renew(lived_in.worker, new_csr(WORKER)[1])
    assert len({each.serial_number for each in (lived_in.worker, newer, unknown, joined, renewed)}) == 5


def test_certificates_noted_before_the_backup_cannot_renew_after_the_restoration(lived_in: LivedIn) -> None:
    """The next authority takes in the notes and must not treat them as newer than the restoration."""
    directory = lived_in.root / "by-hand"
    LocalIssuer(lived_in.home, CONFIG).issue_to(directory, LATER)
    certificate = x509.load_pem_x509_certificates((directory / "chain.pem").read_bytes())[0]
    home = lived_in.restore(lived_in.back_up(), ACCEPT)
    with authority_of(home) as authority, pytest.raises(CertificateSuperseded):
        authority.renew(certificate, new_csr(LATER)[1])


def test_a_join_token_used_after_the_backup_is_refused_after_the_restoration(lived_in: LivedIn) -> None:
    record, text = mint(LATER, AuthorityStore(lived_in.home.pki).certificate(INTERNAL), now=utc_now())
    JoinTokens(lived_in.home.pki).add(record, now=utc_now())
    backup = lived_in.back_up()
    with authority_of(lived_in.home) as authority:
        authority.enrol(text, new_csr(LATER)[1])
    with authority_of(lived_in.restore(backup, ACCEPT)) as authority, pytest.raises(EnrolmentRefused):
        authority.enrol(text, new_csr(LATER)[1])


def test_a_restoration_without_revocation_evidence_is_refused_and_names_what_would_be_valid_again(
    lived_in: LivedIn,
) -> None:
    backup = lived_in.back_up()
    told = refused(lived_in, backup)
    for each in ("internal authority", "edge authority", "API tokens", "--revocations", ACCEPT):
        assert each in told
    told = refused(lived_in, backup, "--revocations", survivor(lived_in))
    assert "certificates of the internal authority" not in told
    assert "certificates of the edge authority" in told
    told = refused(lived_in, backup, "--revocations", survivor(lived_in), "--revocations", edge_list(lived_in))
    assert "certificates of" not in told.split("do:")[0]
    assert "API tokens" in told
    empty = lived_in.root / "nothing"
    empty.mkdir()
    assert "has no revocations of this cluster" in refused(lived_in, backup, "--revocations", empty)
    assert "there is no" in refused(lived_in, backup, "--revocations", lived_in.root / "absent")


def test_revocations_made_after_the_backup_are_recovered_from_surviving_sources(lived_in: LivedIn) -> None:
    backup = lived_in.back_up()
    unknown = enrol(lived_in.home, LATER)
    revoke(lived_in.home, lived_in.worker, WORKER)
    revoke(lived_in.home, unknown, LATER)
    TokenStore(lived_in.home).revoke(lived_in.token[0].id)
    published = revocations(lived_in.home).current(INTERNAL)
    assert published is not None
    sources = (survivor(lived_in), edge_list(lived_in), gateway_file(lived_in))
    shutil.rmtree(lived_in.home.root)
    home = lived_in.restore(backup, *(part for each in sources for part in ("--revocations", each)))
    store = revocations(home)
    assert all(store.is_revoked(INTERNAL, each.serial_number) for each in (lived_in.worker, lived_in.revoked, unknown))
    assert store.barred(INTERNAL, OTHER) is not None
    assert store.barred(INTERNAL, WORKER) is not None, "the ledger says whose certificate that was"
    current = store.current(INTERNAL)
    assert current is not None
    assert current.number > published.number
    assert unknown.serial_number in current.revoked
    # Who has the last list of before takes the new one.
    directory = lived_in.root / "survivor"
    assert install_crls(directory, current.pem, utc_now())
    assert Revocations.of(home).is_revoked(("token", lived_in.token[0].id))


def test_the_crl_number_continues_above_every_crl_that_may_have_been_published(lived_in: LivedIn) -> None:
    backup = lived_in.back_up()
    for _ in range(5):
        RevocationStore(lived_in.home.pki, CONFIG, clock=utc_now).refresh(INTERNAL, force=True)
    lost = revocations(lived_in.home).current(INTERNAL)
    home = lived_in.restore(backup, ACCEPT)
    first = revocations(home).current(INTERNAL)
    assert lost is not None
    assert first is not None
    assert first.number > lost.number
    again = lived_in.restore(lived_in.back_up("second"), ACCEPT, to=lived_in.root / "again")
    second = revocations(again).current(INTERNAL)
    assert second is not None
    assert second.number >= first.number


def test_a_crl_that_is_forged_or_of_another_cluster_is_refused(
    lived_in: LivedIn, tmp_path_factory: pytest.TempPathFactory
) -> None:
    backup = lived_in.back_up()
    other = LivedIn(tmp_path_factory.mktemp("other"))
    foreign = survivor(other)
    told = refused(lived_in, backup, "--revocations", foreign)
    assert "authorities were replaced after this backup" in told
    # The name of ours, the key of somebody else.
    current = revocations(lived_in.home).current(INTERNAL)
    assert current is not None
    crl = bytearray(current.der)
    crl[-5] ^= 1
    forged = lived_in.root / "forged.pem"
    forged.write_bytes(x509.load_der_x509_crl(bytes(crl)).public_bytes(Encoding.PEM))
    assert "not signed by its issuer" in refused(lived_in, backup, "--revocations", forged)


def test_an_unsigned_revocation_record_only_adds_revocations(lived_in: LivedIn) -> None:
    """A compromised machine may supply a forged record: it must hide no revocation and use up no CRL numbers."""
    backup = lived_in.back_up()
    (own,) = lived_in.home.pki.glob("revocation/internal-*")
    copy = lived_in.root / "copy" / own.name
    copy.mkdir(parents=True)
    entry = {"serial": "abc", "revoked_at": "2026-01-01T00:00:00Z", "reason": "superseded"}
    (copy / "revoked.json").write_text(json.dumps({"number": 1 << 200, "revoked": [entry]}))
    told = refused(lived_in, backup, "--revocations", copy.parent)
    assert "certificates of the internal authority" in told
    home = lived_in.restore(backup, ACCEPT, "--revocations", copy.parent)
    current = revocations(home).current(INTERNAL)
    assert current is not None
    assert current.number < 1 << 40
    assert {0xABC, lived_in.revoked.serial_number} <= set(current.revoked)


@pytest.mark.parametrize(
    "entry",
    [
        {"serial": "-1", "revoked_at": "2026-01-01T00:00:00Z", "reason": "superseded"},
        {"serial": "f" * 41, "revoked_at": "2026-01-01T00:00:00Z", "reason": "superseded"},
        {"serial": "1", "revoked_at": "2026-01-01T00:00:00", "reason": "superseded"},
        {"serial": "x", "revoked_at": "2026-01-01T00:00:00Z", "reason": "superseded"},
        {"serial": "1", "revoked_at": "2026-01-01T00:00:00Z", "reason": "because"},
    ],
)
def test_a_revocation_record_from_which_no_crl_can_be_signed_is_refused(
    lived_in: LivedIn, entry: dict[str, str]
) -> None:
    (own,) = lived_in.home.pki.glob("revocation/internal-*")
    copy = lived_in.root / "copy" / own.name
    copy.mkdir(parents=True)
    (copy / "revoked.json").write_text(json.dumps({"number": 5, "revoked": [entry]}))
    assert "has no revocations of this cluster" in refused(
        lived_in, lived_in.back_up(), ACCEPT, "--revocations", copy.parent
    )


def test_restoring_a_home_with_only_the_root_authority_needs_no_revocation_evidence(lived_in: LivedIn) -> None:
    home = Home.at(lived_in.root / "root-only")
    shutil.copytree(lived_in.home.pki / "authorities" / "root", home.pki / "authorities" / "root")
    made = lived_in.root / "root-backup"
    done = sluice("backup", "create", made, "--home", home.root, "--recipient", lived_in.recipient)
    assert done.returncode == 0, done.stderr
    assert (lived_in.restore(made).pki / "authorities" / "root" / "key.pem").exists()


def test_an_expired_crl_of_a_lost_home_still_revokes(lived_in: LivedIn) -> None:
    backup = lived_in.back_up()
    long_ago = utc_now() - dt.timedelta(days=40)
    old = RevocationStore(lived_in.home.pki, CONFIG, clock=lambda: long_ago)
    old.revoke(INTERNAL, [RevocationTarget.of(lived_in.worker, str(WORKER))], Reason.KEY_COMPROMISE)
    record = lived_in.root / "expired.pem"
    shutil.copy(next(lived_in.home.pki.glob("revocation/internal-*/crl.pem")), record)
    home = lived_in.restore(backup, ACCEPT, "--revocations", record)
    assert revocations(home).is_revoked(INTERNAL, lived_in.worker.serial_number)


def test_a_crl_older_than_the_backup_does_not_count_as_evidence(lived_in: LivedIn) -> None:
    early = survivor(lived_in)
    revoke(lived_in.home, lived_in.worker, WORKER)
    backup = lived_in.back_up()
    assert "certificates of the internal authority" in refused(lived_in, backup, "--revocations", early)
    home = lived_in.restore(backup, ACCEPT, "--revocations", early)
    assert revocations(home).is_revoked(INTERNAL, lived_in.worker.serial_number)


def test_a_surviving_gateway_revocation_file_takes_back_no_revocation_of_the_backup(lived_in: LivedIn) -> None:
    backup = lived_in.back_up()
    file = lived_in.root / "revocations.jsonl"
    write_secret(file, b"")
    Revocations(file).restore(("token", lived_in.gone[0].id))
    home = lived_in.restore(backup, ACCEPT, "--revocations", file)
    assert Revocations.of(home).is_revoked(("token", lived_in.gone[0].id))


def test_the_replaced_home_is_used_as_the_newest_source_of_revocations(lived_in: LivedIn) -> None:
    backup = lived_in.back_up()
    revoke(lived_in.home, lived_in.worker, WORKER)
    TokenStore(lived_in.home).revoke(lived_in.token[0].id)
    lived_in.restore(backup, "--replace", to=lived_in.home.root)
    store = revocations(lived_in.home)
    assert store.is_revoked(INTERNAL, lived_in.worker.serial_number)
    assert store.barred(INTERNAL, WORKER) is not None
    assert Revocations.of(lived_in.home).is_revoked(("token", lived_in.token[0].id))


def test_a_backup_from_before_an_authority_rotation_is_detected(lived_in: LivedIn) -> None:
    backup = lived_in.back_up()
    rotate(lived_in.home)
    lived_in.refresh()
    told = refused(lived_in, backup, "--revocations", lived_in.home.root)
    assert "authorities were replaced after this backup" in told
    assert lived_in.restore(backup, ACCEPT).pki.is_dir()


def test_authorities_can_be_rotated_right_after_a_restoration(lived_in: LivedIn) -> None:
    """This is what the how-to recommends when revocations are lost."""
    home = lived_in.restore(lived_in.back_up(), ACCEPT)
    before = AuthorityStore(home.pki).certificate(INTERNAL)
    rotate(home)
    assert AuthorityStore(home.pki).certificate(INTERNAL) != before
