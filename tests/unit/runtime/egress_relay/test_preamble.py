"""The proxy header that the relay receives at the start of a connection."""

from __future__ import annotations

import pytest

from sluice.runtime.egress_relay.errors import RelayFailed
from sluice.runtime.egress_relay.preamble import preamble

CAPABILITY = "ab" * 32


def test_the_proxy_header_has_the_capability_and_the_destination() -> None:
    data = preamble(CAPABILITY, "allowed.test:443")
    assert data[:12] == b"\r\n\r\n\x00\r\nQUIT\n"
    assert data[12:14] == b"\x21\x11"
    assert int.from_bytes(data[14:16], "big") == len(data) - 16
    assert data[28:] == b"\xe0\x00\x40" + CAPABILITY.encode() + b"\xe1\x00\x10allowed.test:443"


@pytest.mark.parametrize("authority", ["a:1", "xn--bcher.test:443", "10.0.0.1:65535", "[::1]:80", "[2001::7]:4"])
def test_a_valid_destination_is_put_into_the_proxy_header(authority: str) -> None:
    assert preamble(CAPABILITY, authority).endswith(authority.encode())


@pytest.mark.parametrize(
    "authority",
    [
        "",
        "a",
        "a:",
        ":1",
        "a:0",
        "a:b",
        "a b:1",
        "a:1\r\nHost: b",
        "a\r\n:1",
        "bücher.test:1",
        "::1:80",
        "a/b:1",
        f"{'a' * 300}:1",
    ],
)
def test_a_malformed_destination_is_refused(authority: str) -> None:
    with pytest.raises(RelayFailed):
        preamble(CAPABILITY, authority)


@pytest.mark.parametrize("capability", ["", "abab", "AB" * 32, "xds", "g" * 64])
def test_a_malformed_capability_is_refused_without_repeating_it(capability: str) -> None:
    with pytest.raises(RelayFailed) as error:
        preamble(capability, "a:1")
    assert not capability or capability not in str(error.value)
