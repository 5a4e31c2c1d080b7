"""Pointers as files, which several threads read and remove."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.core import read_bounded
from sluice.runtime.ha import embedded
from sluice.runtime.ha.errors import StorageUnavailable


async def test_a_pointer_that_is_removed_while_it_is_read_does_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pointers = embedded.FilePointers(tmp_path)
    await pointers.create("jobs", "a", b"1")

    def removed_first(path: Path, limit: int) -> bytes:
        path.unlink()
        return read_bounded(path, limit)

    monkeypatch.setattr(embedded, "read_bounded", removed_first)
    assert await pointers.get("jobs", "a") is None


async def test_a_pointer_that_cannot_be_read_is_not_taken_for_missing(tmp_path: Path) -> None:
    pointers = embedded.FilePointers(tmp_path)
    (tmp_path / "jobs" / "a").mkdir()
    with pytest.raises(StorageUnavailable):
        await pointers.get("jobs", "a")
