"""The policy file: its meaning and its error messages."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from sluice.core.home import Home
from sluice.gateway.authz.policy import Verdict
from sluice.gateway.authz.policy_file import (
    DEFAULT_POLICY,
    PolicyFile,
    parse,
    policy_file,
    read_policy,
)
from sluice.gateway.errors import PolicyError
from sluice.pki.assertions.principal import Credential, Principal

OPERATIONS = frozenset({"jobs.list", "jobs.read", "jobs.cancel", "jobs.submit"})
GOOD = """
version = 1
default_roles = ["viewer"]
[roles.viewer]
allow = ["jobs.list", "*.read"]
[roles.operator]
includes = ["viewer"]
allow_own = ["jobs.cancel"]
deny = ["jobs.submit"]
[groups]
"data/eng" = ["operator"]
[users]
ada = ["operator"]
"""


def test_a_file_becomes_a_policy() -> None:
    policy = parse(GOOD.encode(), OPERATIONS)
    assert policy.role_grants()["operator"] == {"jobs.list", "jobs.read"}
    assert policy.roles_of("ada", ()) == ("operator", "viewer")
    assert policy.roles_of("eve", ("data/eng",)) == ("operator", "viewer")
    assert (
        policy.rule(Principal("ada", ("operator",), "token", Credential("token", "")), "jobs.cancel").verdict
        is Verdict.OWN
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("version = 1\n[roles.a]\nallow = ['jobs.lst']", "line 3.*'jobs.lst'.*'jobs.list'", id="operation"),
        pytest.param("version = 1\n[roles.a]\nallow = ['jobz.*']", "line 3.*no operation matches", id="pattern"),
        pytest.param("version = 1\n[roles.a]\nallow = ['*s.list']", "line 3.*no operation matches", id="half a part"),
        pytest.param("version = 1\n[roles.a]\nalow = ['*']", "line 3.*unknown key 'alow'.*'allow'", id="key"),
        pytest.param("version = 1\n[roles.a]\nallow = '*'", "line 3.*Expected `array`", id="not a list"),
        pytest.param("version = 1\n[rolls.a]\nallow = ['*']", "line 2.*unknown key 'rolls'.*'roles'", id="table"),
        pytest.param("version = 1\n[roles.a]\nincludes = ['b']", "line 3.*no role 'b'", id="included role"),
        pytest.param("version = 1\n[roles.a]\nincludes = ['a']", "line 3.*includes itself", id="itself"),
        pytest.param(
            "version = 1\n[roles.a]\nincludes = ['b']\n[roles.b]\nincludes = ['a']", "includes itself", id="a circle"
        ),
        pytest.param("version = 1\n[roles.a]\n[groups]\nstaff = ['aa']", "line 4.*no role 'aa'.*'a'", id="group"),
        pytest.param("version = 1\n[roles.a]\n[users]\n'a,b' = ['a']", "line 4.*'a,b'", id="user's name"),
        pytest.param("version = 1\ndefault_roles = ['x']\n[roles.a]", "line 2.*no role 'x'", id="default role"),
        pytest.param("version = 1\n[roles.Admin]", "line 2.*cannot name a role", id="role's name"),
        pytest.param("version = 2\n[roles.a]", "line 1.*version 2", id="version"),
        pytest.param("[roles.a]", "version", id="no version"),
        pytest.param("version = 1\nroles = {}", "0 roles", id="no role"),
        pytest.param("version = 1\nroles = 3", "line 2.*Expected", id="roles are no table"),
        pytest.param("version = = 1", "not valid TOML.*line 1", id="no TOML"),
        pytest.param("\udcff", "not valid TOML", id="no text"),
    ],
)
def test_an_error_names_the_line_and_the_nearest_name(text: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        parse(text.encode("utf-8", "surrogateescape"), OPERATIONS)


def test_deeply_nested_role_includes_are_resolved_once_each() -> None:
    """Each level includes both roles of the level below: resolving them anew each time would never end."""
    lines = ["version = 1", "[roles.a0]", "[roles.b0]"]
    for level in range(1, 40):
        lines += [f"[roles.{side}{level}]\nincludes = ['a{level - 1}', 'b{level - 1}']" for side in "ab"]
    assert len(parse("\n".join(lines).encode(), OPERATIONS).roles) == 80


def test_a_policy_file_writable_by_others_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(GOOD)
    path.chmod(0o664)
    with pytest.raises(PolicyError, match="others can change"):
        read_policy(path, OPERATIONS)


def test_a_home_without_a_policy_file_uses_the_default_policy(tmp_path: Path) -> None:
    home = Home.at(tmp_path).create()
    assert policy_file(home) == DEFAULT_POLICY
    own = home.gateway / "policy.toml"
    own.write_text(GOOD)
    assert policy_file(home) == own
    assert policy_file(home, "/elsewhere.toml") == Path("/elsewhere.toml")


def test_a_missing_configured_policy_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="cannot read"):
        PolicyFile(lambda: tmp_path / "policy.toml", lambda: OPERATIONS).get()


def test_a_policy_change_applies_immediately_and_an_invalid_one_is_logged_and_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(GOOD)
    followed = PolicyFile(lambda: path, lambda: OPERATIONS)
    first = followed.get()
    assert followed.get() is first
    path.write_text(GOOD + "[rolls]")
    with caplog.at_level(logging.ERROR):
        assert followed.get() is first
        assert followed.get() is first
    assert len(caplog.records) == 1
    assert "rolls" in followed.rejected
    path.write_text(GOOD.replace("*.read", "jobs.submit"))
    assert "jobs.submit" in followed.get().role_grants()["viewer"]
    assert followed.rejected == ""
    path.unlink()
    assert "jobs.submit" in followed.get().role_grants()["viewer"]
    assert "cannot read" in followed.rejected
