"""Ways in which a pipeline could once become administrator, tried with and without a box.

The job's directory is in the home of the cluster, as on a machine with ``sluice up``.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.core.home import Home
from sluice.gateway.credentials.assertion import publish_keys
from sluice.gateway.credentials.signing_keys import AccessTokenKeys
from sluice.pki.assertions import assertion_keys_file
from sluice.pki.config import PkiConfig
from sluice.pki.issuing import LocalIssuer
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.runtime.sandbox import IsolationConfig, IsolationLevel, Sandbox
from tests.integration.runtime.sandbox.conftest import JOB, Boxes

ATTACK = r"""
import json, pathlib, socket, sys
home, cache = map(pathlib.Path, sys.argv[1:3])
done = []

def attempt(name, run):
    try:
        run()
    except OSError:
        return
    done.append(name)

def believed_key():
    file = home / "gateway" / "assertion-keys.json"
    keys = json.loads(file.read_text())
    file.write_text(json.dumps(keys | {"intruder": True}))

def rest():
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(home / "rest.sock"))

attempt("sign as the gateway", lambda: next((home / "gateway" / "pass-keys").iterdir()).read_bytes())
attempt("have REST believe a key", believed_key)
attempt("sign as the authority", lambda: (home / "pki/authorities/internal/key.pem").read_bytes())
attempt("be the JobManager", lambda: (home / "pki/identities/jobmanager/jobmanager-1/key.pem").read_bytes())
attempt("be the other job", lambda: next((home / "work").glob("*/jobs/f*/*/identity/key.pem")).read_bytes()
        if list((home / "work").glob("*/jobs/f*/*/identity/key.pem")) else (home / "missing").read_bytes())
attempt("ask REST", rest)
attempt("replace the agent of every JVM", lambda: (cache / "sluice-spark.jar").write_bytes(b"intruder"))
attempt("leave code beside it", lambda: (cache / "sluice-spark-new.jar").write_bytes(b"intruder"))
print(json.dumps(done))
"""
ALL = [
    "sign as the gateway",
    "have REST believe a key",
    "sign as the authority",
    "be the JobManager",
    "be the other job",
    "ask REST",
    "replace the agent of every JVM",
    "leave code beside it",
]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A home with keys, a REST socket and the identity of another job."""
    made = Home.at(tmp_path / "home").create()
    keys = AccessTokenKeys.of(made)
    keys.refresh(time.time())
    publish_keys(made, keys)
    issuer = LocalIssuer(made, PkiConfig())
    issuer.ensure_authorities()
    trust_domain = PkiConfig().trust_domain
    name = SpiffeId.process(trust_domain, Role.JOBMANAGER, "jobmanager-1")
    issuer.issue_to(made.pki / "identities/jobmanager/jobmanager-1", name)
    other = made.root / "work/taskmanager-1/jobs" / ("f" * 32) / "driver-1/identity"
    issuer.issue_to(other, SpiffeId.driver(trust_domain, "f" * 32))
    with socket.socket(socket.AF_UNIX) as rest:
        rest.bind(str(made.root / "rest.sock"))
        rest.listen()
        yield made


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A directory of cached code, which is read-only in a box."""
    made = tmp_path / "cache"
    made.mkdir(mode=0o755)
    (made / "sluice-spark.jar").write_bytes(b"agent")
    return made


def _boxes(sandbox: Sandbox, home: Home) -> Boxes:
    directory = home.root / "work/taskmanager-1/jobs" / JOB / "driver-1"
    for name in ("work", "logs"):
        (directory / name).mkdir(mode=0o700, parents=True)
    return Boxes(sandbox, directory / "work", directory / "logs")


async def _attack(sandbox: Sandbox, home: Home, cache: Path) -> object:
    boxes = _boxes(sandbox, home)
    box = boxes.box(read_only=[cache])
    ended = await boxes.run(sys.executable, "-I", "-c", ATTACK, str(home.root), str(cache), box=box)
    assert ended.exit.code == 0, ended.err
    return json.loads(ended.out)


def _contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


async def test_no_pipeline_gains_more_rights_than_its_job(sandbox: Sandbox, home: Home, cache: Path) -> None:
    believed = assertion_keys_file(home).read_bytes()
    assert await _attack(sandbox, home, cache) == []
    assert assertion_keys_file(home).read_bytes() == believed
    assert _contents(cache) == {"sluice-spark.jar": b"agent"}


async def test_every_attack_path_is_open_without_isolation(home: Home, cache: Path) -> None:
    none = Sandbox.prepare(IsolationConfig(level=IsolationLevel.NONE))
    assert await _attack(none, home, cache) == ALL
