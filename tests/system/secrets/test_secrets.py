"""A cluster whose jobs use secrets: they work, and no value is visible outside these jobs' sandboxes."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from sluice.client.access import resolve_access
from sluice.core.home import Home
from sluice.pki.tls import edge_client_context
from sluice.runtime.rest_server.routes import PUBLISHED
from tests.integration.cluster.conftest import (
    COMMAND,
    REPOSITORY,
    LocalCluster,
    eventually,
    start_cluster,
    without_shuffle,
)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

PIPELINES = Path(__file__).with_name("pipelines")
LINE = 64
FORMS_OF_AT_LEAST = 8


def values() -> dict[str, bytes]:
    """Ten realistic secret values, freshly generated."""
    token = secrets.token_urlsafe
    body = base64.b64encode(secrets.token_bytes(1200)).decode()
    lines = "\n".join(body[at : at + LINE] for at in range(0, len(body), LINE))
    return {
        "a-token": token(30).encode(),
        "api.key": f"sk-{token(24)}".encode(),
        "binary": secrets.token_bytes(256),
        "eight": token(6).encode(),
        "json": json.dumps({"user": "loader", "password": token(20)}, indent=1).encode(),
        "large": base64.b64encode(secrets.token_bytes(45_000)),
        "odd": f'p@ss/{token(9)}+{token(9)}="{token(6)}"%\\'.encode(),
        "pem": f"-----BEGIN PRIVATE KEY-----\n{lines}\n-----END PRIVATE KEY-----\n".encode(),
        "unicode": f"pässwörd-{token(12)}-{token(8)}".encode(),
        "url": f"postgresql://loader:{token(18)}@db.example.com:5432/x?sslmode=require".encode(),
    }


VALUES = values()
ON_EXECUTORS = {"a-token", "pem", "url", "binary", "large"}


def forms(value: bytes) -> set[bytes]:
    """The forms in which a value could appear: whole, line by line, and encoded, also within longer data."""
    text = value.strip()
    found = {text, text.hex().encode(), text.hex().upper().encode()}
    for before in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            found.add(encode(bytes(before) + text)[4:-4])
    if b"\n" in text:
        found |= {line.strip() for line in text.splitlines() if not line.startswith(b"-----")}
    return {form for form in found if len(form) >= FORMS_OF_AT_LEAST and b'"loader"' not in form}


def shown_in(data: bytes, expected: Mapping[str, bytes] = VALUES) -> list[str]:
    """The names of the secrets that occur in ``data``."""
    return [name for name, value in expected.items() if any(form in data for form in FORMS[name])]


FORMS = {name: forms(value) for name, value in VALUES.items()}


@dataclass(frozen=True)
class SecretCluster(LocalCluster):
    """A cluster, and the directory for the temporary files of its processes."""

    temporary: Path

    def put(self, name: str, value: bytes) -> None:
        """Store a value, passing it through a pipe only."""
        done = subprocess.run(
            [*COMMAND, "secret", "put", name, "--file", "-", "--keep-newline"],
            cwd=REPOSITORY,
            env=os.environ | {"SLUICE_HOME": str(self.home)},
            input=value,
            capture_output=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert not shown_in(done.stdout + done.stderr)

    def folder(self, name: str) -> Path:
        """A folder that jobs may write."""
        path = self.shared / name
        path.mkdir()
        path.chmod(0o777)
        return path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecretCluster]:
    """A cluster with ten secrets, all granted to the tester."""
    temporary = Path(tempfile.mkdtemp(prefix="sls-", dir="/tmp"))  # sockets need short paths
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        temporary.chmod(0o755)
        started = start_cluster(without_shuffle(tmp_path_factory.mktemp("cluster") / "home"))
        cluster = SecretCluster(started.home, temporary)
        try:
            for name, value in VALUES.items():
                cluster.put(name, value)
                granted = cluster.sluice("secret", "grant", name, "--to", "user:tester")
                assert granted.returncode == 0, granted.stderr
            yield cluster
        finally:
            cluster.sluice("down")
            shutil.rmtree(temporary, ignore_errors=True)


@pytest.fixture(scope="module")
def running(cluster: SecretCluster) -> Iterator[tuple[str, dict[str, Any]]]:
    """A running job that has used and printed all ten secrets, and what it has seen."""
    folder = cluster.folder("uses")
    wanted = [
        option
        for name in VALUES
        for option in (("--executor-secret" if name in ON_EXECUTORS else "--secret"), f"{name}={name}")
    ]
    done = cluster.sluice("submit", str(PIPELINES / "uses.py"), *wanted, "--", str(folder))
    assert done.returncode == 0, done.stderr
    job_id = done.stdout.strip()

    def seen() -> Any:
        state = cluster.job(job_id)
        assert state["state"] not in {"FAILED", "FINISHED"}, state["failure"]
        path = folder / "seen"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    yield job_id, eventually(seen, "what the job saw", 300)
    (folder / "go").touch()
    cluster.wait_for_state(job_id, "FINISHED")


Running = tuple[str, dict[str, Any]]


def test_driver_and_executors_have_exactly_the_secrets_they_asked_for(running: Running) -> None:
    expected = {name: hashlib.sha256(value).hexdigest() for name, value in VALUES.items()}
    assert running[1]["driver"] == expected
    assert len(running[1]["executors"]) == 4
    for each in running[1]["executors"]:
        assert each == {name: digest for name, digest in expected.items() if name in ON_EXECUTORS}


def test_logs_have_marks_in_place_of_secret_values(cluster: SecretCluster, running: Running) -> None:
    job_id = running[0]
    names = cluster.get(f"/v1/jobs/{job_id}/logs")["logs"]
    logs = {name: everything(cluster, job_id, name) for name in names}
    assert {name: found for name, text in logs.items() if (found := shown_in(text.encode()))} == {}
    for name in VALUES:
        assert f"[secret {name}]" in logs["driver.stdout"]
        assert f"[secret {name}]" in logs["driver.stderr"]
    executors = "".join(text for name, text in logs.items() if name.startswith("executor-"))
    for name in ON_EXECUTORS:
        assert f"[secret {name}]" in executors


def everything(cluster: SecretCluster, job_id: str, source: str) -> str:
    """One complete log, read through the gateway."""
    text: str = ""
    offset = 0
    while True:
        piece = cluster.get(f"/v1/jobs/{job_id}/logs?source={source}&offset={offset}&limit=1048576")
        text, offset = text + piece["data"], piece["next_offset"]
        if piece["end"]:
            return text


def test_no_file_contains_a_secret_value(cluster: SecretCluster, running: Running) -> None:
    assert running
    files = [path for top in (cluster.home, cluster.temporary) for path in regular_files(top)]
    assert len(files) > 100
    assert {str(path): found for path in files if (found := shown_in(content(path)))} == {}


def regular_files(top: Path) -> Iterator[Path]:
    for where, _, names in os.walk(top):
        for name in names:
            path = Path(where) / name
            try:
                if stat.S_ISREG(path.lstat().st_mode):
                    yield path
            except FileNotFoundError:
                continue  # it has gone meanwhile


def content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def test_no_process_exposes_a_secret_value(cluster: SecretCluster, running: Running) -> None:
    assert running
    processes = cluster.processes()
    names = {name for each in processes if (name := _name(each))}
    assert {"java", "bwrap"} <= names
    told = {
        f"{each.pid}/{file}": found
        for each in processes
        for file in ("environ", "cmdline")
        if (found := shown_in(content_of_process(each.pid, file)))
    }
    assert told == {}


def content_of_process(pid: int, file: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def test_no_answer_and_no_page_contains_a_secret_value(cluster: SecretCluster, running: Running) -> None:
    answers = fetched(cluster, addresses(cluster, running[0]))
    good = [path for path, (status, _) in answers.items() if status == 200]
    assert len(good) > 25, {path: status for path, (status, _) in answers.items()}
    assert any("/ui/" in path for path in good)
    assert {path: found for path, (_, body) in answers.items() if (found := shown_in(body))} == {}


def addresses(cluster: SecretCluster, job_id: str) -> list[str]:
    """The paths of all GET routes, with existing values filled in for their parameters."""
    known = {
        "job_id": [job_id],
        "taskmanager_id": [each["id"] for each in cluster.get("/v1/taskmanagers")["taskmanagers"]],
        "secret": list(VALUES),
        "page": ["jobs", "stages", "environment", "executors", "SQL"],
    }
    found = []
    for route in PUBLISHED:
        if route.method != "GET" or route.stream:
            continue
        names = re.findall(r"\{([a-z_]+)\}", route.path)
        paths = [route.path]
        for name in names:
            paths = [path.replace(f"{{{name}}}", each) for path in paths for each in known.get(name, ["1"])]
        found += paths
    return found


def fetched(cluster: SecretCluster, paths: list[str]) -> dict[str, tuple[int, bytes]]:
    """Status and body of each path, fetched as an administrator."""

    async def fetch() -> dict[str, tuple[int, bytes]]:
        access = resolve_access(Home.at(cluster.home))
        headers = {"authorization": f"Bearer {access.token}", "accept": "*/*"}
        connector = aiohttp.TCPConnector(ssl=edge_client_context(access.ca_file))
        async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
            return {path: await answer(session, access.url + path) for path in paths}

    async def answer(session: aiohttp.ClientSession, url: str) -> tuple[int, bytes]:
        async with session.get(url) as response:
            return response.status, await response.read()

    return asyncio.run(fetch())


def test_each_use_of_a_secret_is_in_the_audit_log(cluster: SecretCluster, running: Running) -> None:
    records = audit_records(cluster)
    used = [each["detail"] for each in records if each.get("kind") == "secret.used"]
    of_job = [each for each in used if each["job"] == running[0]]
    drivers = [each for each in of_job if each["process"] == "driver"]
    assert sorted(each["secret"] for each in drivers) == sorted(VALUES)
    executors = {(each["process"], each["secret"]) for each in of_job if each["process"] != "driver"}
    assert len({process for process, _ in executors}) >= 1
    assert {each["secret"] for each in of_job if each["process"] != "driver" and each["shown"] == "yes"} == ON_EXECUTORS
    assert all(each["taskmanager"] and each["version"] == "1" for each in of_job)
    assert not shown_in(json.dumps(records).encode())
    assert cluster.sluice("audit-log", "verify").returncode == 0


def audit_records(cluster: SecretCluster) -> list[dict[str, Any]]:
    lines = (cluster.home / "gateway" / "audit").glob("*.jsonl")
    return [json.loads(line) for path in lines for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_job_that_asks_for_no_secret_finds_none(cluster: SecretCluster, running: Running) -> None:
    assert running
    done = cluster.sluice("submit", "--wait", str(PIPELINES / "none.py"))
    assert "found []" in done.stdout, done.stdout + done.stderr


def test_errors_of_a_job_do_not_contain_secret_values(cluster: SecretCluster) -> None:
    done = cluster.sluice(
        "submit", "--wait", str(PIPELINES / "fails.py"), "--secret", "url", "--executor-secret", "pem"
    )
    assert done.returncode == 1
    assert not shown_in((done.stdout + done.stderr).encode())
    job = next(each for each in cluster.get("/v1/jobs")["jobs"] if each["name"] == "fails.py")
    told = json.dumps(cluster.job(job["id"])) + json.dumps(cluster.get(f"/v1/jobs/{job['id']}/exceptions"))
    assert "no connection: [secret url]" in told
    assert not shown_in(told.encode())


@pytest.mark.parametrize(
    ("option", "code"),
    [("../api.key", 2), ("a/b", 2), ("a-token=../../x", 2), ("a-token=/etc/passwd", 2), ("", 2), ("unheard-of", 1)],
)
def test_malformed_and_unknown_secret_names_are_refused(cluster: SecretCluster, option: str, code: int) -> None:
    done = cluster.sluice("submit", str(PIPELINES / "none.py"), "--secret", option)
    assert done.returncode == code, done.stderr


def test_a_user_without_a_grant_is_refused_and_cannot_tell_whether_a_secret_exists(cluster: SecretCluster) -> None:
    token = cluster.home / "bob"
    made = cluster.sluice("token", "create", "bob", "--role", "submitter", "--output", str(token))
    assert made.returncode == 0, made.stderr
    told = []
    for name in ("a-token", "unheard-of"):
        done = cluster.sluice("submit", str(PIPELINES / "none.py"), "--secret", name, "--token-file", str(token))
        assert done.returncode == 1
        told.append(done.stderr.replace(name, "NAME"))
    assert told[0] == told[1]
    for verb in (["list"], ["versions", "a-token"], ["rm", "a-token"], ["grant", "a-token", "--to", "user:bob"]):
        done = cluster.sluice("secret", *verb, "--token-file", str(token))
        assert done.returncode == 1, done.stdout
        assert "may not secrets." in done.stderr


def test_the_next_attempt_gets_the_newest_version_and_none_after_revocation(cluster: SecretCluster) -> None:
    folder = cluster.folder("attempts")
    first, second = secrets.token_bytes(40), secrets.token_bytes(40)
    cluster.put("rotated", first)
    assert cluster.sluice("secret", "grant", "rotated", "--to", "job:tester/attempts").returncode == 0
    done = cluster.sluice(
        *("submit", str(PIPELINES / "attempts.py"), "--name", "attempts", "--secret", "rotated=password"),
        *("--restart-strategy", "fixed-delay", "--restart", "attempts=5", "--restart", "delay=0", "--", str(folder)),
    )
    assert done.returncode == 0, done.stderr
    job_id = done.stdout.strip()
    assert attempt(folder, 1) == hashlib.sha256(first).hexdigest()
    cluster.put("rotated", second)
    assert cluster.json("secret", "rotate-key")["unreadable"] == []
    (folder / "fail-1").touch()
    assert attempt(folder, 2) == hashlib.sha256(second).hexdigest()
    assert cluster.sluice("secret", "revoke", "rotated", "--to", "job:tester/attempts").returncode == 0
    (folder / "fail-2").touch()
    job = cluster.wait_for_state(job_id, "FAILED", "FINISHED")
    assert job["state"] == "FAILED"
    assert "there is no secret rotated for job 'attempts' of tester" in job["failure"]["error"]
    assert not (folder / "attempt-3").exists()
    assert any(each.get("kind") == "secret.refused" for each in audit_records(cluster))


def attempt(folder: Path, number: int) -> str:
    path = folder / f"attempt-{number}"
    eventually(path.exists, f"attempt {number}", 300)
    return path.read_text(encoding="utf-8")
