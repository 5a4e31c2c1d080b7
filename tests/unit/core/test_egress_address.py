"""The address at which TaskManagers find the gateway's listener for jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.core.egress import EgressConfig, EgressMisconfigured, egress_address, egress_endpoint, split_address
from sluice.core.home import Home


@pytest.mark.parametrize(
    ("text", "address"),
    [("gateway.internal:8447", ("gateway.internal", 8447)), ("10.0.0.5:1", ("10.0.0.5", 1)), ("[::1]:80", ("::1", 80))],
)
def test_the_egress_address_is_split_into_host_and_port(text: str, address: tuple[str, int]) -> None:
    assert split_address(text) == address


@pytest.mark.parametrize(
    "text", ["gateway", ":80", "gateway:", "gateway:0", "gateway:65536", "::1:80", "[x]:80", "a:b"]
)
def test_a_malformed_egress_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not host:port"):
        EgressConfig(address=text)


def test_the_egress_address_comes_from_the_configuration_or_the_home(tmp_path: Path) -> None:
    home = Home.at(tmp_path).create()
    with pytest.raises(EgressMisconfigured):
        egress_address(EgressConfig(), home)
    path = egress_endpoint(home)
    path.parent.mkdir()
    path.write_text('{"host": "127.0.0.1", "port": 4711}')
    assert egress_address(EgressConfig(), home) == ("127.0.0.1", 4711)
    assert egress_address(EgressConfig(address="gateway:1"), home) == ("gateway", 1)
    path.write_text("{}")
    with pytest.raises(EgressMisconfigured):
        egress_address(EgressConfig(), home)


@pytest.mark.parametrize(
    "setting", [{"port": 65536}, {"port": -1}, {"idle_timeout": 0}, {"max_seconds": -1}, {"max_connections": 0}]
)
def test_egress_settings_out_of_range_are_refused(setting: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(setting))):
        EgressConfig(**setting)  # type: ignore[arg-type]
