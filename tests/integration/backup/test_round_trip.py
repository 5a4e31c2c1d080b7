"""A restored home has the contents of the home that was backed up.

A bad backup restores nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import tarfile
from pathlib import Path

import pyrage
import pytest

from sluice.cli.backup.contents import is_known
from sluice.cli.backup.encryption import ARMOUR_END
from sluice.cli.backup.passphrase import decrypt_text
from sluice.core.home import Home
from sluice.gateway.audit_log.log import AuditLog, audit_file
from sluice.gateway.audit_log.verification import read_records, verify_log
from sluice.gateway.credentials.token_file import TokenStore
from sluice.gateway.credentials.users import UserStore
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.ledger.file import ledger_path, read_ledger
from sluice.pki.x509.profiles import AuthorityKind
from tests.command import sluice
from tests.integration.backup.lived_in import (
    ENDED,
    PASSWORD,
    RUNNING,
    SECRET,
    LivedIn,
    authority_of,
    read_secret_of,
    recovered,
)

ACCEPT = "--accept-lost-revocations"


def files_of(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_restored_home_has_everything_that_was_backed_up(lived_in: LivedIn) -> None:
    backup = lived_in.back_up()
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    home = lived_in.restore(backup, ACCEPT)
    for kind in AuthorityKind:
        old, new = (AuthorityStore(each.pki).load(kind) for each in (lived_in.home, home))
        assert (old.certificate, old.key.private_numbers()) == (new.certificate, new.key.private_numbers())  # type: ignore[union-attr]  # all are ECDSA
    before, after = (list(read_ledger(ledger_path(each.pki))) for each in (lived_in.home, home))
    assert after[:-1] == before
    assert after[-1].event == "restored"
    assert TokenStore(home).read().records == TokenStore(lived_in.home).read().records
    assert UserStore(home).read().check("carol", PASSWORD) is not None
    assert read_secret_of(home) == SECRET
    found = recovered(home)
    assert [job.summary.id for job in found.ended] == [ENDED]
    assert [(job.job_id, job.damage) for job in found.accepted] == [(RUNNING, "")]
    assert not found.damaged


def test_audit_log_continues_with_a_record_of_the_restoration(lived_in: LivedIn) -> None:
    backup = lived_in.back_up()
    kept = lived_in.root / "kept.json"
    with kept.open("w") as file:
        file.write(sluice("audit-log", "checkpoint", "--home", lived_in.home.root).stdout)
    home = lived_in.restore(backup, ACCEPT)
    log = home.gateway / "audit"
    records = [each for each in read_records(log) if each.event == "act"]
    assert [each.kind for each in records[-2:]] == ["backup.begun", "backup.restored"]
    assert isinstance(records[-1].detail, dict)
    assert isinstance(records[-2].detail, dict)
    assert records[-1].detail["backup"] == records[-2].detail["id"]
    assert verify_log(log).unsigned == 0
    # One that knows more than the backup did, as `backup.created` came after it, finds out.
    seen = sluice("audit-log", "verify", "--home", home.root, "--checkpoint", kept)
    assert seen.returncode == 1
    assert "signed" in seen.stderr or "rewritten" in seen.stderr


def test_a_backup_contains_no_process_identities_sessions_or_join_tokens(lived_in: LivedIn) -> None:
    for name in ("pki/identities/taskmanager/tm-1/key.pem", "pki/ca/tokens/1.json", "gateway/sessions.json"):
        path = lived_in.home.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    for name in ("gateway/pass-keys/1-2.pem", "token", "run/cluster.json", "blobs/x", "ha/origin", "ha/epoch"):
        path = lived_in.home.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    restored = files_of(lived_in.restore(lived_in.back_up(), ACCEPT).root)
    gone = (
        "pki/identities",
        "pki/ca/tokens",
        "gateway/sessions",
        "gateway/pass-keys",
        "token",
        "run",
        "blobs",
        "ha/origin",
    )
    assert not [path for path in restored if path.startswith(gone)]
    assert int(restored["ha/epoch"]) > 1_700_000_000


def test_audit_log_of_another_envoy_is_kept(lived_in: LivedIn) -> None:
    part = lived_in.home.envoy("envoy-2")
    with contextlib.closing(AuditLog(audit_file(part))) as log:
        log.event("test.made", "local:test")
    home = lived_in.restore(lived_in.back_up(), ACCEPT)
    restored = home.envoy("envoy-2").gateway / "audit"
    assert [record.kind for record in read_records(restored) if record.event == "act"] == ["test.made"]
    verify_log(restored)


def test_the_backup_knows_every_file_of_a_home(lived_in: LivedIn) -> None:
    lived_in.back_up()
    assert not [path for path in files_of(lived_in.home.root) if not is_known(path)]


def test_other_age_and_tar_programs_can_open_a_backup(lived_in: LivedIn, tmp_path: Path) -> None:
    backup = lived_in.back_up()
    identity = pyrage.x25519.Identity.from_str(lived_in.key.read_text().splitlines()[1])
    plain = tmp_path / "plain.tar"
    plain.write_bytes(pyrage.decrypt(backup.read_bytes(), [identity]))
    with tarfile.open(plain) as archive:
        names = archive.getnames()
        assert names[-1] == "manifest.json"
        listed = json.load(archive.extractfile("manifest.json"))  # type: ignore[arg-type]  # it is there
    assert [each["path"] for each in listed["members"]] == names[:-1]


def test_the_passphrase_opens_a_backup_and_another_passphrase_does_not(lived_in: LivedIn) -> None:
    right, wrong, open_to_all = (lived_in.root / name for name in ("right", "wrong", "open"))
    for path, text in (
        (right, "correct horse battery\n"),
        (wrong, "something else\n"),
        (open_to_all, "correct horse\n"),
    ):
        path.write_text(text)
        path.chmod(0o600)
    open_to_all.chmod(0o644)
    backup = lived_in.root / "backup"
    arguments = ("backup", "create", backup, "--home", lived_in.home.root, "--passphrase-file")
    assert sluice(*arguments, open_to_all).returncode == 1
    assert sluice(*arguments, right).returncode == 0
    assert not any(word in backup.read_bytes() for word in (b"correct horse", b"ledger", b"PRIVATE KEY"))
    shown = sluice("backup", "verify", backup, "--passphrase-file", right)
    assert shown.returncode == 0, shown.stderr
    refused = sluice("backup", "verify", backup, "--passphrase-file", wrong)
    assert refused.returncode == 1
    assert "the passphrase is another one" in refused.stderr
    # Its key is an age file, and so is the rest.
    key, _, rest = backup.read_bytes().partition(ARMOUR_END)
    identity = decrypt_text(key + ARMOUR_END, "correct horse battery").decode()
    assert pyrage.decrypt(rest, [pyrage.x25519.Identity.from_str(identity)])


def test_a_short_passphrase_a_malformed_recipient_and_no_key_at_all_are_refused(lived_in: LivedIn) -> None:
    short = lived_in.root / "short"
    short.write_text("secret\n")
    short.chmod(0o600)
    target = lived_in.root / "backup"
    arguments = ("backup", "create", target, "--home", lived_in.home.root)
    assert sluice(*arguments, "--passphrase-file", short).returncode == 1
    assert sluice(*arguments).returncode == 2
    assert sluice(*arguments, "--recipient", "age1nonsense").returncode == 2
    assert not target.exists()


def test_another_identity_does_not_open_a_backup(lived_in: LivedIn) -> None:
    other = lived_in.root / "other.txt"
    sluice("backup", "key", "--output", other)
    assert stat.S_IMODE(other.stat().st_mode) == 0o600
    refused = sluice("backup", "verify", lived_in.back_up(), "--identity", other)
    assert refused.returncode == 1
    assert "does not open" in refused.stderr


def test_a_backup_with_another_sha256_than_expected_is_refused(lived_in: LivedIn) -> None:
    backup, home = lived_in.back_up(), lived_in.root / "restored"
    with_key = (backup, "--identity", lived_in.key, "--sha256")
    assert sluice("backup", "verify", *with_key, hashlib.sha256(backup.read_bytes()).hexdigest()).returncode == 0
    assert sluice("backup", "verify", *with_key, "0" * 64).returncode == 1
    assert sluice("backup", "restore", *with_key, "0" * 64, "--home", home, ACCEPT).returncode == 1
    assert not home.exists()
    assert not list(lived_in.root.glob(".*"))


@pytest.mark.parametrize("kind", ["cut", "cut between chunks", "changed", "longer", "empty", "text"])
def test_nothing_is_restored_from_a_modified_backup(lived_in: LivedIn, kind: str) -> None:
    backup = lived_in.back_up()
    data = bytearray(backup.read_bytes())
    match kind:
        case "cut":
            del data[-1:]
        case "cut between chunks":
            begin = re.search(rb"\n--- [^\n]+\n", bytes(data))
            assert begin is not None
            del data[begin.end() + 16 :]
        case "changed":
            data[len(data) // 2] ^= 1
        case "longer":
            data += b"x"
        case "empty":
            data.clear()
        case "text":
            data[:] = b"-----BEGIN AGE ENCRYPTED FILE-----\nnothing\n"
    backup.write_bytes(data)
    for verb in (("verify",), ("show",), ("restore", "--home", lived_in.root / "restored", ACCEPT)):
        refused = sluice("backup", verb[0], backup, "--identity", lived_in.key, *verb[1:])
        assert refused.returncode == 1, verb
        assert "do:" in refused.stderr or "error:" in refused.stderr
    assert not (lived_in.root / "restored").exists()
    assert not list(lived_in.root.glob(".*"))


def test_backup_of_a_damaged_ledger_is_not_restored(lived_in: LivedIn) -> None:
    path = ledger_path(lived_in.home.pki)
    path.write_bytes(path.read_bytes().replace(b"tm-1", b"tm-9"))
    backup = lived_in.back_up()
    assert sluice("backup", "verify", backup, "--identity", lived_in.key).returncode == 1
    home = lived_in.root / "restored"
    refused = sluice("backup", "restore", backup, "--identity", lived_in.key, ACCEPT, "--home", home)
    assert refused.returncode == 1
    assert "ledger line 1 was changed" in refused.stderr
    assert not home.exists()


def test_restore_never_overwrites_a_home_and_create_never_overwrites_a_file(lived_in: LivedIn) -> None:
    backup = lived_in.back_up()
    before = files_of(lived_in.home.root)
    refused = sluice("backup", "restore", backup, "--identity", lived_in.key, ACCEPT, "--home", lived_in.home.root)
    assert refused.returncode == 1
    assert "is not empty" in refused.stderr
    assert files_of(lived_in.home.root) == before
    again = sluice("backup", "create", backup, "--home", lived_in.home.root, "--recipient", lived_in.recipient)
    assert again.returncode == 1
    inside = lived_in.home.root / "backup"
    assert (
        sluice("backup", "create", inside, "--home", lived_in.home.root, "--recipient", lived_in.recipient).returncode
        == 1
    )
    assert not inside.exists()


def test_a_backup_is_restored_into_an_empty_directory_or_replaces_a_home_that_is_kept_aside(lived_in: LivedIn) -> None:
    backup = lived_in.back_up()
    empty = lived_in.root / "empty"
    empty.mkdir()
    assert lived_in.restore(backup, ACCEPT, to=empty).pki.is_dir()
    (lived_in.home.root / "mine").write_text("kept")
    lived_in.restore(backup, "--replace", to=lived_in.home.root)
    assert not (lived_in.home.root / "mine").exists()
    (aside,) = lived_in.root.glob("home.replaced-*")
    assert (aside / "mine").read_text() == "kept"
    assert stat.S_IMODE(lived_in.home.root.stat().st_mode) == 0o700
    assert not list(lived_in.root.glob(".*"))


def test_no_home_of_a_running_authority_is_replaced(lived_in: LivedIn) -> None:
    backup = lived_in.back_up()
    with authority_of(lived_in.home):
        arguments = ("backup", "restore", backup, "--identity", lived_in.key, "--replace", "--home", lived_in.home.root)
        refused = sluice(*arguments)
    assert refused.returncode == 1
    assert "a process is running" in refused.stderr
    assert sluice(*arguments).returncode == 0


def test_leftovers_of_a_killed_restoration_are_removed_but_not_a_possible_home(lived_in: LivedIn) -> None:
    backup = lived_in.back_up()
    left, home = (
        lived_in.root / ".restored.restore.aaaaaaaaaaaa.tmp",
        lived_in.root / ".restored.restore.bbbbbbbbbbbb.tmp",
    )
    for each in (left, home):
        each.mkdir()
    (left / ".restoring").touch()
    (home / "sluice.toml").touch()
    lived_in.restore(backup, ACCEPT)
    assert not left.exists()
    assert home.exists()


def test_symlinks_and_pipes_in_a_home_are_not_backed_up(lived_in: LivedIn) -> None:
    secret = lived_in.root / "elsewhere"
    secret.write_bytes(b"# not the cluster's")
    (lived_in.home.root / "sluice.toml").symlink_to(secret)
    (lived_in.home.root / "ha" / "storage" / "jobs" / ("3" * 32)).symlink_to("/etc")
    os.mkfifo(lived_in.home.root / "ha" / "storage" / "jobs" / "pipe")
    shown = sluice("backup", "show", lived_in.back_up(), "--identity", lived_in.key, "--files", "--json")
    paths = {each["path"] for each in json.loads(shown.stdout)["files"]}
    assert "ha/storage/identity" in paths
    assert not {path for path in paths if "sluice.toml" in path or "3" * 32 in path or "pipe" in path}


def test_the_backup_of_a_home_with_zookeeper_lists_what_it_does_not_include(lived_in: LivedIn) -> None:
    (lived_in.home.root / "sluice.toml").write_text(
        '[ha]\nmode = "zookeeper"\nstorage = "/mnt/ha"\nzookeeper_hosts = ["zk:2281"]\njobmanagers = ["jobmanager-1"]\n'
        '[secrets]\nkeys = "/etc/sluice/keys"\n'
    )
    shown = json.loads(sluice("backup", "show", lived_in.back_up(), "--identity", lived_in.key, "--json").stdout)
    text = "\n".join(shown["not_included"])
    assert "in ZooKeeper below /sluice, and in /mnt/ha" in text
    assert "the keys of secrets, in /etc/sluice/keys" in text


def test_a_backup_of_a_missing_home_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "key"
    recipient = json.loads(sluice("backup", "key", "--output", key, "--json").stdout)["recipient"]
    refused = sluice("backup", "create", tmp_path / "b", "--home", tmp_path / "none", "--recipient", recipient)
    assert refused.returncode == 1
    assert not (tmp_path / "none").exists()
    assert not Home.at(tmp_path / "none").root.exists()
