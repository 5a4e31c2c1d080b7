"""The default policy as a table that denies everything not in it, and the meaning of policies."""

from __future__ import annotations

import base64
import dataclasses

import pytest
from hypothesis import given, strategies as st

from sluice.gateway.authz.operations import (
    GATEWAY_OPERATIONS,
    OWNED_OPERATIONS,
    is_pattern,
    known_operations,
    matches,
)
from sluice.gateway.authz.policy import (
    DIGEST_CHARACTERS,
    Policy,
    RoleRules,
    Verdict,
)
from sluice.gateway.authz.policy_file import DEFAULT_POLICY, parse, read_policy
from sluice.gateway.authz.routes import Route
from sluice.gateway.credentials.access_tokens import role_access_token_prefix
from sluice.gateway.principal import AccessRole
from sluice.pki.assertions.principal import Credential, Principal
from sluice.runtime.rest_server.routes import ROUTES

OPERATIONS = known_operations(Route(each.method, each.path, each.operation) for each in ROUTES)
DEFAULT = read_policy(DEFAULT_POLICY, OPERATIONS)
V, S, A = AccessRole.VIEWER, AccessRole.SUBMITTER, AccessRole.ADMIN
ALLOW, OWN, DENY = Verdict.ALLOW, Verdict.OWN, Verdict.DENY

TABLE = {
    "overview.read": (ALLOW, ALLOW, ALLOW),
    "events.read": (ALLOW, OWN, ALLOW),
    "leader.read": (ALLOW, ALLOW, ALLOW),
    "config.read": (ALLOW, ALLOW, ALLOW),
    "metrics.read": (ALLOW, DENY, ALLOW),
    "taskmanagers.logs": (ALLOW, DENY, ALLOW),
    "openapi.read": (ALLOW, ALLOW, ALLOW),
    "jobs.list": (ALLOW, OWN, ALLOW),
    "jobs.read": (ALLOW, OWN, ALLOW),
    "jobs.logs": (ALLOW, OWN, ALLOW),
    "savepoints.read": (ALLOW, OWN, ALLOW),
    "jobs.exceptions": (ALLOW, OWN, ALLOW),
    "jobs.checkpoints": (ALLOW, OWN, ALLOW),
    "jobs.connections": (ALLOW, OWN, ALLOW),
    "jobs.ui": (ALLOW, OWN, ALLOW),
    "jobs.receipt": (ALLOW, OWN, ALLOW),
    "taskmanagers.read": (ALLOW, OWN, ALLOW),
    "queues.read": (ALLOW, OWN, ALLOW),
    "taskmanagers.drain": (DENY, DENY, ALLOW),
    "shuffle.read": (ALLOW, OWN, ALLOW),
    "shuffle.drain": (DENY, DENY, ALLOW),
    "connections.read": (ALLOW, OWN, ALLOW),
    "jobs.submit": (DENY, ALLOW, ALLOW),
    "jobs.cancel": (DENY, OWN, ALLOW),
    "jobs.savepoint": (DENY, OWN, ALLOW),
    "savepoints.dispose": (DENY, OWN, ALLOW),
    "connect.use": (DENY, ALLOW, ALLOW),
    "secrets.list": (DENY, DENY, ALLOW),
    "secrets.put": (DENY, DENY, ALLOW),
    "secrets.remove": (DENY, DENY, ALLOW),
    "secrets.grant": (DENY, DENY, ALLOW),
    "secrets.rotate": (DENY, DENY, ALLOW),
    "sessions.list": (DENY, DENY, ALLOW),
    "sessions.revoke": (DENY, DENY, ALLOW),
    "tokens.list": (DENY, DENY, ALLOW),
    "tokens.revoke": (DENY, DENY, ALLOW),
    "audit_log.search": (DENY, DENY, ALLOW),
    "certificates.list": (DENY, DENY, ALLOW),
    "certificates.revoke": (DENY, DENY, ALLOW),
}
RULES = Policy(
    frozenset({"a.read", "a.write", "b.read"}),
    {
        "reader": RoleRules("reader", allow=frozenset({"a.read", "b.read"})),
        "writer": RoleRules("writer", allow=frozenset({"a.read", "b.read", "a.write"})),
        "owner": RoleRules("owner", allow_own=frozenset({"a.write"})),
        "suspended": RoleRules("suspended", deny=frozenset({"a.write"})),
    },
    groups={"staff": ("reader",), "core": ("writer", "reader")},
    users={"ada": ("owner",)},
    default_roles=("reader",),
)


