"""Audits a home's files and sockets, and the kernel's table of listeners.

Each fault gives exactly its own finding.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from sluice.audit.checks import listening
from sluice.audit.discovery import find
from sluice.audit.errors import AuditError
from sluice.audit.model import Kind, Listener
from sluice.audit.runner import examine
from sluice.audit.subject import Options, Subject
from sluice.core.files import make_private_directory
from sluice.core.home import Home
from sluice.pki.spiffe_id import Role, SpiffeId
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.integration.audit.conftest import found

TASKMANAGER = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home with one correct identity and an Envoy that fails closed."""
    pki = TestPki(tmp_path)
    pki.issuer.revocations.refresh_all()
    pki.issuer.issue_to(pki.home.identity(Role.TASKMANAGER, "tm-1"), TASKMANAGER)
    _bootstrap(pki.home, allow=False)
    return pki.home


def _bootstrap(home: Home, *, allow: object) -> None:
    make_private_directory(home.run / "envoy")
    document = {"http_filters": [{"typed_config": {"failure_mode_allow": allow}}]}
    (home.run / "envoy" / "configuration.json").write_text(json.dumps(document))


def findings(home: Home, options: Options | None = None, unreadable: tuple[str, ...] = ()) -> set[str]:
    """Examine ``home``; returns the ids of the checks with a finding."""
    listener = Listener(name="home", kind=Kind.HOME, path=str(home.root))
    return found(examine("a test", [Subject(listener, options or Options(), unreadable=unreadable)]))


def test_a_home_in_order_gives_no_finding(home: Home) -> None:
    assert findings(home) == set()


def _world_readable_key(home: Home) -> None:
    (home.identity(Role.TASKMANAGER, "tm-1") / "key.pem").chmod(0o644)


def _long_lived_leaf(home: Home) -> None:
    from sluice.pki.config import PkiConfig
    from sluice.pki.issuing.issuer import LocalIssuer

    issuer = LocalIssuer(home, PkiConfig(trust_domain=TRUST_DOMAIN))
    directory = home.identity(Role.TASKMANAGER, "tm-2")
    issuer.issue_to(directory, SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-2"), lifetime=dt.timedelta(days=90))


def _no_list(home: Home) -> None:
    (home.identity(Role.TASKMANAGER, "tm-1") / "crl.pem").unlink()


def _damaged_list(home: Home) -> None:
    (home.identity(Role.TASKMANAGER, "tm-1") / "crl.pem").write_bytes(b"damaged")


def _announce(home: Home, name: str, **said: str) -> None:
    endpoints = make_private_directory(home.run / "endpoints")
    (endpoints / f"taskmanager-{name}.json").write_text(json.dumps({"name": name, "jobmanager": "jm", **said}))


def _not_isolated(home: Home) -> None:
    _announce(home, "tm-1", isolation="sandbox", egress="enforce")
    _announce(home, "tm-2", isolation="none", egress="enforce")


def _open_to_anything(home: Home) -> None:
    _announce(home, "tm-1", isolation="sandbox", egress="enforce")
    _announce(home, "tm-2", isolation="sandbox", egress="off")


def _says_nothing(home: Home) -> None:
    _announce(home, "tm-1")


def test_isolated_jobs_are_no_finding(home: Home) -> None:
    _announce(home, "tm-1", isolation="sandbox", egress="enforce")
    _announce(home, "tm-2", isolation="uid", egress="audit")
    assert findings(home) == set()


def _fails_open(home: Home) -> None:
    _bootstrap(home, allow=True)


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        pytest.param(_world_readable_key, {"HOM-01"}, id="key readable by everybody"),
        pytest.param(_long_lived_leaf, {"HOM-02"}, id="long-lived leaf"),
        pytest.param(_no_list, {"HOM-03"}, id="no revocation list"),
        pytest.param(_damaged_list, {"HOM-03"}, id="damaged revocation list"),
        pytest.param(_fails_open, {"HOM-04"}, id="gateway fails open"),
        pytest.param(_not_isolated, {"ISO-01"}, id="a TaskManager without a sandbox"),
        pytest.param(_open_to_anything, {"ISO-02"}, id="a TaskManager whose jobs connect to anything"),
        pytest.param(_says_nothing, {"ISO-01", "ISO-02"}, id="a TaskManager that does not say"),
    ],
)
def test_each_fault_in_a_home_gives_exactly_its_finding(
    spoil: Callable[[Home], None], expected: set[str], home: Home
) -> None:
    spoil(home)
    assert findings(home) == expected


