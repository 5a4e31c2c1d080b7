"""Addresses of listeners, as people write them."""

from __future__ import annotations

import pytest

from sluice.pki.inspect.live.address import (
    MAX_ADDRESS_CHARACTERS,
    Address,
    InvalidAddress,
    looks_like_address,
)


@pytest.mark.parametrize(
    ("text", "address", "shown", "server_name"),
    [
        ("localhost:8443", Address("localhost", 8443), "localhost:8443", "localhost"),
        ("10.0.0.1:1", Address("10.0.0.1", 1), "10.0.0.1:1", ""),
        ("[::1]:65535", Address("::1", 65535), "[::1]:65535", ""),
        ("https://cluster.example", Address("cluster.example", 443), "cluster.example:443", "cluster.example"),
        ("https://cluster.example:8443/v1/jobs", Address("cluster.example", 8443), "cluster.example:8443", None),
        ("tls://[::1]:7", Address("::1", 7), "[::1]:7", ""),
        ("unix:/run/a.sock", Address(path="/run/a.sock"), "unix:/run/a.sock", ""),
        ("unix:///run/a.sock", Address(path="/run/a.sock"), "unix:/run/a.sock", ""),
    ],
)
def test_a_listener_address_is_parsed(text: str, address: Address, shown: str, server_name: str | None) -> None:
    assert looks_like_address(text)
    parsed = Address.parse(text)
    assert (parsed, str(parsed)) == (address, shown)
    assert parsed.server_name == (address.host if server_name is None else server_name)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost",
        "localhost:0",
        "localhost:65536",
        "host name:1",
        "https://",
        "https://ada:secret@host",
        "https://host:x",
        "tls://host",
        "unix:",
        "unix:/a\0b",
        "h:1" + " " * MAX_ADDRESS_CHARACTERS,
    ],
)
def test_a_malformed_address_is_refused_without_revealing_secrets(text: str) -> None:
    with pytest.raises(InvalidAddress) as refused:
        Address.parse(text)
    assert "secret" not in str(refused.value)


def test_a_path_does_not_look_like_an_address() -> None:
    assert not looks_like_address("pki/identities/jobmanager-1/chain.pem")
