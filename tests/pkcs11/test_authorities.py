"""Authorities with keys in SoftHSM, managed by an operator's commands; OpenSSL verifies the results."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.core.home import Home
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.ca.address import CaAddress, read_ca
from sluice.pki.errors import CaUnavailable
from sluice.pki.x509.profiles import AuthorityKind
from tests.command import sluice
from tests.pkcs11.conftest import ROOT, Command, Token
from tests.waiting import until

KINDS = ("edge", "internal", "root")


def labels(token: Token) -> list[str]:
    """The labels of the private keys; each must have a public key with the same label."""
    private = [label for kind, label in token.objects() if kind == "PRIVATE_KEY"]
    assert [label for kind, label in token.objects() if kind == "PUBLIC_KEY"] == private
    return private


def of(*kinds: str) -> list[str]:
    return [f"sluice sluice.local {kind}" for kind in kinds]


def openssl(*arguments: str | Path) -> str:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def verify(home: Path, identity: Path, kind: str = "internal") -> None:
    """Check with OpenSSL that the chain of an identity is valid up to the root."""
    authorities = home / "pki" / "authorities"
    trusted = ("-CAfile", authorities / "root" / "cert.pem", "-untrusted", authorities / kind / "cert.pem")
    assert "OK" in openssl("verify", *trusted, identity / "chain.pem")


@pytest.fixture
def made(good: Command, token: Token, home: Path) -> Path:
    """A home whose three authority keys are in the token."""
    good("pki", "init", "--key", token.uri)
    return home


def test_init_makes_the_keys_in_the_token(made: Path, good: Command, command: Command, token: Token) -> None:
    assert labels(token) == of(*KINDS)
    assert not list(made.rglob("key.pem"))
    for kind in KINDS:
        reference = made / "pki" / "authorities" / kind / "key.uri"
        assert reference.stat().st_mode & 0o777 == 0o600
        assert "87654321" not in reference.read_text()
    authorities = made / "pki" / "authorities"
    for kind in KINDS[:2]:
        openssl("verify", "-CAfile", authorities / "root" / "cert.pem", authorities / kind / "cert.pem")
    again = json.loads(good("pki", "init", "--key", token.uri, "--json").stdout)
    assert (again["created"], sorted(again["tokens"])) == ([], list(KINDS))
    assert labels(token) == of(*KINDS)
    other = command("pki", "init", "--key", token.uri.replace(token.label, "other"))
    assert other.returncode == 1
    assert "its key is not in token 'other'" in other.stderr
    good("pki", "doctor")


def test_certificates_are_issued_renewed_and_revoked_and_crls_are_signed(
    made: Path, good: Command, tmp_path: Path
) -> None:
    worker, edge = tmp_path / "tm-1", tmp_path / "edge"
    good("pki", "issue", "taskmanager/tm-1", "--out", worker)
    good("pki", "issue", "gateway/envoy", "--edge-server", "--dns", "localhost", "--out", edge)
    verify(made, worker)
    verify(made, edge, "edge")
    good("pki", "renew", worker, "--force")
    verify(made, worker)
    serial = openssl("x509", "-noout", "-serial", "-in", worker / "chain.pem").strip().partition("=")[2]
    good("pki", "revoke", "taskmanager/tm-1", "--reason", "key-compromise")
    (lists,) = [path for path in (made / "pki" / "revocation").glob("*/crl.pem") if "internal" in path.parent.name]
    authority = made / "pki" / "authorities" / "internal" / "cert.pem"
    assert "verify OK" in openssl("crl", "-in", lists, "-CAfile", authority, "-noout")
    assert serial in openssl("crl", "-in", lists, "-noout", "-text").replace(":", "").upper()
    good("pki", "crl", "refresh")
    assert good("pki", "verify", edge, "--purpose", "server").returncode == 0


def test_rotation_makes_the_new_key_beside_the_old_one_and_destroys_the_old_one(
    made: Path, good: Command, token: Token, tmp_path: Path
) -> None:
    for kind in ("internal", "root"):
        good("pki", "rotate", "prepare", kind)
        replaced = KINDS if kind == "root" else (kind,)
        assert labels(token) == sorted(of(*KINDS, *replaced))
        good("pki", "rotate", "activate", kind)
        good("pki", "rotate", "finish", kind)
        assert labels(token) == of(*KINDS)
        good("pki", "issue", "taskmanager/tm-1", "--out", tmp_path / kind)
        verify(made, tmp_path / kind)
    good("pki", "rotate", "prepare", "edge")
    good("pki", "rotate", "abort", "edge")
    assert labels(token) == of(*KINDS)


def test_a_failed_rotation_leaves_no_new_key(made: Path, command: Command, token: Token) -> None:
    """The root's reference is damaged: keys made before this was noticed are removed."""
    (made / "pki" / "authorities" / "root" / "key.uri").write_text("pkcs11:token=none")
    assert command("pki", "rotate", "prepare", "internal").returncode == 1
    assert labels(token) == of(*KINDS)


def test_rotation_brings_keys_from_files_into_a_token(good: Command, token: Token, home: Path, tmp_path: Path) -> None:
    good("pki", "init")
    good("pki", "rotate", "prepare", "internal", "--key", token.uri)
    good("pki", "rotate", "activate", "internal")
    good("pki", "rotate", "finish", "internal")
    assert labels(token) == of("internal")
    assert sorted(path.parent.name for path in (home / "pki" / "authorities").rglob("key.pem")) == ["edge", "root"]
    good("pki", "issue", "taskmanager/tm-1", "--out", tmp_path / "tm-1")
    verify(home, tmp_path / "tm-1")