def test_a_stale_revocation_list_is_found(home: Home) -> None:
    later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=25)
    assert findings(home, Options(clock=lambda: later)) == {"HOM-02", "HOM-03"}  # the leaf has expired as well


def test_unreadable_processes_are_a_finding(home: Home) -> None:
    assert findings(home, unreadable=("pid 1",)) == {"HOM-05"}


@pytest.fixture
def running(home: Home) -> Home:
    """A home in which the test process itself is registered as the launcher of a cluster."""
    home.create()
    entry = {"name": "launcher", "pid": os.getpid(), "started_at": psutil.Process().create_time()}
    (home.run / "cluster.json").write_text(json.dumps({"launcher": entry, "children": []}))
    (home.run / "endpoints").mkdir(exist_ok=True)
    return home


def _listeners(home: Home) -> dict[tuple[str, int], Kind]:
    return {each.address: each.kind for each in find(home, lambda _: True).listeners if each.port}


def test_a_listener_that_nobody_declared_is_found_in_the_kernels_table(running: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stray:
        address = stray.getsockname()[:2]
        assert _listeners(running)[address] is Kind.UNDECLARED
        listener = next(each for each in find(running, lambda _: True).listeners if each.address == address)
        report = examine("a test", [Subject(listener, Options())])
        assert found(report) == {"LSN-01"}
        (finding,) = report.findings()
        assert str(os.getpid()) in finding.seen
    assert address not in _listeners(running)


def test_a_listener_at_its_declared_address_is_not_reported_as_undeclared(running: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as edge:
        host, port = edge.getsockname()[:2]
        (running.run / "endpoints" / "envoy.json").write_text(json.dumps({"host": host, "port": port}))
        assert _listeners(running)[host, port] is Kind.SERVER


def test_a_declared_port_on_every_interface_is_a_finding(running: Home) -> None:
    with socket.create_server(("0.0.0.0", 0)) as edge:  # noqa: S104  what must be found
        port = edge.getsockname()[1]
        (running.run / "endpoints" / "envoy.json").write_text(json.dumps({"host": "127.0.0.1", "port": port}))
        listener = next(each for each in find(running, lambda _: True).listeners if each.port == port)
        from sluice.audit.catalogue import by_id

        assert found(examine("a test", [Subject(listener, Options(timeout=0.3))], checks=[by_id()["LSN-02"]])) == {
            "LSN-02"
        }


@pytest.mark.parametrize(
    ("mode", "directory_mode", "expected"),
    [(0o600, 0o755, set()), (0o666, 0o700, set()), (0o666, 0o755, {"LSN-04"}), (0o660, 0o750, {"LSN-04"})],
)
def test_a_unix_socket_that_others_can_open_is_found(
    mode: int, directory_mode: int, expected: set[str], tmp_path: Path
) -> None:
    directory = tmp_path / "s"
    directory.mkdir()
    path = directory / "x.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        path.chmod(mode)
        directory.chmod(directory_mode)
        listener = Listener(name="x", kind=Kind.SOCKET, path=str(path))
        assert found(examine("a test", [Subject(listener, Options())])) == expected


@pytest.mark.parametrize(("mode", "expected"), [(0o660, set()), (0o662, {"LSN-04"})])
def test_a_unix_socket_is_a_finding_if_users_outside_its_job_group_can_open_it(
    mode: int, expected: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "JOB_UIDS", range(os.getegid(), os.getegid() + 1))
    path = tmp_path / "s" / "api.sock"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
        path.chmod(mode)
        path.parent.chmod(0o711)
        listener = Listener(name="x", kind=Kind.SOCKET, path=str(path))
        assert found(examine("a test", [Subject(listener, Options())])) == expected


@pytest.mark.parametrize(("bound", "expected"), [("127.0.0.1", set()), ("0.0.0.0", {"LSN-02", "LSN-05"})])  # noqa: S104  what must be found
def test_a_listener_without_tls_must_be_bound_to_loopback(bound: str, expected: set[str]) -> None:
    listener = Listener(name="py4j", kind=Kind.LOCAL, host="127.0.0.1", port=1, bound=(bound,))
    assert found(examine("a test", [Subject(listener, Options())])) == expected


def test_a_home_without_a_running_cluster_is_an_error(home: Home) -> None:
    with pytest.raises(AuditError, match="no cluster is running"):
        find(home, lambda _: True)


def test_a_damaged_endpoint_registry_is_an_error(running: Home) -> None:
    (running.run / "endpoints" / "jobmanager.json").write_text("{")
    with pytest.raises(AuditError, match="cannot be read"):
        find(running, lambda _: True)