def someone(*roles: str, scopes: tuple[str, ...] = ()) -> Principal:
    return Principal("ada", roles, "token", Credential("token", "id"), scopes=scopes)


@pytest.mark.parametrize("role", [V, S, A])
@pytest.mark.parametrize("operation", sorted(TABLE))
def test_the_default_policy_decides_each_operation_as_in_the_table(role: AccessRole, operation: str) -> None:
    assert DEFAULT.rule(someone(role), operation).verdict is TABLE[operation][[V, S, A].index(role)]


def test_granted_lists_the_operations_that_the_policy_allows() -> None:
    assert DEFAULT.granted(someone(A)).keys() == OPERATIONS
    submitter = DEFAULT.granted(someone(S))
    assert submitter["jobs.cancel"] == "own"
    assert submitter["jobs.submit"] == "allow"
    assert "tokens.list" not in submitter
    assert DEFAULT.granted(someone(A, scopes=("jobs.read",))) == {"jobs.read": "allow"}
    assert DEFAULT.granted(someone()) == {}


def test_the_secret_keeper_role_only_manages_secrets() -> None:
    granted = DEFAULT.granted(someone("secret-keeper"))
    assert granted.keys() >= {"secrets.list", "secrets.put", "secrets.remove", "secrets.grant"}
    assert not granted.keys() & {"secrets.rotate", "jobs.submit", "jobs.list", "jobs.logs", "audit_log.search"}


def test_table_is_complete() -> None:
    assert set(TABLE) == OPERATIONS
    assert set(GATEWAY_OPERATIONS) <= OPERATIONS


@pytest.mark.parametrize(
    "operation", ["", "jobs", "jobs.*", "*", "Jobs.List", "jobs.list ", "jobs.delete", "cluster.stop"]
)
@pytest.mark.parametrize("role", [V, S, A])
def test_unknown_operation_is_denied_to_everybody(role: AccessRole, operation: str) -> None:
    assert DEFAULT.rule(someone(role), operation).verdict is DENY


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
@pytest.mark.parametrize("roles", [(), ("unheard-of",), ("*",)])
def test_a_principal_without_a_known_role_is_denied_everything(roles: tuple[str, ...], operation: str) -> None:
    assert DEFAULT.rule(someone(*roles), operation).verdict is DENY


def test_roles_add_up() -> None:
    assert DEFAULT.rule(someone(V, S), "jobs.submit").verdict is ALLOW


@pytest.mark.parametrize(
    ("roles", "verdict"),
    [
        pytest.param(("writer", "suspended"), DENY, id="deny last"),
        pytest.param(("suspended", "writer"), DENY, id="deny first"),
        pytest.param(("owner", "suspended"), DENY, id="deny beats ownership"),
        pytest.param(("owner", "writer"), ALLOW, id="the wider grant counts"),
        pytest.param(("owner", "reader"), OWN, id="ownership alone"),
    ],
)
def test_deny_beats_allow(roles: tuple[str, ...], verdict: Verdict) -> None:
    assert RULES.rule(someone(*roles), "a.write").verdict is verdict


def test_scopes_narrow_and_never_widen() -> None:
    assert RULES.rule(someone("writer", scopes=("a.*",)), "a.write").verdict is ALLOW
    assert RULES.rule(someone("writer", scopes=("*.read",)), "a.write").verdict is DENY
    assert RULES.rule(someone("reader", scopes=("*",)), "a.write").verdict is DENY


def test_roles_are_collected_from_name_groups_and_default_without_duplicates() -> None:
    assert RULES.roles_of("ada", ["core", "nobody-knows", "staff"]) == ("owner", "writer", "reader")
    assert RULES.roles_of("eve", []) == ("reader",)


@pytest.mark.parametrize(
    ("roles", "sole"),
    [
        pytest.param(("reader",), "reader", id="one"),
        pytest.param(("reader", "writer"), "writer", id="the wider one"),
        pytest.param(("writer", "owner"), "writer", id="which grants more than ownership"),
        pytest.param(("reader", "owner"), None, id="none has both"),
        pytest.param(("writer", "suspended"), None, id="a deny takes from another"),
        pytest.param(("reader", "unheard-of"), "reader", id="unknown roles do nothing"),
        pytest.param((), None, id="no role"),
    ],
)
def test_the_sole_role_is_one_that_grants_as_much_as_all_roles(roles: tuple[str, ...], sole: str | None) -> None:
    assert RULES.sole_role(roles) == sole


