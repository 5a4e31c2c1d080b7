"""What a job's process sees of its identity, and where it keeps its checkpoints."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sluice.pki.spiffe_id import SpiffeId
from sluice.runtime.node.job_checkpoints import own_checkpoints
from sluice.runtime.node.job_identity import FILES, JobIdentity
from sluice.runtime.sandbox import IsolationConfig, Sandbox, SandboxRefused
from tests.hostile import TRUST_DOMAIN, TestPki

JOB = "0123456789abcdef" * 2
DRIVER = SpiffeId.driver(TRUST_DOMAIN, JOB)


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    """The real sandbox; when running as root, each job has its own uid."""
    return Sandbox.prepare(IsolationConfig())


@pytest.fixture
def identity(tmp_path: Path) -> Path:
    """The identity directory of a driver."""
    pki = TestPki(tmp_path / "pki")
    pki.issuer.issue_to(tmp_path / "driver-1" / "identity", DRIVER, accept=[f"spiffe://{TRUST_DOMAIN}/job/{JOB}/*"])
    return tmp_path / "driver-1" / "identity"


def check_shown(identity: Path, shown: JobIdentity, uid: int | None) -> None:
    """Check that the process sees its identity, alone can read the key, and cannot replace any file."""
    names = [name for name in FILES if (identity / name).exists()]
    assert {"key.pem", "chain.pem", "ca.pem", "peers"} <= set(names)
    for name in names:
        assert (shown.visible_directory / name).read_bytes() == (identity / name).read_bytes()
    info = (shown.visible_directory / "key.pem").stat()
    assert (info.st_uid, stat.S_IMODE(info.st_mode)) == (os.geteuid() if uid is None else uid, 0o600)
    assert shown.visible_directory.stat().st_uid == os.geteuid()
    assert not stat.S_IMODE(shown.visible_directory.stat().st_mode) & 0o022


def test_a_job_process_sees_each_new_generation_of_its_identity(
    identity: Path, sandbox: Sandbox, tmp_path: Path
) -> None:
    shown, uid = JobIdentity(identity, sandbox, JOB), sandbox.uid(JOB)
    assert (shown.visible_directory == identity) == (uid is None)
    shown.refresh()
    check_shown(identity, shown, uid)
    before = (shown.visible_directory / "key.pem").read_bytes()
    TestPki(tmp_path / "other").issuer.issue_to(identity, DRIVER, accept=[f"spiffe://{TRUST_DOMAIN}/job/{JOB}/*"])
    shown.refresh()
    check_shown(identity, shown, uid)
    assert (shown.visible_directory / "key.pem").read_bytes() != before
    assert [path.name for path in shown.visible_directory.iterdir() if path.name.endswith(".tmp")] == []


def test_a_removed_identity_file_is_no_longer_shown_to_the_job(identity: Path, sandbox: Sandbox) -> None:
    (identity / "crl.pem").write_text("a list")
    shown = JobIdentity(identity, sandbox, JOB)
    shown.refresh()
    assert (shown.visible_directory / "crl.pem").read_text() == "a list"
    (identity / "crl.pem").unlink()
    shown.refresh()
    assert not (shown.visible_directory / "crl.pem").exists()


def test_the_checkpoint_directory_of_a_job_is_owned_by_its_user(sandbox: Sandbox, tmp_path: Path) -> None:
    restored = tmp_path / "checkpoints" / JOB / "query"
    restored.mkdir(parents=True)
    (restored / "metadata").write_text("from a savepoint")
    (directory,) = own_checkpoints(f"file://{tmp_path}/checkpoints/{JOB}", sandbox, JOB)
    assert directory == tmp_path / "checkpoints" / JOB
    uid = sandbox.uid(JOB)
    owner = os.geteuid() if uid is None else uid
    assert {path.stat().st_uid for path in (directory, restored, restored / "metadata")} == {owner}
    assert directory.parent.stat().st_uid == os.geteuid()
    assert own_checkpoints(f"file://{tmp_path}/checkpoints/{JOB}", sandbox, JOB) == (directory,)


@pytest.mark.parametrize("url", ["", f"s3a://bucket/{JOB}", f"hdfs://host/{JOB}"])
def test_checkpoints_outside_the_local_file_system_need_no_directory(sandbox: Sandbox, url: str) -> None:
    assert own_checkpoints(url, sandbox, JOB) == ()


@pytest.mark.parametrize("path", ["", "/", "/other", "/ffff", f"/{JOB}/..", f"/{JOB}?x", f"host/{JOB}"])
def test_a_checkpoint_directory_that_is_not_of_the_job_is_refused(sandbox: Sandbox, tmp_path: Path, path: str) -> None:
    where = f"file://{path}" if path.startswith("host") else f"file://{tmp_path}{path}"
    with pytest.raises(SandboxRefused):
        own_checkpoints(where, sandbox, JOB)


def test_a_link_in_the_place_of_the_checkpoints_is_refused(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / JOB).symlink_to(tmp_path / "secret")
    with pytest.raises(SandboxRefused):
        own_checkpoints(f"file://{tmp_path}/{JOB}", sandbox, JOB)
    assert (tmp_path / "secret").stat().st_uid == os.geteuid()
