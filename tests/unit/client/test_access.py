"""A credential is sent only to its own gateway over TLS, unless the user explicitly asks for another."""

from __future__ import annotations

import datetime as dt
import json
import os
import stat
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sluice.cli.errors import UsageError
from sluice.cli.main import app
from sluice.client import login_session
from sluice.client.access import held_credential, resolve_access
from sluice.client.spark_connect import connection_string
from sluice.client.token_binding import (
    addresses,
    binding_file,
    fingerprints,
    gateway_url,
    read_binding,
)
from sluice.core.errors import StoreError
from sluice.core.home import Home
from sluice.gateway.config import GatewayConfig
from tests.hostile import TestPki
from tests.outside import OutsideAuthority

URL = "https://127.0.0.1:8443"
ELSEWHERE = "https://gateway.example.org"
ANOTHER = "slc_1"
RUNNER = CliRunner()


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> TestPki:
    return TestPki(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The CA certificate of a foreign authority."""
    return OutsideAuthority(tmp_path_factory.mktemp("foreign")).ca_file


@pytest.fixture
def home(pki: TestPki, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Home:
    """A home whose cluster runs at ``URL``, without a token and without a signed-in user."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for variable in ("SLUICE_TOKEN", "SLUICE_SERVER", "SLUICE_CA"):
        monkeypatch.delenv(variable, raising=False)
    running(pki.home, 8443)
    for name in ("token", "token.gateway"):
        (pki.home.root / name).unlink(missing_ok=True)
    return pki.home


def running(home: Home, port: int) -> None:
    directory = home.run / "endpoints"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "envoy.json").write_text(json.dumps({"host": "127.0.0.1", "port": port}))


def edge_of(home: Home) -> Path:
    return home.pki / "authorities" / "edge" / "cert.pem"


def made_token(home: Home) -> str:
    """Create a token in the home with ``sluice token create`` and return it."""
    path = home.root / "token"
    done = RUNNER.invoke(
        app, ["token", "create", "ada", "--role", "viewer", "--output", str(path), "--home", str(home.root)]
    )
    assert done.exit_code == 0, done.output
    return path.read_text().strip()


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://gateway.example.org", "https://gateway.example.org"),
        ("https://Gateway.Example.ORG:443/", "https://gateway.example.org"),
        ("HTTPS://localhost:8443", "https://localhost:8443"),
        ("https://[::1]:8443", "https://[::1]:8443"),
    ],
)
def test_gateway_urls_are_normalized(text: str, url: str) -> None:
    assert gateway_url(text) == url


@pytest.mark.parametrize(
    "text",
    [
        "http://localhost:8443",
        "HTTP://localhost",
        "ftp://localhost",
        "localhost",
        "localhost:8443",
        "//localhost:8443",
        "https://",
        "https:///path",
        "https://user@localhost",
        "https://user:secret@localhost",
        "https://localhost/api",
        "https://localhost?x=1",
        "https://localhost#x",
        "https://localhost:99999",
        "https://local host",
        "https://local\nhost",
        "https://[::1",
        "",
    ],
)
def test_a_gateway_url_other_than_https_host_and_port_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        gateway_url(text)
    assert "secret" not in str(refused.value)
    assert str(refused.value).count("localhost:8443") <= 1


@pytest.mark.parametrize(
    "verb",
    [
        ("jobs", "list"),
        ("jobs", "show", "x"),
        ("connect",),
        ("login", "--no-browser"),
        ("logout",),
        ("whoami",),
        ("drain", "tm-1"),
        ("savepoints", "list"),
    ],
)
@pytest.mark.parametrize("by_variable", [False, True])
def test_every_client_verb_refuses_a_server_without_https(
    home: Home, verb: tuple[str, ...], *, by_variable: bool
) -> None:
    made_token(home)
    server = "http://127.0.0.1:1"
    arguments = [*verb, "--home", str(home.root), *([] if by_variable else ["--server", server])]
    done = RUNNER.invoke(app, arguments, env={"SLUICE_SERVER": server} if by_variable else {})
    assert isinstance(done.exception, UsageError), done.output
    assert "over https alone" in str(done.exception)


def test_the_home_token_is_sent_to_its_own_gateway_without_options(home: Home) -> None:
    token = made_token(home)
    target = resolve_access(home)
    assert (target.url, target.token) == (URL, token)
    assert token not in repr(target)
    # On another port after the next start, too.
    running(home, 9443)
    assert resolve_access(home).token == token


@pytest.mark.parametrize("server", ["https://localhost:8443", URL, "https://[::1]:8443"])
def test_the_home_token_is_sent_to_its_gateway_at_any_of_its_addresses(home: Home, server: str) -> None:
    token = made_token(home)
    (home.run / "endpoints" / "envoy.json").unlink()  # it is not known any more where it runs
    assert resolve_access(home, server=server, ca_file=edge_of(home)).token == token


