"""Egress rules: which destinations jobs may reach, and to which addresses names may resolve."""

from __future__ import annotations

import ipaddress

import pytest

from sluice.core import Reach, block_of
from sluice.gateway.authz.egress import EgressRuling, EgressSubject
from sluice.gateway.authz.policy import Policy
from sluice.gateway.authz.policy_file import parse
from sluice.gateway.errors import PolicyError

HEAD = """
version = 1
[roles.submitter]
allow = []
"""
ADA = EgressSubject("0" * 32, "nightly-sales", "ada", ("submitter",), ("data/eng",))
BOB = EgressSubject("1" * 32, "report", "bob")


def policy(rules: str) -> Policy:
    return parse((HEAD + rules).encode(), frozenset())


def ruling(rule: str, host: str = "api.example.com", port: int = 443, subject: EgressSubject = ADA) -> EgressRuling:
    return policy("[[egress]]\n" + rule).egress(subject, host, port)


def test_without_rules_nothing_is_allowed() -> None:
    denied = policy("").egress(ADA, "api.example.com", 443)
    assert not denied.allowed
    assert denied.reason == "no rule allows it"
    assert not denied.admits(ipaddress.ip_address("1.1.1.1"))


@pytest.mark.parametrize(
    ("grantees", "allowed"),
    [
        ('users = ["ada"]', True),
        ('users = ["*"]', True),
        ('users = ["bob"]', False),
        ('users = ["Ada"]', False),
        ('roles = ["submitter"]', True),
        ('groups = ["data/eng"]', True),
        ('groups = ["data"]', False),
        ('jobs = ["nightly-*"]', True),
        ('jobs = ["nightly-sales"]', True),
        ('jobs = ["nightly"]', False),
        ('users = ["bob"]\ngroups = ["data/eng"]', True),
        ('users = ["ada"]\njobs = ["weekly-*"]', False),
        ('users = ["bob"]\njobs = ["nightly-*"]', False),
    ],
)
def test_an_egress_rule_applies_only_to_its_users_roles_groups_and_jobs(grantees: str, *, allowed: bool) -> None:
    assert ruling(f'to = ["api.example.com:443"]\n{grantees}').allowed is allowed


def test_an_egress_rule_for_other_users_grants_nothing() -> None:
    assert not ruling('to = ["*.example.com:443"]\nroles = ["submitter"]', subject=BOB).allowed


def test_a_ruling_names_the_rule() -> None:
    rules = """
        [[egress]]
        to = ["other.test:1"]
        users = ["*"]
        [[egress]]
        to = ["*.example.com:443"]
        users = ["ada"]
    """
    found = policy(rules).egress(ADA, "API.example.com", 443)
    assert (found.rule, found.reason) == ("egress[2]", "egress[2] allows *.example.com:443")


@pytest.mark.parametrize(
    "host", ["0x7f000001", "2130706433", "127.1", "0177.0.0.1", "api.example.com.", "bücher.test", ""]
)
def test_a_hostile_spelling_of_a_host_is_denied_as_unclear(host: str) -> None:
    found = ruling('to = ["*.example.com:443", "127.0.0.0/8:443"]\nusers = ["*"]', host)
    assert not found.allowed
    assert found.reason.startswith("unclear destination")


