"""What a restore knows about revocations that are later than its backup."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cli.backup.evidence import GATEWAY, gather, uncovered
from sluice.core.clock import utc_now
from sluice.core.home import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """An extracted backup with API tokens."""
    found = Home.at(tmp_path / "restored")
    found.gateway.mkdir(parents=True)
    (found.gateway / "tokens.json").touch()
    return found


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """The home that is to be replaced, without revocations at the gateway."""
    (tmp_path / "left" / "gateway" / "audit").mkdir(parents=True)
    return tmp_path / "left"


def test_a_home_without_a_revocation_file_has_revoked_nothing(home: Home, left: Path) -> None:
    assert uncovered(home, gather(home, [left], utc_now())) == []


@pytest.mark.parametrize(("content", "mode"), [(b"damaged\n", 0o600), (b"", 0o644)], ids=["damaged", "open to others"])
def test_an_unreadable_revocation_file_covers_nothing(home: Home, left: Path, content: bytes, mode: int) -> None:
    """Otherwise tokens that it revokes would be valid again after the restore."""
    file = left / "gateway" / "revocations.jsonl"
    file.write_bytes(content)
    file.chmod(mode)
    assert uncovered(home, gather(home, [left], utc_now())) == [GATEWAY]
