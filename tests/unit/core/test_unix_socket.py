"""Unix sockets: where they may be, who can open them, and what is never removed."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from sluice.core.errors import StoreError
from sluice.core.unix_socket import listen_unix


def _modes(path: Path) -> tuple[int, int]:
    return path.parent.stat().st_mode & 0o777, path.stat().st_mode & 0o777


@pytest.mark.parametrize(("shared", "modes"), [(False, (0o700, 0o600)), (True, (0o711, 0o666))])
def test_private_and_shared_unix_sockets_have_their_modes(tmp_path: Path, shared: bool, modes: tuple[int, int]) -> None:
    path = tmp_path / "run" / "agent.sock"
    with contextlib.closing(listen_unix(path, shared=shared)):
        assert _modes(path) == modes


def test_the_socket_of_a_dead_process_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "run" / "agent.sock"
    listen_unix(path, shared=False).close()
    with (
        contextlib.closing(listen_unix(path, shared=False)),
        contextlib.closing(socket.socket(socket.AF_UNIX)) as probe,
    ):
        probe.connect(str(path))


def test_a_socket_in_use_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "run" / "agent.sock"
    with (
        contextlib.closing(listen_unix(path, shared=False)),
        pytest.raises(StoreError, match="another process listens"),
    ):
        listen_unix(path, shared=False)


def test_a_regular_file_at_the_socket_path_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    path.write_text("precious")
    with pytest.raises(StoreError, match="is in the way"):
        listen_unix(path, shared=False)
    assert path.read_text() == "precious"


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        pytest.param(0o777, "others can write", id="anybody writes"),
        pytest.param(0o731, "others can write", id="the group writes"),
        pytest.param(0o1777, "others can write", id="as the temporary directory"),
        pytest.param(0o700, "cannot pass through", id="private"),
    ],
)
def test_a_shared_socket_in_an_unsuitable_directory_is_refused(tmp_path: Path, mode: int, reason: str) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    directory.chmod(mode)
    with pytest.raises(StoreError, match=reason):
        listen_unix(directory / "agent.sock", shared=True)
    assert directory.stat().st_mode & 0o7777 == mode