PUBLIC = ("93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946")
PRIVATE = ("10.0.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "fd12:3456::1", "::ffff:10.0.0.1")
SPECIAL = (
    "127.0.0.1",
    "127.255.255.254",
    "0.0.0.0",  # noqa: S104  decided about, not listened on
    "169.254.169.254",
    "169.254.170.2",
    "169.254.0.1",
    "168.63.129.16",
    "100.100.100.200",
    "192.0.0.192",
    "fd00:ec2::254",
    "224.0.0.1",
    "255.255.255.255",
    "198.18.0.1",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::7f00:1",
    "2002:7f00:1::",
    "2001::1",
    "fe80::1",
    "fec0::1",
    "ff02::1",
    "4000::1",
)


@pytest.mark.parametrize(
    ("rule", "admitted"),
    [
        ('to = ["*.example.com:443"]', PUBLIC),
        ('to = ["api.example.com:443"]', (*PUBLIC, *PRIVATE)),
        ('to = ["api.example.com:443", "*.example.com:443"]', (*PUBLIC, *PRIVATE)),
        (
            'to = ["api.example.com:443"]\naddresses = ["127.0.0.0/8"]',
            ("127.0.0.1", "127.255.255.254", "::ffff:127.0.0.1"),
        ),
        ('to = ["*.example.com:443"]\naddresses = ["10.0.0.0/8"]', ("10.0.0.1", "::ffff:10.0.0.1")),
        ('to = ["api.example.com:443"]\naddresses = ["169.254.0.0/16"]', ("169.254.0.1",)),
        (
            'to = ["api.example.com:443"]\naddresses = ["169.254.169.254/32"]',
            ("169.254.169.254", "::ffff:169.254.169.254"),
        ),
        ('to = ["api.example.com:443"]\naddresses = ["0.0.0.0/0", "::/0"]', PUBLIC),
    ],
)
def test_an_allowed_name_may_resolve_only_to_the_addresses_of_its_rule(rule: str, admitted: tuple[str, ...]) -> None:
    found = ruling(f'{rule}\nusers = ["*"]')
    assert found.allowed
    assert [each for each in (*PUBLIC, *PRIVATE, *SPECIAL) if found.admits(ipaddress.ip_address(each))] == [
        each for each in (*PUBLIC, *PRIVATE, *SPECIAL) if each in admitted
    ]


def test_only_admitted_addresses_of_a_resolved_name_are_used() -> None:
    found = ruling('to = ["*.example.com:443"]\nusers = ["*"]')
    resolved = ["127.0.0.1", "::ffff:10.0.0.1", "fe80::1%eth0", "no address", "93.184.216.34", "93.184.216.34"]
    assert [str(each) for each in found.allowed_addresses(resolved)] == ["93.184.216.34"]


def test_a_rule_for_an_address_does_not_allow_a_name_that_resolves_to_it() -> None:
    rules = 'to = ["*.example.com:443", "10.0.0.0/8:443"]\nusers = ["*"]'
    assert not ruling(rules).admits(ipaddress.ip_address("10.0.0.1"))
    assert ruling(rules, "10.0.0.1").admits(ipaddress.ip_address("10.0.0.1"))


def test_an_address_is_allowed_only_by_a_rule_that_names_it() -> None:
    assert not ruling('to = ["api.example.com:443"]\nusers = ["*"]', "93.184.216.34").allowed
    assert ruling('to = ["93.184.216.34:443"]\nusers = ["*"]', "93.184.216.34").allowed


@pytest.mark.parametrize(
    ("rule", "port", "protocol"),
    [("", 443, "tls"), ("", 5432, "auto"), ('protocol = "tcp"', 443, "tcp"), ('protocol = "tls"', 5432, "tls")],
)
def test_the_protocol_follows_from_the_rule_or_the_port(rule: str, port: int, protocol: str) -> None:
    assert ruling(f'to = ["api.example.com:*"]\nusers = ["*"]\n{rule}', port=port).protocol == protocol


def test_names_are_resolved_only_if_a_rule_allows_them() -> None:
    rules = policy('[[egress]]\nto = ["*.example.com:443"]\nusers = ["ada"]').egress_rules
    assert rules.decide_any_port(ADA, "API.example.com").allowed
    assert not rules.decide_any_port(BOB, "api.example.com").allowed
    assert not rules.decide_any_port(ADA, "secret.evil.test").allowed
    assert not rules.decide_any_port(ADA, "api.example.com.").allowed


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        ('to = ["api.example.com:443"]', "is for nobody"),
        ('to = []\nusers = ["*"]', "allows nothing"),
        ('users = ["*"]', "required field `to`"),
        ('to = ["api.example.com"]\nusers = ["*"]', "line 6: egress[1]: 'api.example.com': it must be host:port"),
        ('to = ["10.0.0.1/8:443"]\nusers = ["*"]', "has host bits set"),
        ('to = ["*:443"]\nusers = ["*"]', "'*' can only stand"),
        ('to = ["api.example.com:443"]\nroles = ["admin"]', "there is no role 'admin'"),
        ('to = ["api.example.com:443"]\nusers = ["a b"]', "'a b' cannot be one of users"),
        ('to = ["api.example.com:443"]\njobs = ["a*b"]', "'a*b' cannot be one of jobs"),
        ('to = ["api.example.com:443"]\nusers = ["*"]\naddresses = ["private"]', "it is not a network"),
        ('to = ["10.0.0.0/8:443"]\nusers = ["*"]\naddresses = ["10.0.0.0/8"]', "no name that could resolve"),
        ('to = ["api.example.com:443"]\nusers = ["*"]\nprotocol = "udp"', "udp"),
        ('to = ["api.example.com:443"]\nusers = ["*"]\nport = 443', "port"),
    ],
)
def test_an_invalid_egress_rule_is_refused_with_a_reason(rule: str, complaint: str) -> None:
    with pytest.raises(PolicyError) as error:
        policy(f"[[egress]]\n{rule}")
    assert complaint in str(error.value)


def test_addresses_are_classified_as_public_private_or_special() -> None:
    reaches = {each: block_of(ipaddress.ip_address(each))[1] for each in (*PUBLIC, *PRIVATE[:-1], *SPECIAL)}
    assert {reaches[each] for each in PUBLIC} == {Reach.PUBLIC}
    assert {reaches[each] for each in PRIVATE[:-1]} == {Reach.PRIVATE}
    assert {reaches[each] for each in SPECIAL} == {Reach.SPECIAL}
