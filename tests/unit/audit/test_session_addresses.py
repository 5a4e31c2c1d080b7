"""A session's address is in a file that its job can write."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.audit import discovery
from sluice.runtime.spark.driver.connect.address import published_port


@pytest.mark.parametrize("content", [b'{"port":"x"}', b"\xff", b'{"x":' + b"[" * 3500, b"[" * 1_000_000])
def test_a_hostile_address_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "connect.json").write_bytes(content)
    assert published_port(tmp_path) == 0
    assert discovery._session_port(tmp_path) == 0


def test_an_address_is_read(tmp_path: Path) -> None:
    (tmp_path / "connect.json").write_bytes(b'{"port":15002}')
    assert published_port(tmp_path) == 15002
    assert discovery._session_port(tmp_path) == 15002
