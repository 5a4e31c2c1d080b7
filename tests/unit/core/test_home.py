"""The layout of a home."""

from __future__ import annotations

from pathlib import Path

from sluice.core.home import Home


def test_sockets_of_a_home_with_a_short_path_stay_inside() -> None:
    home = Home.at(Path("/srv/sluice"))
    assert home.sockets == home.run / "sock"


def test_an_empty_socket_directory_outside_of_the_home_is_removed(tmp_path: Path) -> None:
    home = Home.at(tmp_path / ("long" * 20)).create()
    assert not home.sockets.is_relative_to(home.root)
    home.metric_sockets.mkdir()
    home.remove_socket_directory()
    home.remove_socket_directory()
    assert not home.sockets.exists()


def test_a_socket_directory_in_use_stays(tmp_path: Path) -> None:
    home = Home.at(tmp_path / ("long" * 20)).create()
    (home.sockets / "rest.sock").touch()
    home.remove_socket_directory()
    assert (home.sockets / "rest.sock").exists()