@pytest.mark.parametrize("bound", [True, False])
def test_the_home_token_is_refused_for_another_address_or_authority(home: Home, foreign: Path, *, bound: bool) -> None:
    made_token(home)
    if not bound:
        binding_file(home.root / "token").unlink()
    both = home.root / "both.pem"
    both.write_bytes(edge_of(home).read_bytes() + foreign.read_bytes())
    for server, ca in (
        (ELSEWHERE, edge_of(home)),  # another address
        (ELSEWHERE, None),
        (URL, foreign),  # another authority at the same address
        (URL, both),
        (URL, None),
        ("https://localhost:8444", edge_of(home)),  # another port
    ):
        with pytest.raises(UsageError, match="belongs to") as refused:
            resolve_access(home, server=server, ca_file=ca)
        assert "slc_" not in str(refused.value)
    with pytest.raises(UsageError, match="belongs to"):
        resolve_access(home, ca_file=foreign)


def test_a_home_token_without_a_binding_belongs_to_the_cluster_of_its_home(home: Home) -> None:
    token = made_token(home)
    binding_file(home.root / "token").unlink()
    assert resolve_access(home).token == token
    assert resolve_access(home, server=URL, ca_file=edge_of(home)).token == token


def test_an_explicit_token_file_is_used_for_any_server(home: Home, foreign: Path) -> None:
    token = made_token(home)
    path = home.root / "token"
    assert resolve_access(home, server=ELSEWHERE, ca_file=foreign, token_file=path).token == token
    with pytest.raises(UsageError, match="no token file"):
        resolve_access(home, token_file=home.root / "nothing")


def test_the_environment_token_belongs_to_the_environment_server(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_TOKEN", ANOTHER)
    assert resolve_access(home).token == ANOTHER
    with pytest.raises(UsageError, match="SLUICE_TOKEN belongs to the local cluster"):
        resolve_access(home, server=ELSEWHERE)
    monkeypatch.setenv("SLUICE_SERVER", ELSEWHERE + "/")
    assert resolve_access(home, server=ELSEWHERE).token == ANOTHER
    with pytest.raises(UsageError, match=f"SLUICE_TOKEN belongs to {ELSEWHERE}"):
        resolve_access(home, server="https://third.example.org")


def test_a_login_belongs_to_its_server_and_authority(home: Home, foreign: Path) -> None:
    login_session.save(
        login_session.LoginSession(
            server=ELSEWHERE,
            name="ada",
            session="s",
            secret=ANOTHER,
            expires_at=time.time() + dt.timedelta(hours=1).total_seconds(),
            authorities=tuple(fingerprints(foreign)),
        )
    )
    assert resolve_access(home, server=ELSEWHERE, ca_file=foreign).token == ANOTHER
    with pytest.raises(UsageError, match="another authority"):
        held_credential(home, ELSEWHERE, None, None)
    with pytest.raises(UsageError, match="no API token"):
        held_credential(home, "https://third.example.org", foreign, None)


def test_an_environment_token_of_another_server_is_skipped_for_the_home_token(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = made_token(home)
    monkeypatch.setenv("SLUICE_TOKEN", ANOTHER)
    monkeypatch.setenv("SLUICE_SERVER", ELSEWHERE)
    assert resolve_access(home).token == token


def test_the_token_binding_is_a_private_file_and_a_damaged_one_is_refused(home: Home) -> None:
    made_token(home)
    path = binding_file(home.root / "token")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600  # noqa: PTH116  the mode and nothing else
    binding = read_binding(home.root / "token")
    assert binding is not None
    assert URL in binding.servers
    assert set(binding.authorities) == fingerprints(edge_of(home))
    path.write_bytes(b"{")
    with pytest.raises(StoreError, match="damaged"):
        resolve_access(home)
    path.chmod(0o644)
    with pytest.raises(StoreError):
        resolve_access(home)


def test_gateway_addresses_include_server_names_localhost_and_public_url() -> None:
    config = GatewayConfig(host="::", port=8443, server_names=("g.test",), public_url="https://p.example.org")
    found = addresses(config, None)
    assert {"https://g.test:8443", "https://localhost:8443", "https://p.example.org"} <= set(found)
    assert "https://[::]:8443" not in found
    assert addresses(GatewayConfig(port=0, server_names=()), None) == ()


def test_connect_prints_a_shell_line_that_reads_the_token_without_showing_it(
    home: Home, foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = made_token(home)

    def printed(*arguments: str) -> str:
        done = RUNNER.invoke(app, ["connect", "--home", str(home.root), *arguments])
        return str(done.exception) if done.exception is not None else done.output

    assert f'AUTHENTICATE_TOKEN="$(cat {home.root / "token"})"' in printed()
    elsewhere = ("--server", ELSEWHERE, "--ca", str(foreign))
    assert "belongs to" in printed(*elsewhere)
    assert "$(cat " in printed(*elsewhere, "--token-file", str(home.root / "token"))
    monkeypatch.setenv("SLUICE_TOKEN", ANOTHER)
    assert 'AUTHENTICATE_TOKEN="$SLUICE_TOKEN"' in printed()
    assert ANOTHER not in printed()
    assert token not in printed()
    assert connection_string(ELSEWHERE) == "sc://gateway.example.org:443/;use_ssl=true"


@pytest.mark.parametrize("content", [None, b"", b"nothing of the kind"])
def test_a_missing_or_malformed_ca_file_is_wrong_usage(home: Home, tmp_path: Path, content: bytes | None) -> None:
    made_token(home)
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError):
        resolve_access(home, server=URL, ca_file=path)
