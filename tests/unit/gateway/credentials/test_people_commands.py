"""``sluice policy``, ``user`` and ``session`` as a person types them."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import typer
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from typer.testing import CliRunner, Result

from sluice.cli.errors import RefusedError, UsageError
from sluice.cli.gateway import (
    policy,
    session,
    token,
    user,
)
from sluice.cli.pki import commands as pki
from sluice.core.home import Home
from sluice.gateway.authz.operations import OWNED_OPERATIONS
from sluice.gateway.authz.policy_file import DEFAULT_POLICY
from sluice.gateway.credentials.revocations import Revocations
from sluice.gateway.credentials.session_store import SessionStore
from sluice.gateway.credentials.sessions import SessionLimits
from sluice.gateway.credentials.token_last_used import TokensLastUsed
from sluice.gateway.credentials.users import UserStore
from sluice.gateway.errors import PolicyError, UserFileError
from sluice.gateway.principal import Subject
from sluice.pki.assertions.principal import SessionId, TokenId

PASSWORD = "correct horse battery"  # noqa: S105  of the tests' own users
TABLE = """
[[case]]
as = "ada"
groups = ["staff"]
operation = "jobs.cancel"
expect = "own"
[[case]]
as = "eve"
operation = "jobs.list"
expect = "deny"
[[case]]
as = "bot"
roles = ["admin"]
scopes = ["jobs.*"]
operation = "taskmanagers.read"
expect = "deny"
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    Home.at(tmp_path / "home").create()
    return tmp_path / "home"


def run(app: typer.Typer, home: Path, *arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, [*arguments, "--home", str(home)], input=stdin)


def own_policy(home: Path) -> Path:
    path = home / "gateway" / "policy.toml"
    path.write_text(DEFAULT_POLICY.read_text().replace("[groups]", '[groups]\nstaff = ["submitter"]'))
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("--as", "ada", "--group", "staff", "jobs.submit"), 0, "allowed; role submitter allows it"),
        (("--as", "ada", "--group", "staff", "jobs.cancel"), 0, "allowed for their own jobs"),
        (("--as", "ada", "jobs.list"), 1, "(no role): denied; no role allows it"),
        (("--as", "bot", "--role", "admin", "--scope", "*.read", "jobs.cancel"), 1, "is for *.read only"),
    ],
)
def test_policy_check_explains_its_decision(home: Path, arguments: tuple[str, ...], code: int, told: str) -> None:
    own_policy(home)
    result = run(policy.app, home, "check", *arguments)
    assert result.exit_code == code
    assert told in result.stdout


def test_policy_check_uses_the_roles_of_a_local_user(home: Path) -> None:
    UserStore(Home.at(home)).add("ada", PASSWORD, roles=("viewer",), groups=())
    document = json.loads(run(policy.app, home, "check", "--as", "ada", "jobs.list", "--json").stdout)
    assert (document["verdict"], document["role"], document["roles"]) == ("allow", "viewer", ["viewer"])


def test_check_names_the_nearest_operation(home: Path) -> None:
    result = run(policy.app, home, "check", "--as", "ada", "jobs.cancle")
    assert isinstance(result.exception, UsageError)
    assert "did you mean 'jobs.cancel'?" in str(result.exception)


