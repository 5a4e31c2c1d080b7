"""Logs are read in pieces that join to the whole, whatever is in them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from sluice.runtime.node.log_files import open_log, read_log, shorten_log


def read_all(path: Path, limit: int) -> str:
    """Read the log piece by piece and return its text."""
    pieces, offset = [], 0
    while True:
        chunk = read_log(path, offset, limit)
        assert chunk.offset == offset
        pieces.append(chunk.data)
        if chunk.end:
            return "".join(pieces)
        assert chunk.next_offset > offset, "no progress"
        offset = chunk.next_offset


@given(text=st.text(max_size=200), limit=st.integers(4, 40))
def test_pieces_of_text_join_to_the_text(tmp_path_factory: pytest.TempPathFactory, text: str, limit: int) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    path.write_bytes(text.encode())
    assert read_all(path, limit) == text


@given(data=st.binary(max_size=200), limit=st.integers(1, 40))
def test_a_log_of_any_bytes_can_be_read_to_its_end(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, limit: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    path.write_bytes(data)
    read_all(path, limit)


def test_a_log_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    chunk = read_log(tmp_path / "none", 7, 100)
    assert (chunk.data, chunk.offset, chunk.next_offset, chunk.end) == ("", 7, 7, True)


def test_reading_a_growing_log_continues_at_the_last_offset(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with open_log(path) as log:
        log.write(b"one\n")
        log.flush()
        first = read_log(path, 0, 100)
        log.write(b"two\n")
    assert first.end
    assert read_log(path, first.next_offset, 100).data == "two\n"


def test_a_log_is_private(tmp_path: Path) -> None:
    open_log(tmp_path / "log").close()
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o600


def test_shortening_a_log_keeps_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"a" * 100 + b"the end")
    shorten_log(path, keep=7)
    assert path.read_bytes() == b"the end"
    shorten_log(path, keep=7)
    shorten_log(tmp_path / "none")
    assert path.read_bytes() == b"the end"