@given(st.lists(st.sampled_from(["reader", "writer", "owner", "suspended"]), max_size=4))
def test_the_sole_role_grants_exactly_what_all_roles_grant(roles: list[str]) -> None:
    """A proxy that decides by the sole role agrees with the policy; REST gets the same limits on owners."""
    policy = dataclasses.replace(
        RULES,
        operations=OPERATIONS,
        roles={
            "reader": RoleRules("reader", allow=frozenset({"jobs.list"})),
            "writer": RoleRules("writer", allow=frozenset({"jobs.list", "jobs.submit", "jobs.cancel"})),
            "owner": RoleRules("owner", allow_own=frozenset({"jobs.list", "jobs.cancel"})),
            "suspended": RoleRules("suspended", deny=frozenset({"jobs.cancel"})),
        },
    )
    if (sole := policy.sole_role(roles)) is not None:
        assert policy.operations_by_role()[sole] == policy.granted(someone(*roles)).keys()
        assert policy.granted(someone(sole)) == policy.granted(someone(*roles))


TENANT = b"""version = 1
[roles.tenant]
allow = ["overview.read", "jobs.submit"]
allow_own = [
  "jobs.list", "jobs.read", "jobs.logs", "jobs.connections", "jobs.exceptions", "jobs.checkpoints",
  "jobs.ui", "jobs.receipt", "jobs.cancel", "jobs.savepoint", "savepoints.read", "savepoints.dispose", "events.read",
  "shuffle.read", "taskmanagers.read", "queues.read", "connections.read",
]
[roles.viewer]
allow = ["*.read", "jobs.list"]
"""


def test_a_tenant_policy_limits_users_to_their_own_jobs() -> None:
    policy = parse(TENANT, OPERATIONS)
    for operation in sorted(OWNED_OPERATIONS):
        assert policy.rule(someone("tenant"), operation).verdict is OWN
        assert operation not in policy.role_grants()["tenant"]
        assert operation in policy.operations_by_role()["tenant"]
    assert policy.rule(someone("tenant"), "jobs.submit").verdict is ALLOW
    assert policy.rule(someone("tenant"), "metrics.read").verdict is DENY
    assert policy.rule(someone("viewer"), "jobs.read").verdict is ALLOW


def test_the_default_submitter_role_grants_nothing_on_jobs_of_others() -> None:
    """The unrestricted operations of a submitter reveal no jobs; viewers and operators see all of them."""
    beyond = DEFAULT.role_grants()[S]
    assert beyond == {"overview.read", "leader.read", "config.read", "openapi.read", "jobs.submit", "connect.use"}
    assert DEFAULT.operations_by_role()[S] - beyond == OWNED_OPERATIONS
    reads = {each for each in OWNED_OPERATIONS if DEFAULT.rule(someone(V), each).verdict is ALLOW}
    assert reads == OWNED_OPERATIONS - {"jobs.cancel", "jobs.savepoint", "savepoints.dispose"}
    assert reads | {"jobs.cancel"} <= DEFAULT.role_grants()["operator"]


def test_the_policy_digest_changes_only_with_the_grants_of_roles() -> None:
    """A proxy uses it to tell the access tokens of this policy from those of another one."""
    same = parse(DEFAULT_POLICY.read_bytes().replace(b"may do everything", b"all of it"), OPERATIONS)
    wider = parse(DEFAULT_POLICY.read_bytes().replace(b'"jobs.submit",', b'"jobs.submit", "jobs.logs",'), OPERATIONS)
    assert len(DEFAULT.digest) == DIGEST_CHARACTERS
    assert (same.digest == DEFAULT.digest, wider.digest == DEFAULT.digest) == (True, False)
    assert base64.urlsafe_b64decode(role_access_token_prefix(DEFAULT.digest)).endswith(DEFAULT.digest.encode() + b'",')


@pytest.mark.parametrize(
    ("pattern", "operation", "matched"),
    [
        ("*", "jobs.list", True),
        ("*", "not an operation", False),
        ("jobs.*", "jobs.list", True),
        ("jobs.*", "jobs.list.all", False),
        ("*.read", "jobs.read", True),
        ("*.read", "jobs.list", False),
        ("jobs.list", "jobs.list", True),
        ("jobs.list", "jobs.lists", False),
    ],
)
def test_an_operation_pattern_matches_whole_segments(pattern: str, operation: str, matched: bool) -> None:
    assert matches(pattern, operation) is matched


@pytest.mark.parametrize("text", ["", "jobs", "jobs.", ".read", "jobs.l*", "Jobs.*", "jobs.list ", "**", "*.*.", "a b"])
def test_a_malformed_operation_pattern_is_not_a_pattern(text: str) -> None:
    assert not is_pattern(text)
