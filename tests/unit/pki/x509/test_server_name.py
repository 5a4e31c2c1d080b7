"""Names of servers in certificates, matched as RFC 9525 says."""

from __future__ import annotations

import pytest

from sluice.pki.x509.server_name import matches


@pytest.mark.parametrize(
    ("pattern", "host", "right"),
    [
        ("a.example.org", "a.example.org", True),
        ("A.Example.org.", "a.example.org", True),
        ("a.example.org", "b.example.org", False),
        ("example.org", "a.example.org", False),
        ("*.example.org", "a.example.org", True),
        ("*.example.org", "example.org", False),
        ("*.example.org", "a.b.example.org", False),
        ("*.example.org", ".example.org", False),
        ("*.org", "example.org", False),
        ("*", "example", False),
        ("a*.example.org", "ab.example.org", False),
        ("*a.example.org", "ba.example.org", False),
        ("a.*.org", "a.example.org", False),
        ("*.*.org", "a.example.org", False),
    ],
)
def test_wildcard_stands_for_one_whole_label(pattern: str, host: str, *, right: bool) -> None:
    assert matches(pattern, host) is right