def test_offline_root_and_intermediates_keep_their_keys_in_tokens(
    good: Command, command: Command, token: Token, home: Path
) -> None:
    offline = ("--home", home.with_name("offline"))
    good("pki", "init", "--key", f"root={token.uri}", *offline)
    for kind in ("internal", "edge"):
        good("pki", "authority", "csr", kind, "--output", f"{kind}.csr", "--key", token.uri)
        refused = command("pki", "authority", "csr", kind, "--output", f"{kind}.csr")
        assert "waits for its certificate" in refused.stderr
        good("pki", "authority", "csr", kind, "--output", f"{kind}.csr", "--key", token.uri, "--force")
        good("pki", "authority", "sign", kind, f"{kind}.csr", "--output", f"{kind}.pem", *offline)
        good("pki", "authority", "import", kind, f"{kind}.pem")
    assert labels(token) == of(*KINDS)
    assert not AuthorityStore(Home.at(home).pki).has_key(AuthorityKind.ROOT)
    good("pki", "issue", "taskmanager/tm-1", "--out", home.with_name("tm-1"))
    verify(home, home.with_name("tm-1"))


def test_passphrases_ed25519_and_a_pin_in_the_uri_are_refused_for_tokens(
    command: Command, token: Token, home: Path
) -> None:
    passphrase = home.with_name("passphrase")
    passphrase.write_text("correct horse battery\n")
    passphrase.chmod(0o600)
    refused = command("pki", "init", "--key", token.uri, "--root-passphrase-file", passphrase)
    assert (refused.returncode, "has no passphrase" in refused.stderr) == (1, True)
    refused = command("pki", "init", "--key", token.uri, "--algorithm", "ed25519")
    assert (refused.returncode, "cannot be ed25519" in refused.stderr) == (1, True)
    refused = command("pki", "init", "--key", f"{token.uri}&pin-value=87654321")
    assert refused.returncode == 2
    assert "a PIN in it" in refused.stderr
    assert "87654321" not in refused.stderr
    assert labels(token) == []


def test_backup_reports_that_keys_in_tokens_are_not_included(made: Path, good: Command, token: Token) -> None:
    passphrase = made.with_name("passphrase")
    passphrase.write_text("correct horse battery staple\n")
    passphrase.chmod(0o600)
    opened = ("--passphrase-file", passphrase)
    backup = made.with_name("backup.age")
    left_out = good("backup", "create", backup, *opened).stdout
    for kind in KINDS:
        assert f"the key of the {kind} authority, which is in token '{token.label}'" in left_out
    restored = ("--home", made.with_name("restored"))
    good("backup", "verify", backup, *opened)
    good("backup", "restore", backup, *opened, *restored, "--accept-lost-revocations")
    good("pki", "issue", "taskmanager/tm-1", "--out", made.with_name("tm-1"), *restored)
    verify(made, made.with_name("tm-1"))


async def test_online_authority_signs_with_the_token_and_survives_its_absence_and_a_restart(
    made: Path, token: Token, tmp_path: Path
) -> None:
    """``sluice run ca`` as a process: enrolment, renewal, a token that is away for a while, and a restart."""
    environment = {name: os.environ[name] for name in ("PATH", "SOFTHSM2_CONF")} | {"PYTHONPATH": str(ROOT)}
    home = Home.at(made)

    def start() -> subprocess.Popen[bytes]:
        with (tmp_path / "ca.log").open("ab") as log:
            argv = [sys.executable, "-m", "sluice.cli.main", "run", "ca", "--home", str(made)]
            return subprocess.Popen(argv, cwd=ROOT, env=environment, stdout=log, stderr=log)

    async def address_of(process: subprocess.Popen[bytes]) -> CaAddress:
        def published() -> bool:
            assert process.poll() is None, (tmp_path / "ca.log").read_text()
            with contextlib.suppress(CaUnavailable):
                return read_ca(home).pid == process.pid
            return False

        await until(published, "the CA did not publish its address")
        return read_ca(home)

    async def off_loop(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(sluice, *arguments, stdin=stdin)

    worker = tmp_path / "tm-1"
    process = start()
    try:
        address = await address_of(process)
        made_token = await off_loop("pki", "token", "create", "taskmanager", "tm-1", "--json", "--home", str(made))
        enrolment = "{}:{}".format(*address.enrolment)
        enrol = ("pki", "enrol", "taskmanager", "tm-1", "--ca", enrolment, "--token-file", "-", "--out", str(worker))
        done = await off_loop(*enrol, stdin=json.loads(made_token.stdout)["token"])
        assert done.returncode == 0, done.stderr
        verify(made, worker)
        mutual = "{}:{}".format(*address.mutual)
        renew = ("pki", "renew", str(worker), "--ca", mutual, "--force")
        assert (await off_loop(*renew)).returncode == 0
        away = token.hsm.tokens.with_name("away")
        token.hsm.tokens.rename(away)
        token.hsm.tokens.mkdir()
        refused = await off_loop(*renew)
        assert refused.returncode == 1, refused.stdout
        token.hsm.tokens.rmdir()
        away.rename(token.hsm.tokens)
        again = await off_loop(*renew)
        assert again.returncode == 0, again.stderr
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait, 30)
        process = start()
        mutual = "{}:{}".format(*(await address_of(process)).mutual)
        again = await off_loop("pki", "renew", str(worker), "--ca", mutual, "--force")
        assert again.returncode == 0, again.stderr
        verify(made, worker)
    finally:
        process.kill()
        process.wait()
    log = (tmp_path / "ca.log").read_text()
    assert f"token '{token.label}' is not there" in log
    assert "87654321" not in log
