"""Names and the addresses that stand for them."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from sluice.runtime.sandbox.network.names import names as names_module
from sluice.runtime.sandbox.network.names.names import Names, normal


def test_a_name_keeps_its_addresses_and_shares_them_with_no_other_name() -> None:
    names = Names()
    first, second = names.addresses("a.example"), names.addresses("b.example")

    assert names.addresses("a.example") == first
    assert first is not None
    assert second is not None
    assert not set(first) & set(second)
    assert [names.name_of(each) for each in (*first, *second)] == ["a.example"] * 2 + ["b.example"] * 2


def test_an_address_that_was_not_assigned_has_no_name() -> None:
    names = Names()
    names.addresses("a.example")

    for address in ("198.18.1.1", "198.18.0.0", "198.19.255.255", "192.0.2.1", "127.0.0.1", "100::1", "::1"):
        assert names.name_of(ip_address(address)) is None


def test_at_the_limit_a_new_name_gets_no_addresses_and_known_names_keep_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names_module, "MAX_NAMES", 2)
    names = Names()
    kept = [names.addresses(name) for name in ("a", "b")]

    assert names.addresses("c") is None
    assert [names.addresses(name) for name in ("a", "b")] == kept


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("API.Example.com.", "api.example.com"),
        ("_sip._tcp.example.com", "_sip._tcp.example.com"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("localhost", "localhost"),
    ],
)
def test_host_names_are_normalized(name: str, wanted: str) -> None:
    assert normal(name) == wanted


@pytest.mark.parametrize(
    "name", ["", ".", "a..b", "-a.example", "a b", "a/b", "a\\032b", "ü.example", "a" * 64, "a." * 130]
)
def test_a_malformed_host_name_has_no_normal_form(name: str) -> None:
    assert normal(name) is None