def test_policy_test_compares_a_table_of_expected_decisions(home: Path, tmp_path: Path) -> None:
    own_policy(home)
    table = tmp_path / "table.toml"
    table.write_text(TABLE)
    result = run(policy.app, home, "test", str(table))
    assert (result.exit_code, result.stdout) == (0, "3 of 3 as expected\n")
    table.write_text(TABLE.replace('"own"', '"allow"'))
    result = run(policy.app, home, "test", str(table), "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["wrong"][0]["got"] == "own"


@pytest.mark.parametrize("text", ["", "case = 3", "[[case]]\nas = 'a'", TABLE.replace("own", "maybe"), "= ="])
def test_policy_test_refuses_a_malformed_table(home: Path, tmp_path: Path, text: str) -> None:
    table = tmp_path / "table.toml"
    table.write_text(text)
    assert isinstance(run(policy.app, home, "test", str(table)).exception, PolicyError)


def test_policy_show_prints_the_policy_file(home: Path) -> None:
    shown = run(policy.app, home, "show").stdout
    assert shown == DEFAULT_POLICY.read_text()
    own_policy(home)
    assert 'staff = ["submitter"]' in run(policy.app, home, "show").stdout
    assert run(policy.app, home, "show", "--default").stdout == shown
    document = json.loads(run(policy.app, home, "show", "--json").stdout)
    assert document["roles"]["submitter"]["allow_own"] == sorted(OWNED_OPERATIONS)


def test_users_are_added_listed_locked_and_removed_without_showing_passwords(home: Path) -> None:
    added = run(user.app, home, "add", "ada", "--role", "viewer", "--password-stdin", stdin=PASSWORD + "\n")
    assert added.exit_code == 0, added.output
    assert run(user.app, home, "lock", "ada").exit_code == 0
    (listed,) = json.loads(run(user.app, home, "list", "--json").stdout)["users"]
    assert (listed["name"], listed["roles"], listed["locked"]) == ("ada", ["viewer"], True)
    run(user.app, home, "unlock", "ada")
    assert "locked" not in run(user.app, home, "list").stdout
    changed = run(user.app, home, "passwd", "ada", "--password-stdin", stdin="another good one\n")
    assert changed.exit_code == 0
    book = UserStore(Home.at(home)).read()
    assert book.check("ada", "another good one") is not None
    assert book.check("ada", PASSWORD) is None
    assert PASSWORD not in (home / "gateway" / "users.json").read_text()
    assert (home / "gateway" / "users.json").stat().st_mode & 0o777 == 0o600
    assert run(user.app, home, "remove", "ada").exit_code == 0
    assert isinstance(run(user.app, home, "remove", "ada").exception, UserFileError)


@pytest.mark.parametrize(
    ("arguments", "stdin", "error"),
    [
        (("ada", "--password-stdin"), "short\n", UserFileError),
        (("ada", "--password-stdin"), "", UserFileError),
        (("a b", "--password-stdin"), PASSWORD, UserFileError),
        (("ada", "--role", "root", "--password-stdin"), PASSWORD, UsageError),
        (("ada", "--group", "a,b", "--password-stdin"), PASSWORD, UsageError),
        (("ada",), PASSWORD, UsageError),
    ],
)
def test_an_invalid_new_user_is_refused(
    home: Path, arguments: tuple[str, ...], stdin: str, error: type[Exception]
) -> None:
    result = run(user.app, home, "add", *arguments, stdin=stdin)
    assert isinstance(result.exception, error)
    assert UserStore(Home.at(home)).read().records == ()


def test_a_second_user_of_the_same_name_is_refused(home: Path) -> None:
    UserStore(Home.at(home)).add("ada", PASSWORD, roles=(), groups=())
    result = run(user.app, home, "add", "ada", "--password-stdin", stdin=PASSWORD)
    assert isinstance(result.exception, UserFileError)


def test_sessions_are_listed_and_revoked(home: Path) -> None:
    store = SessionStore(Home.at(home), SessionLimits(3600, 3600))
    ids = [store.begin(Subject(name, "session"), "browser", "192.0.2.1")[0].id for name in ("ada", "ada", "eve")]
    listed = json.loads(run(session.app, home, "list", "--json").stdout)["sessions"]
    assert [each["id"] for each in listed] == ids
    assert all("sha256" not in each and "csrf" not in each for each in listed)
    assert run(session.app, home, "revoke", ids[2]).exit_code == 0
    assert [line.split()[:2] for line in run(session.app, home, "list").stdout.splitlines()[1:]] == [
        [ids[0], "ada"],
        [ids[1], "ada"],
    ]
    assert run(session.app, home, "revoke", "--user", "ada").stdout.count("ended session") == 2
    revocations = Revocations.of(Home.at(home))
    assert all(revocations.is_revoked(("session", SessionId(each))) for each in ids)
    assert run(session.app, home, "revoke", "--all").stdout == ""


@pytest.mark.parametrize(
    ("arguments", "error"),
    [((), UsageError), (("x", "--all"), UsageError), (("--user", "a", "--all"), UsageError), (("x",), RefusedError)],
)
def test_session_revoke_needs_exactly_one_known_selection(
    home: Path, arguments: tuple[str, ...], error: type[Exception]
) -> None:
    assert isinstance(run(session.app, home, "revoke", *arguments).exception, error)


def test_tokens_are_created_with_policy_roles_and_scopes_and_listed_with_last_use(home: Path) -> None:
    made = run(token.app, home, "create", "bot", "--role", "submitter", "--scope", "jobs.*", "--json")
    identifier = json.loads(made.stdout)["id"]
    use = TokensLastUsed(Home.at(home), lambda: 1_800_000_000.0)
    use.used(identifier)
    use.flush()
    (listed,) = json.loads(run(token.app, home, "list", "--json").stdout)["tokens"]
    assert (listed["scopes"], listed["last_used_at"]) == (["jobs.*"], "2027-01-15T08:00:00Z")
    assert "2027-01-15T08:00:00Z  jobs.*" in run(token.app, home, "list").stdout
    assert isinstance(run(token.app, home, "create", "bot", "--role", "owner").exception, UsageError)
    assert isinstance(
        run(token.app, home, "create", "bot", "--role", "viewer", "--scope", "jobz.*").exception, UsageError
    )
    run(token.app, home, "revoke", identifier)
    assert Revocations.of(Home.at(home)).current().is_revoked(("token", TokenId(identifier)), now=time.time())


def test_revoking_a_users_certificate_revokes_it_at_the_gateway(home: Path) -> None:
    for arguments in (("init",), ("issue", "user/ada"), ("issue", "taskmanager/tm-1")):
        assert run(pki.app, home, *arguments).exit_code == 0
    leaf = x509.load_pem_x509_certificate((home / "pki" / "identities" / "user" / "ada" / "chain.pem").read_bytes())
    for target in ("user/ada", "taskmanager/tm-1"):
        assert run(pki.app, home, "revoke", target, "--reason", "key-compromise").exit_code == 0
    (entry,) = Revocations.of(Home.at(home)).current().unexpired(time.time())
    assert (entry.kind, entry.id) == ("certificate", leaf.fingerprint(hashes.SHA256()).hex())
    assert entry.until == int(leaf.not_valid_after_utc.timestamp())
