"""Our authority in a machine's trust stores: added once, removed again, nothing else touched."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from cryptography import x509

import sluice.cli.pki.trust
from sluice.core.home import Home
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.config import PkiConfig
from sluice.pki.identities.directory import read_certificates
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.trust.system_store import (
    Machine,
    StoreKind,
    TrustPlace,
    TrustToolError,
    find_places,
    installed,
    name_of,
    plan_install,
    plan_removal,
    this_machine,
)
from sluice.pki.x509.profiles import AuthorityKind
from tests.integration.pki.test_command import Command, sluice_pki  # noqa: F401  a fixture

DEBIAN = "usr/local/share/ca-certificates"
LAYOUTS = [
    pytest.param(DEBIAN, "update-ca-certificates", ".crt", id="Debian"),
    pytest.param("etc/pki/ca-trust/source/anchors", "update-ca-trust", ".pem", id="Red Hat"),
    pytest.param("etc/ca-certificates/trust-source/anchors", "trust", ".pem", id="Arch"),
    pytest.param("usr/share/pki/trust/anchors", "update-ca-certificates", ".pem", id="SUSE"),
]


class Tools:
    """Fakes the tools of trust stores: records the commands and keeps NSS databases as dictionaries."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.ran: list[tuple[str, ...]] = []
        self.databases: dict[str, dict[str, str]] = {}
        self.fails = False

    def which(self, name: str) -> str | None:
        """Return the path of a tool, or None if it is not installed."""
        return f"/tools/{name}" if name in self.names else None

    def run(self, command: Sequence[str], environ: Mapping[str, str]) -> str:
        """Do what the tool would do."""
        assert not environ
        self.ran.append(tuple(command))
        if self.fails:
            raise TrustToolError("the tool ended with 1")
        if Path(command[0]).name != "certutil":
            return ""
        database = self.databases.setdefault(command[command.index("-d") + 1], {"Some Authority": ""})
        if "-A" in command:
            assert command[command.index("-t") + 1] == "C,,"
            (certificate,) = read_certificates(Path(command[command.index("-i") + 1]))
            database[command[command.index("-n") + 1]] = certificate.subject.rfc4514_string()
        elif "-D" in command:
            del database[command[command.index("-n") + 1]]
        return "\nCertificate Nickname     Trust Attributes\n" + "".join(f"{name}   C,,\n" for name in database)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> x509.Certificate:
    home = Home.at(tmp_path_factory.mktemp("home"))
    LocalIssuer(home, PkiConfig()).ensure_authorities()
    return AuthorityStore(home.pki).certificate(AuthorityKind.EDGE)


def machine(tmp_path: Path, tools: Tools, environ: Mapping[str, str] | None = None) -> Machine:
    return Machine(tmp_path / "root", tmp_path / "user", environ or {}, tools.which, tools.run)


@pytest.mark.parametrize(("directory", "tool", "suffix"), LAYOUTS)
def test_an_authority_is_installed_in_and_removed_from_the_system_store(
    directory: str, tool: str, suffix: str, authority: x509.Certificate, tmp_path: Path
) -> None:
    place = tmp_path / "root" / directory
    place.mkdir(parents=True)
    (place / f"company{suffix}").write_text("somebody else's")
    (place / f"sluice-notes{suffix}").write_text("not by this command")
    tools = Tools(tool)
    here = machine(tmp_path, tools)
    (found,) = find_places(here)
    assert (found.kind, found.where) == (StoreKind.SYSTEM, place)
    name = name_of(AuthorityKind.EDGE, authority)
    steps = plan_install([found], {name: authority}, here)
    assert tools.ran == []
    assert sorted(path.name for path in place.iterdir()) == [f"company{suffix}", f"sluice-notes{suffix}"]
    for step in steps:
        step.act()
    assert read_certificates(place / f"{name}{suffix}") == [authority]
    assert [Path(command[0]).name for command in tools.ran] == [tool]
    assert installed(found, here) == [name]
    assert plan_install([found], {name: authority}, here) == [], "it is there already"
    for step in plan_removal([found], lambda each: each == name, here):
        step.act()
    assert sorted(path.name for path in place.iterdir()) == [f"company{suffix}", f"sluice-notes{suffix}"]
    assert len(tools.ran) == 2


def test_an_authority_is_installed_in_and_removed_from_browser_databases(
    authority: x509.Certificate, tmp_path: Path
) -> None:
    for place in (".pki/nssdb", ".mozilla/firefox/abc.default", "snap/firefox/common/.mozilla/firefox/x"):
        (tmp_path / "user" / place).mkdir(parents=True)
        (tmp_path / "user" / place / "cert9.db").touch()
    tools = Tools("certutil")
    here = machine(tmp_path, tools)
    places = find_places(here)
    assert [place.kind for place in places] == [StoreKind.NSS] * 3
    name = name_of(AuthorityKind.EDGE, authority)
    for step in plan_install(places, {name: authority}, here):
        step.act()
    assert [set(database) for database in tools.databases.values()] == [{"Some Authority", name}] * 3
    assert plan_install(places, {name: authority}, here) == []
    for step in plan_removal(places, lambda _: True, here):
        step.act()
    assert [set(database) for database in tools.databases.values()] == [{"Some Authority"}] * 3


