"""Destinations: accepted only in spellings that every reader understands alike."""

from __future__ import annotations

import ipaddress

import pytest

from sluice.gateway.authz.destinations import (
    UnclearDestination,
    parse_authority,
    parse_host,
    parse_network,
    parse_target,
)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("api.example.com:443", "api.example.com", 443),
        ("API.Example.COM:443", "api.example.com", 443),
        ("xn--bcher-kva.example:1", "xn--bcher-kva.example", 1),
        ("my_bucket.s3.example:65535", "my_bucket.s3.example", 65535),
        ("127.0.0.1:80", "127.0.0.1", 80),
        ("[::1]:80", "::1", 80),
        ("[2001:DB8:0:0::7]:80", "2001:db8::7", 80),
        ("[::ffff:10.0.0.1]:80", "10.0.0.1", 80),
        ("[::ffff:a9fe:a9fe]:80", "169.254.169.254", 80),
        ("localhost:80", "localhost", 80),
    ],
)
def test_an_authority_is_parsed_into_a_normalized_host_and_port(text: str, host: str, port: int) -> None:
    wanted = parse_authority(text)
    assert (str(wanted.host), wanted.port) == (host, port)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":443",
        "api.example.com",
        "api.example.com:",
        "api.example.com:0",
        "api.example.com:65536",
        "api.example.com:0443",
        "api.example.com:+443",
        "api.example.com: 443",
        "api.example.com:٤٤٣",
        "api.example.com.:443",
        "api..example.com:443",
        ".example.com:443",
        "-api.example.com:443",
        "api-.example.com:443",
        "*.example.com:443",
        "bücher.example:443",
        "api。example.com:443",
        "api.example.com\r\nx: y:443",
        "user@api.example.com:443",
        "api.example.com/path:443",
        "api%2eexample.com:443",
        "0177.0.0.1:80",
        "0x7f.0.0.1:80",
        "0x7f000001:80",
        "2130706433:80",
        "017700000001:80",
        "127.1:80",
        "127.0.0.1.:80",
        "127.0.0.0x1:80",
        "1.2.3.4.5:80",
        "256.1.1.1:80",
        "٣.٣.٣.٣:80",
        "example.1:80",
        "example.0x1f:80",
        "[127.0.0.1]:80",
        "[api.example.com]:80",
        "::1:80",
        "[::1:80",
        "[fe80::1%eth0]:80",
        "[fe80::1%25eth0]:80",
        "fe80::1%1:80",
        f"{'a' * 64}.example:80",
        f"{'a.' * 130}example:80",
    ],
)
def test_an_ambiguous_or_malformed_authority_is_refused(text: str) -> None:
    with pytest.raises(UnclearDestination):
        parse_authority(text)


def test_an_ipv6_host_is_parsed_without_brackets_only() -> None:
    assert parse_host("::1") == ipaddress.ip_address("::1")
    with pytest.raises(UnclearDestination):
        parse_host("[::1]")


@pytest.mark.parametrize(
    ("text", "covered", "others"),
    [
        ("api.example.com:443", ["api.example.com:443"], ["api.example.com:80", "x.api.example.com:443"]),
        (
            "*.example.com:443",
            ["a.example.com:443", "a.b.example.com:443"],
            ["example.com:443", "aexample.com:443", "a.example.com.evil.test:443"],
        ),
        ("API.example.com:8000-8010", ["api.example.com:8000", "api.example.com:8010"], ["api.example.com:8011"]),
        ("api.example.com:*", ["api.example.com:1", "api.example.com:65535"], ["other.example.com:1"]),
        ("10.1.0.0/16:5432", ["10.1.2.3:5432", "[::ffff:10.1.2.3]:5432"], ["10.2.0.1:5432", "api.example.com:5432"]),
        ("192.0.2.7:80", ["192.0.2.7:80"], ["192.0.2.8:80"]),
        ("[fd00::7]:443", ["[fd00::7]:443"], ["[fd00::8]:443"]),
        ("[fd00:1::/32]:443", ["[fd00:1::9]:443"], ["[fd00:2::9]:443"]),
        ("0.0.0.0/0:80", ["1.1.1.1:80"], ["10.0.0.1:80", "127.0.0.1:80", "169.254.169.254:80", "100.100.100.200:80"]),
        (
            "[::/0]:80",
            ["[2606:4700::1]:80"],
            ["[::1]:80", "[64:ff9b::7f00:1]:80", "[2002:7f00:1::]:80", "[fe80::1]:80"],
        ),
        ("169.254.0.0/16:80", ["169.254.1.1:80"], ["169.254.169.254:80", "169.254.170.2:80"]),
        ("169.254.169.254:80", ["169.254.169.254:80", "[::ffff:169.254.169.254]:80"], ["169.254.169.253:80"]),
        ("127.0.0.0/8:80", ["127.1.2.3:80"], ["128.0.0.1:80"]),
    ],
)
def test_a_target_covers_only_matching_destinations(text: str, covered: list[str], others: list[str]) -> None:
    target = parse_target(text)
    assert [each for each in covered if not target.covers(parse_authority(each))] == []
    assert [each for each in others if target.covers(parse_authority(each))] == []


@pytest.mark.parametrize(
    "text",
    [
        "api.example.com",
        "*:443",
        "a*.example.com:443",
        "*.10.0.0.1:443",
        "**.example.com:443",
        "10.1.0.1/16:5432",
        "10.1.0.0/33:5432",
        "fd00::/8:443",
        "[10.0.0.0/8]:443",
        "[::ffff:10.0.0.0/104]:443",
        "api.example.com:443-80",
        "api.example.com:443,80",
        "https://api.example.com:443",
        "api.example.com.:443",
        "0177.0.0.1:80",
    ],
)
def test_an_ambiguous_target_is_refused(text: str) -> None:
    with pytest.raises(UnclearDestination):
        parse_target(text)


def test_a_network_is_parsed_and_a_name_is_refused() -> None:
    assert str(parse_network("10.0.0.0/8")) == "10.0.0.0/8"
    with pytest.raises(UnclearDestination):
        parse_network("example.com")
