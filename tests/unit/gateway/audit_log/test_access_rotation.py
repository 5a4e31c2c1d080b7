"""The proxy's access log is rotated by size. Nothing is lost; a proxy without an answer is retried."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.gateway.audit_log.access_rotation import AccessRotation, make_access_log
from sluice.gateway.errors import EnvoyFailed


class Proxy:
    """A fake proxy that keeps writing to the file that it opened last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab")
        self.away = False

    async def reopen_logs(self) -> None:
        if self.away:
            raise EnvoyFailed("no answer")
        self._file.close()
        self._file = self._path.open("ab")

    def write(self, text: str) -> None:
        self._file.write(text.encode())
        self._file.flush()

    def close(self) -> None:
        self._file.close()


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Proxy]:
    path = tmp_path / "access.jsonl"
    make_access_log(path)
    proxy = Proxy(path)
    yield proxy
    proxy.close()


def rotated(directory: Path) -> tuple[str, str]:
    """Return the content of the renamed file and of the current file."""
    (old,) = directory.glob("access.jsonl.*")
    path = directory / "access.jsonl"
    assert path.stat().st_mode & 0o777 == 0o600
    return old.read_text(), path.read_text()


async def test_a_large_access_log_is_renamed_and_reopened(tmp_path: Path, proxy: Proxy) -> None:
    rotation = AccessRotation(tmp_path / "access.jsonl", proxy, max_bytes=10)
    proxy.write("one\n")
    assert not await rotation.step()
    proxy.write("two three\n")
    assert await rotation.step()
    proxy.write("four\n")
    assert not await rotation.step()
    assert rotated(tmp_path) == ("one\ntwo three\n", "four\n")


async def test_the_rotation_is_retried_if_the_proxy_does_not_answer(tmp_path: Path, proxy: Proxy) -> None:
    rotation = AccessRotation(tmp_path / "access.jsonl", proxy, max_bytes=1)
    proxy.write("one\n")
    proxy.away = True
    for _ in range(3):
        with pytest.raises(EnvoyFailed):
            await rotation.step()
    proxy.write("two\n")
    proxy.away = False
    assert await rotation.step()
    proxy.write("three\n")
    assert rotated(tmp_path) == ("one\ntwo\n", "three\n")


async def test_a_missing_access_log_is_not_rotated(tmp_path: Path, proxy: Proxy) -> None:
    rotation = AccessRotation(tmp_path / "access.jsonl", proxy, max_bytes=1)
    (tmp_path / "access.jsonl").unlink()
    assert not await rotation.step()