def test_an_authority_is_installed_in_and_removed_from_the_java_store_by_keytool(
    authority: x509.Certificate, tmp_path: Path
) -> None:
    keytool = shutil.which("keytool")
    assert keytool is not None
    real = Path(keytool).resolve().parent.parent
    java = tmp_path / "java"
    (java / "bin").mkdir(parents=True)
    (java / "lib" / "security").mkdir(parents=True)
    (java / "bin" / "keytool").symlink_to(real / "bin" / "keytool")
    shutil.copyfile((real / "lib" / "security" / "cacerts").resolve(), java / "lib" / "security" / "cacerts")
    here = Machine(tmp_path, tmp_path, {"JAVA_HOME": str(java)}, lambda _: None, this_machine().run)
    (place,) = find_places(here)
    name = name_of(AuthorityKind.EDGE, authority)
    for step in plan_install([place], {name: authority}, here):
        step.act()
    assert installed(place, here) == [name]
    for step in plan_removal([place], lambda _: True, here):
        step.act()
    assert installed(place, here) == []


def test_a_tool_that_fails_or_cannot_be_run_is_reported_with_the_reason() -> None:
    with pytest.raises(TrustToolError, match=r"sh ended with 3: no \("):
        this_machine().run(["/bin/sh", "-c", "echo why; echo no >&2; exit 3"], {})
    with pytest.raises(TrustToolError, match="could not be run"):
        this_machine().run(["/nonexistent/tool"], {})


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    """The tools of a fake Debian machine that replaces the real one."""
    (tmp_path / "root" / DEBIAN).mkdir(parents=True)
    tools = Tools("update-ca-certificates")
    monkeypatch.setattr(sluice.cli.pki.trust, "this_machine", lambda: machine(tmp_path, tools))
    return tools


def names_in(tmp_path: Path) -> list[str]:
    return sorted(path.stem for path in (tmp_path / "root" / DEBIAN).iterdir())


def test_trust_install_changes_nothing_on_a_dry_run_and_is_undone_by_uninstall(
    sluice_pki: Command,  # noqa: F811
    tools: Tools,
    tmp_path: Path,
) -> None:
    assert sluice_pki("init").code == 0
    name = name_of(AuthorityKind.EDGE, AuthorityStore(Home.at(tmp_path / "home").pki).certificate(AuthorityKind.EDGE))
    planned = sluice_pki("trust", "install", "--dry-run")
    assert (planned.code, names_in(tmp_path), tools.ran) == (0, [], [])
    assert f"would write {tmp_path}/root/{DEBIAN}/{name}.crt" in planned.out
    assert "would run /tools/update-ca-certificates" in planned.out
    assert "nothing confines which host names the edge authority may certify" in planned.err
    done = sluice_pki("trust", "install", "--json").json()
    assert (len(done["steps"]), done["not_done"], names_in(tmp_path)) == (2, [], [name])
    assert "nothing to do" in sluice_pki("trust", "install").out
    assert f"{name}  of this home" in sluice_pki("trust", "show").out
    assert sluice_pki("trust", "uninstall").code == 0
    assert names_in(tmp_path) == []
    assert "nothing of ours" in sluice_pki("trust", "show").out


def test_uninstalling_old_generations_keeps_the_current_one(
    sluice_pki: Command,  # noqa: F811
    tools: Tools,
    tmp_path: Path,
    authority: x509.Certificate,
) -> None:
    assert sluice_pki("init").code == 0
    assert sluice_pki("trust", "install").code == 0
    (mine,) = names_in(tmp_path)
    old = name_of(AuthorityKind.EDGE, authority)
    (tmp_path / "root" / DEBIAN / f"{old}.crt").write_text("of another home")
    assert sluice_pki("trust", "uninstall", "--old").code == 0
    assert names_in(tmp_path) == [mine]
    assert tools.ran


def test_the_trust_command_reports_what_it_could_not_do(
    sluice_pki: Command,  # noqa: F811
    tools: Tools,
) -> None:
    assert sluice_pki("trust", "install", "--authority", "internal").code == 2
    assert sluice_pki("trust", "install").code == 1, "there is no authority"
    assert sluice_pki("trust", "uninstall").code == 2
    assert sluice_pki("init").code == 0
    tools.fails = True
    failed = sluice_pki("trust", "install")
    assert (failed.code, "done: write" in failed.out) == (1, True)
    assert "not done: run /tools/update-ca-certificates" in failed.err
    nowhere = sluice_pki("trust", "show", "--store", "java")
    assert (nowhere.code, "no trust store was found" in nowhere.err) == (1, True)


def test_an_authority_with_name_constraints_is_installed_without_a_warning(
    sluice_pki: Command,  # noqa: F811
    tools: Tools,
    tmp_path: Path,
) -> None:
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "home" / "sluice.toml").write_text('[pki]\nedge_names = ["example.test"]\n')
    assert sluice_pki("init").code == 0
    installed_ = sluice_pki("trust", "install")
    assert (installed_.code, installed_.err) == (0, "")
    assert len(tools.ran) == 1


def test_a_trust_place_is_formatted_with_its_kind_and_path() -> None:
    assert str(TrustPlace(StoreKind.JAVA, Path("/x/cacerts"), ("keytool",))) == "java /x/cacerts"
