"""Which names may be certified: none by default, and no wildcard that covers an exception."""

from __future__ import annotations

import pytest

from sluice.core.errors import CertificateRejected
from sluice.pki.acme.config import AcmeConfig
from sluice.pki.acme.identifiers import Identifier, parse_identifier
from sluice.pki.acme.names import NamePolicy, parse_patterns

POLICY = NamePolicy(
    parse_patterns(["www.example.org", "*.internal.example", "10.0.0.0/8"]),
    parse_patterns(["gateway.internal.example", "*.secret.internal.example", "10.9.0.0/16"]),
)


@pytest.mark.parametrize(
    ("kind", "value", "allowed"),
    [
        ("dns", "www.example.org", True),
        ("dns", "a.www.example.org", False),
        ("dns", "*.www.example.org", False),
        ("dns", "example.org", False),
        ("dns", "a.internal.example", True),
        ("dns", "a.b.internal.example", True),
        ("dns", "internal.example", False),
        ("dns", "xinternal.example", False),
        ("dns", "*.apps.internal.example", True),
        ("dns", "gateway.internal.example", False),
        ("dns", "a.gateway.internal.example", True),
        ("dns", "*.internal.example", False),  # would stand for the gateway's name
        ("dns", "a.secret.internal.example", False),
        ("dns", "*.secret.internal.example", False),
        ("dns", "secret.internal.example", True),
        ("dns", "www.other.example", False),
        ("ip", "10.1.2.3", True),
        ("ip", "10.9.2.3", False),
        ("ip", "11.1.2.3", False),
        ("ip", "::1", False),
    ],
)
def test_only_names_that_the_policy_allows_are_certified(kind: str, value: str, *, allowed: bool) -> None:
    assert (POLICY.refusal(parse_identifier(kind, value), None) == "") is allowed


def test_an_empty_policy_certifies_nothing() -> None:
    assert NamePolicy(()).refusal(Identifier("dns", "www.example.org"), None)


def test_an_account_is_limited_to_its_own_names_within_the_policy() -> None:
    name = Identifier("dns", "a.internal.example")
    assert POLICY.refusal(name, ("a.internal.example",)) == ""
    assert POLICY.refusal(name, ("b.internal.example",))
    assert POLICY.refusal(name, ())
    # An account cannot widen the configuration.
    assert POLICY.refusal(Identifier("dns", "www.other.example"), ("*.other.example",))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("dns", "localhost"),
        ("dns", "*"),
        ("dns", "*.example"),
        ("dns", "a.*.example.org"),
        ("dns", "*a.example.org"),
        ("dns", "1.2.3.4"),
        ("dns", "exa mple.org"),
        ("dns", "example.org."),
        ("dns", "exämple.org"),
        ("dns", "a" * 64 + ".example.org"),
        ("dns", "www.example.org\n"),
        ("dns", "www.example.org\0"),
        ("dns", ""),
        ("ip", "010.0.0.1"),
        ("ip", "fe80::1%eth0"),
        ("ip", "0:0:0:0:0:0:0:1"),
        ("ip", "www.example.org"),
    ],
)
def test_a_malformed_identifier_is_refused(kind: str, value: str) -> None:
    with pytest.raises(CertificateRejected):
        parse_identifier(kind, value)


def test_names_are_compared_in_lower_case() -> None:
    assert parse_identifier("dns", "WWW.Example.ORG") == Identifier("dns", "www.example.org")


@pytest.mark.parametrize(
    "settings",
    [
        {"names": ("*.*.example",)},
        {"names": ("http://x",)},
        {"networks": ("10.0.0.1/8",)},
        {"resolvers": ("dns.example.org",)},
        {"resolvers": ("10.0.0.1:0",)},
        {"url": "http://acme.example"},
        {"url": "https://acme.example/"},
        {"url": "https://user@acme.example"},
        {"url": "https://acme.example:x"},
    ],
)
def test_invalid_acme_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"names|networks|resolvers|url"):
        AcmeConfig(**settings)  # type: ignore[arg-type]
