"""Tokens of jobs: which audiences they may have."""

from __future__ import annotations

import pytest

from sluice.gateway.authz.audiences import AudienceRuling
from sluice.gateway.authz.egress import EgressSubject
from sluice.gateway.authz.policy import Policy
from sluice.gateway.authz.policy_file import parse
from sluice.gateway.errors import PolicyError

HEAD = """
version = 1
[roles.submitter]
allow = []
"""
ADA = EgressSubject("0" * 32, "nightly-sales", "ada", ("submitter",), ("data/eng",))


def policy(rules: str) -> Policy:
    return parse((HEAD + rules).encode(), frozenset())


def ruling(rules: str, *audience: str, subject: EgressSubject = ADA) -> AudienceRuling:
    return policy(rules).audience_rules.decide(subject, audience)


RULES = """
[[audiences]]
audience = ["sts.amazonaws.com", "vault"]
users = ["ada"]
[[audiences]]
audience = ["billing"]
jobs = ["nightly-*"]
"""


def test_a_policy_without_audience_rules_denies_every_audience() -> None:
    assert ruling("", "vault") == AudienceRuling(False, "no rule gives it 'vault'")


def test_every_audience_of_a_token_must_be_allowed() -> None:
    assert ruling(RULES, "vault") == AudienceRuling(True, "audiences[1] allows it")
    assert ruling(RULES, "billing", "vault") == AudienceRuling(True, "audiences[2], audiences[1] allows it")
    assert not ruling(RULES, "vault", "payroll").allowed
    assert not ruling(RULES).allowed, "a token for nobody is one for everybody"


@pytest.mark.parametrize("audience", ["Vault", "vault ", "vaul", "vault.example.com", "sts.amazonaws.com/", "*", ""])
def test_an_audience_must_match_exactly(audience: str) -> None:
    assert not ruling(RULES, audience).allowed


@pytest.mark.parametrize(
    ("subject", "allowed"),
    [
        (EgressSubject("1" * 32, "report", "bob"), False),
        (EgressSubject("1" * 32, "report", "ada"), True),
        (EgressSubject("1" * 32, "report", "Ada"), False),
    ],
)
def test_an_audience_rule_applies_only_to_its_users(subject: EgressSubject, *, allowed: bool) -> None:
    assert ruling(RULES, "vault", subject=subject).allowed is allowed


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        ('audience = ["a"]', "is for nobody"),
        ('audience = []\nusers = ["*"]', "allows nothing"),
        ('users = ["*"]', "required field `audience`"),
        ('audience = ["*"]\nusers = ["*"]', "line 6: audiences[1]: '*': an audience is named in full"),
        ('audience = ["https://*.example.com"]\nusers = ["*"]', "named in full"),
        ('audience = [""]\nusers = ["*"]', "needs an audience"),
        ('audience = ["a"]\nroles = ["admin"]', "there is no role 'admin'"),
        ('audience = ["a"]\nusers = ["a b"]', "'a b' cannot be one of users"),
        ('audience = ["a"]\nusers = ["*"]\nlifetime = 5', "lifetime"),
    ],
)
def test_an_invalid_audience_rule_is_refused_with_a_reason(rule: str, complaint: str) -> None:
    with pytest.raises(PolicyError) as error:
        policy(f"[[audiences]]\n{rule}")
    assert complaint in str(error.value)
