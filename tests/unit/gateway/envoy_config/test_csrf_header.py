"""The CSRF token is the only header with an internal meaning that clients may send."""

from __future__ import annotations

import re

import pytest

from sluice.gateway.credentials.access_tokens import CSRF_HEADER
from sluice.gateway.envoy_config.headers import header_mutations


def removed(name: str) -> bool:
    """Return whether Envoy removes this header before anything reads it."""
    for mutation in header_mutations():
        if mutation.get("remove") == name:
            return True
        rule = mutation.get("remove_on_match")
        matcher = rule["key_matcher"] if isinstance(rule, dict) else {}
        if "prefix" in matcher and name.startswith(matcher["prefix"]):
            return True
        if "safe_regex" in matcher and re.fullmatch(matcher["safe_regex"]["regex"], name):
            return True
    return False


@pytest.mark.parametrize(
    "name",
    [
        "x-sluice-",
        "x-sluice-c",
        "x-sluice-cs",
        "x-sluice-csr",
        "x-sluice-csrf-",
        "x-sluice-csrff",
        "x-sluice-csrx",
        "x-sluice-credential",
        "x-sluice-principal",
        "x-sluice-pass-id",
        "x-sluice-operation",
        "x-sluice-assertion",
        "X-SLUICE-ROLES".lower(),
        "x-forwarded-client-cert",
        "x-real-ip",
    ],
)
def test_internal_headers_from_clients_are_removed(name: str) -> None:
    assert removed(name)


def test_the_csrf_header_from_clients_is_kept() -> None:
    assert not removed(CSRF_HEADER)
