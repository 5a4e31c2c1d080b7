"""A release: its contents, its signature, and what is refused.

OpenSSH's ssh-keygen and coreutils' sha256sum verify it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parents[3]
SIGNER = "releases@example.com"
NAMESPACE = "sluice-release"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide a directory with a clone (``tree``), a key (``key``) and ``allowed_signers``."""
    place = tmp_path_factory.mktemp("release")
    subprocess.run(["git", "clone", "--quiet", ROOT, place / "tree"], check=True, timeout=120)
    for name in ("key", "other"):
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(place / name)]
        subprocess.run(make, check=True, timeout=60)
    public = (place / "key.pub").read_text()
    (place / "allowed_signers").write_text(f'{SIGNER} namespaces="{NAMESPACE}" {public}')
    return place


@pytest.fixture(scope="module")
def release(place: Path) -> Path:
    """The directory of a release."""
    made = run(place, place / "made" / "release", place / "key")
    assert made.returncode == 0, made.stderr
    return place / "made" / "release"


def run(place: Path, to: Path, key: Path) -> subprocess.CompletedProcess[str]:
    """Make a release of the clone."""
    script = place / "tree" / "scripts" / "make-release"
    return subprocess.run([script, to, key], capture_output=True, text=True, timeout=500, check=False)


def is_signed(place: Path, sums: bytes, signature: Path) -> bool:
    """Whether the right key has signed ``sums`` for a release."""
    verify = ["ssh-keygen", "-Y", "verify", "-f", str(place / "allowed_signers"), "-I", SIGNER, "-n", NAMESPACE]
    done = subprocess.run([*verify, "-s", str(signature)], input=sums, capture_output=True, timeout=60, check=False)
    return done.returncode == 0


def are_the_files(release: Path) -> bool:
    """Whether the files are those of ``SHA256SUMS``."""
    check = ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"]
    return subprocess.run(check, cwd=release, capture_output=True, timeout=60, check=False).returncode == 0


def test_a_release_has_all_its_files_signed_and_nothing_else(place: Path, release: Path) -> None:
    sums = (release / "SHA256SUMS").read_text()
    named = {line.split("  ")[1] for line in sums.splitlines()}
    assert {path.name for path in release.iterdir()} == named | {"SHA256SUMS", "SHA256SUMS.sig"}
    assert {name.rpartition(".")[2] for name in named} == {"whl", "gz", "json"}
    assert are_the_files(release)
    assert is_signed(place, sums.encode(), release / "SHA256SUMS.sig")


def test_an_altered_file_or_list_of_digests_is_noticed(place: Path, release: Path) -> None:
    (wheel,) = release.glob("*.whl")
    sound = wheel.read_bytes()
    try:
        wheel.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
        assert not are_the_files(release)
    finally:
        wheel.write_bytes(sound)
    sums = (release / "SHA256SUMS").read_bytes()
    assert not is_signed(place, sums.replace(b"a", b"b", 1), release / "SHA256SUMS.sig")


@pytest.mark.parametrize(("key", "namespace"), [("other", NAMESPACE), ("key", "file")])
def test_a_signature_by_another_key_or_for_another_purpose_is_not_accepted(
    place: Path, release: Path, tmp_path: Path, key: str, namespace: str
) -> None:
    """A signature by another key, and one by the right key in another namespace."""
    sums = tmp_path / "SHA256SUMS"
    sums.write_bytes((release / "SHA256SUMS").read_bytes())
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-f", place / key, "-n", namespace, sums], check=True, timeout=60)
    assert not is_signed(place, sums.read_bytes(), tmp_path / "SHA256SUMS.sig")


def test_another_build_gives_the_same_digests(place: Path, release: Path, tmp_path: Path) -> None:
    made = run(place, tmp_path / "again", place / "other")
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "again" / "SHA256SUMS").read_bytes() == (release / "SHA256SUMS").read_bytes()


def test_a_release_with_an_uncommitted_file_is_refused(place: Path, tmp_path: Path) -> None:
    stray = place / "tree" / "pki" / "stray.py"
    stray.touch()
    try:
        made = run(place, tmp_path / "release", place / "key")
    finally:
        stray.unlink()
    assert made.returncode == 1
    assert "not what is committed" in made.stderr
    assert not list(tmp_path.iterdir())


def test_a_release_outside_a_git_repository_is_refused(place: Path, tmp_path: Path) -> None:
    history = place / "tree" / ".git"
    aside = history.rename(place / "history")
    try:
        made = run(place, tmp_path / "release", place / "key")
    finally:
        aside.rename(history)
    assert made.returncode != 0
    assert "not a git repository" in made.stderr
    assert not list(tmp_path.iterdir())


def test_an_interrupted_release_leaves_nothing(place: Path, tmp_path: Path) -> None:
    script = place / "tree" / "scripts" / "make-release"
    with subprocess.Popen([script, tmp_path / "release", place / "key"], start_new_session=True) as process:
        deadline = time.monotonic() + 60
        while not list(tmp_path.iterdir()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(60) != 0
    assert not list(tmp_path.iterdir())


def test_an_existing_release_is_never_overwritten(place: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    made = run(place, tmp_path / "kept", place / "key")
    assert made.returncode == 1
    assert "is there already" in made.stderr


def test_a_release_without_a_usable_key_fails_and_leaves_nothing(place: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("no key")
    broken.chmod(0o600)
    for key, told in ((tmp_path / "none", "cannot be read"), (broken, "is no SSH key")):
        made = run(place, tmp_path / "to" / "release", key)
        assert made.returncode != 0
        assert told in made.stderr
        assert not (tmp_path / "to").exists() or not list((tmp_path / "to").iterdir())
