"""Of the headers that mean something inside, clients may send the CSRF token's alone."""

from __future__ import annotations

import re

import pytest

from sluice.gateway.credentials.access_tokens import CSRF_HEADER
from sluice.gateway.envoy_config.headers import header_mutations


def removed(name: str) -> bool:
    """Whether Envoy takes this header away before anything looks at it."""
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
def test_what_means_something_inside_is_removed(name: str) -> None:
    assert removed(name)


def test_the_csrf_token_arrives() -> None:
    assert not removed(CSRF_HEADER)
