"""SoftHSM with one token for each test, in a directory of this test run."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sluice.pki.pkcs11.key import TOKEN_KEYS
from sluice.pki.pkcs11.uri import TokenUri
from tests.command import sluice

ROOT = Path(__file__).parents[2]
PIN, SO_PIN = "87654321", "12345678"

Command = Callable[..., subprocess.CompletedProcess[str]]


@dataclass(frozen=True, slots=True)
class SoftHsm:
    """The SoftHSM programs, and the directory of the tokens."""

    util: str
    module: str
    tokens: Path

    def initialize(self, label: str) -> None:
        """Initialize another token."""
        pins = ("--so-pin", SO_PIN, "--pin", PIN)
        subprocess.run(
            [self.util, "--module", self.module, "--init-token", "--free", "--label", label, *pins],
            check=True,
            capture_output=True,
        )


@dataclass(frozen=True, slots=True)
class Token:
    """An empty token, and the file with its PIN."""

    hsm: SoftHsm
    label: str
    pin_file: Path

    @property
    def uri(self) -> str:
        """The URI of the token, as ``--key`` takes it."""
        return f"pkcs11:token={self.label}?module-path={self.hsm.module}&pin-source=file:{self.pin_file}"

    def objects(self) -> list[tuple[str, str]]:
        """The class and label of each key in the token."""
        uri = TokenUri.parse(self.uri)
        return TOKEN_KEYS._sessions.run(
            uri,
            lambda library, session: sorted(
                (str(each.object_class.name), each.label)
                for each in session.handle.get_objects()
                if each.object_class in {library.ObjectClass.PRIVATE_KEY, library.ObjectClass.PUBLIC_KEY}
            ),
        )


@pytest.fixture(scope="session")
def hsm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SoftHsm]:
    """SoftHSM with a configuration of this run, which its module finds through the environment."""
    found = subprocess.run([ROOT / "scripts" / "ensure-softhsm"], check=True, capture_output=True, text=True)
    util, module = found.stdout.split()
    folder = tmp_path_factory.mktemp("softhsm")
    tokens = folder / "tokens"
    tokens.mkdir()
    configuration = folder / "softhsm2.conf"
    configuration.write_text(f"directories.tokendir = {tokens}\nobjectstore.backend = file\nlog.level = ERROR\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTHSM2_CONF", str(configuration))
        yield SoftHsm(util, module, tokens)


_NUMBERS = itertools.count(1)


@pytest.fixture
def token(hsm: SoftHsm, tmp_path: Path) -> Token:
    """A new token for the test."""
    label = f"test-{os.getpid()}-{next(_NUMBERS)}"
    hsm.initialize(label)
    pin_file = tmp_path / "pin"
    pin_file.write_text(f"{PIN}\n")
    pin_file.chmod(0o600)
    return Token(hsm, label, pin_file)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The directory for the test's home."""
    return tmp_path / "home"


@pytest.fixture
def command(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs ``sluice …`` with the home of the test."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return sluice(*arguments, environment={"SLUICE_HOME": str(home), "COLUMNS": "200"})

    return run


@pytest.fixture
def good(command: Command) -> Command:
    """Runs ``sluice …`` with the test's home; the command must succeed."""

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        done = command(*arguments)
        assert done.returncode == 0, (arguments, done.stderr, done.stdout)
        return done

    return run
