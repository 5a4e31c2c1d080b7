"""The audit of a stock Flink session cluster from PyPI, given a target file.

It finds the cluster open, and names the settings that close it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sluice.cli.main import app
from sluice.runtime.spark.java import find_java
from tests.free_ports import free_ports
from tests.integration.programs.ports import exchange, running, tail, until
from tests.programs.conftest import program
from tests.programs.test_flink import INTERNAL, SETTINGS, START_SECONDS

pytestmark = pytest.mark.timeout(900)

OVERVIEW = b"GET /overview HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """Start a JobManager and a TaskManager with Flink's own configuration except for the ports."""
    root = tmp_path_factory.mktemp("stock-flink")
    home = next(program("flink").glob("lib/python3*/site-packages/pyflink"))
    place = root / "conf"
    place.mkdir()
    (root / "tmp").mkdir()
    names = (*INTERNAL, "rest")
    found = dict(zip(names, free_ports(len(names)), strict=True))
    (opened,) = re.findall(r"^ +all: (.+)$", (home / "conf" / "config.yaml").read_text(), re.MULTILINE)
    settings = SETTINGS.format(temporary=root / "tmp", **found) + f"env.java.opts.all: {opened}\n"
    (place / "config.yaml").write_text(settings)
    for file in home.glob("conf/log4j*.properties"):
        (place / file.name).write_bytes(file.read_bytes())
    environment = {
        "PATH": f"{program('flink/bin').absolute()}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(root),
        "FLINK_HOME": str(home),
        "FLINK_CONF_DIR": str(place),
        "FLINK_LOG_DIR": str(root),
        "JAVA_HOME": str(find_java().executable.resolve().parent.parent),
    }
    with ExitStack() as stack:
        for name in ("jobmanager", "taskmanager"):
            argv: list[str | Path] = ["bash", home / "bin" / f"{name}.sh", "start-foreground"]
            stack.enter_context(running(argv, root / f"{name}.out", environment))
        logs = root / "jobmanager.out"
        until(
            lambda: b'"taskmanagers":1,' in exchange(found["rest"], None, OVERVIEW), lambda: tail(logs), START_SECONDS
        )
        yield found


@pytest.fixture(scope="module")
def results(ports: dict[str, int], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The findings of `sluice audit --targets`, by listener and check."""
    targets = tmp_path_factory.mktemp("targets") / "targets.toml"
    expected = {name: "http" if name == "rest" else "mutual" for name in ports}
    targets.write_text(
        "".join(
            f'[[target]]\nname = "{name}"\nhost = "127.0.0.1"\nport = {port}\nexpected = "{expected[name]}"\n'
            for name, port in ports.items()
        )
    )
    done = CliRunner().invoke(app, ["audit", "--targets", str(targets), "--json"])
    assert done.exit_code == 1, done.output
    found: dict[str, dict[str, Any]] = {name: {} for name in ports}
    for each in json.loads(done.stdout)["results"]:
        if each["outcome"] == "finding":
            found[each["listener"]][each["check"]] = each
    return found


def test_audit_finds_flinks_open_rest_endpoint_and_names_flinks_own_settings(
    results: dict[str, dict[str, Any]],
) -> None:
    assert results["rest"].keys() == {"EDG-09"}
    finding = results["rest"]["EDG-09"]
    assert finding["severity"] == "critical"
    assert "/overview (200)" in finding["seen"]
    assert "/jars (200)" in finding["seen"]  # whoever may upload a jar runs code
    for setting in ("rest.bind-address", "security.ssl.rest.authentication-enabled", "web.submit.enable=false"):
        assert setting in finding["remedy"]


@pytest.mark.parametrize("port", INTERNAL)
def test_audit_finds_flinks_internal_ports_without_tls_and_names_flinks_own_setting(
    port: str, results: dict[str, dict[str, Any]]
) -> None:
    assert "TLS-02" in results[port], results[port].keys()
    finding = results[port]["TLS-02"]
    assert finding["severity"] == "high"
    assert "no TLS handshake is possible" in finding["seen"]
    assert "security.ssl.internal.enabled: true" in finding["remedy"]
    # nothing that needs a handshake is taken for a pass or blamed
    assert not [check for check in results[port] if check.startswith(("MTL", "CRT"))]
