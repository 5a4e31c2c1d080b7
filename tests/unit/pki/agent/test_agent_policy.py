"""Which user id gets which identities, and what a policy file must not contain."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.core.errors import PkiError
from sluice.pki.agent.policy import AgentPolicy, PolicyError, load_policy
from sluice.pki.config import PkiConfig

GOOD = """
jwt_minutes = 10
[[identity]]
id = "taskmanager/tm-1"
uids = [1000, 1001]
dns = ["tm.example.org"]
audiences = ["reports"]
[[identity]]
id = "spiffe://sluice.local/gateway/envoy"
uids = [1001]
directory = "/srv/envoy"
[[identity]]
id = "user/ada"
uids = [1002]
[[identity]]
id = "jobmanager/only-on-disk"
"""


def _load(tmp_path: Path, text: str) -> AgentPolicy:
    path = tmp_path / "agent.toml"
    path.write_text(text)
    path.chmod(0o644)
    return load_policy(path, PkiConfig(), Path("/ids"))


def test_each_user_gets_its_identities_in_the_order_of_the_file(tmp_path: Path) -> None:
    policy = _load(tmp_path, GOOD)
    assert [str(one.spiffe_id) for one in policy.of(1001)] == [
        "spiffe://sluice.local/taskmanager/tm-1",
        "spiffe://sluice.local/gateway/envoy",
    ]
    assert [one.directory for one in policy.of(1001)] == [Path("/ids/taskmanager/tm-1"), Path("/srv/envoy")]
    assert policy.uids == {1000, 1001, 1002}


@pytest.mark.parametrize("uid", [0, 999, 65534, 4294967295])
def test_an_unlisted_user_gets_no_identities(tmp_path: Path, uid: int) -> None:
    assert _load(tmp_path, GOOD).of(uid) == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("", "identity", id="empty"),
        pytest.param("identity = []", "0 identities", id="no identity"),
        pytest.param("[[identity]]\nid = 'taskmanager/a'\nuid = [1]", "uid", id="unknown key"),
        pytest.param("[[identity]]\nid = 'taskmanager/a'\nuids = ['root']", "int", id="user by name"),
        pytest.param("[[identity]]\nid = 'taskmanager/a'\nuids = [-1]", "not possible", id="negative uid"),
        pytest.param(
            "[[identity]]\nid = 'taskmanager/a'\nuids = [4294967295]", "not possible", id="uid of nobody at all"
        ),
        pytest.param("[[identity]]\nid = 'chef/a'", "no known role", id="unknown role"),
        pytest.param("[[identity]]\nid = 'spiffe://other/taskmanager/a'", "trust domain", id="other trust domain"),
        pytest.param("[[identity]]\nid = 'taskmanager/../a'", "no known role", id="path upwards"),
        pytest.param("[[identity]]\nid = 'taskmanager/a'\ndns = ['a b']", "not a DNS name", id="bad name"),
        pytest.param("[[identity]]\nid = 'taskmanager/a'\naudiences = ['']", "audiences", id="empty audience"),
        pytest.param("[[identity]]\nid='taskmanager/a'\n[[identity]]\nid='taskmanager/a'", "SPIFFE ID", id="twice"),
        pytest.param(
            "[[identity]]\nid='taskmanager/a'\ndirectory='/d'\n[[identity]]\nid='taskmanager/b'\ndirectory='/d'",
            "same directory",
            id="one directory for two",
        ),
        pytest.param(
            "[[identity]]\nid='taskmanager/a'\nuids=[7]\n[[identity]]\nid='user/b'\nuids=[7]",
            "edge authority",
            id="both authorities for one user",
        ),
        pytest.param("jwt_minutes = 61\n[[identity]]\nid='taskmanager/a'", "jwt_minutes", id="long tokens"),
        pytest.param("identity = [", "agent.toml", id="no TOML"),
    ],
)
def test_a_wrong_policy_is_refused_as_a_whole(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(PkiError, match=reason):
        _load(tmp_path, text)


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_policy_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(GOOD)
    path.chmod(mode)
    with pytest.raises(PolicyError, match="others may write"):
        load_policy(path, PkiConfig(), tmp_path)


def test_a_missing_policy_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="cannot read"):
        load_policy(tmp_path / "none.toml", PkiConfig(), tmp_path)
