"""JDBC with everything real: Spark's driver in Hive's Beeline, Envoy, the auth service, a session cluster."""

from __future__ import annotations

import csv
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest

from sluice.core.home import Home
from sluice.gateway.credentials.token_file import TokenStore, create_token
from sluice.pki.assertions.principal import TokenId
from sluice.runtime.spark import find_preferred_java
from tests.integration.cluster.conftest import LocalCluster, start_cluster

JARS = Path(pyspark.__file__).parent / "jars"
DRIVER = "org.apache.spark.sql.connect.client.jdbc.SparkConnectDriver"
JAVA_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--sun-misc-unsafe-memory-access=allow",
    "-Dio.netty.tryReflectionSetAccessible=true",
)
"""Arrow in the driver needs them."""
BEELINE_SECONDS = 100


@dataclass
class Beeline:
    """Runs SQL in Beeline as the owner of a token."""

    cluster: LocalCluster
    directory: Path

    def token(self, name: str, role: str = "submitter") -> str:
        return create_token(Home.at(self.cluster.home), name=name, role=role)

    def run(self, token: str, *statements: str) -> tuple[int, list[list[str]], str]:
        """Run SQL statements; return the exit code, the rows, and standard error."""
        remote = self.cluster.json("connect")["remote"]
        properties, script, trust = (self.directory / name for name in ("beeline.properties", "sql", "edge.jks"))
        if not trust.exists():
            self.cluster.sluice("pki", "export", "edge", "--format", "jks-trust", "--output", str(trust))
        # Beeline asks for a user and a password where there is none; the driver does not look at them.
        lines = (f"URL=jdbc:{remote};token={token}", f"DriverName={DRIVER}", "UserName=nobody", "Password=none")
        properties.touch(0o600)
        properties.write_text("".join(f"Connection{line}\n" for line in lines))
        script.write_text("".join(f"{each};\n" for each in statements))
        done = subprocess.run(
            [
                find_preferred_java().executable,
                *JAVA_OPTIONS,
                f"-Djavax.net.ssl.trustStore={trust}",
                *("-cp", f"{JARS}/connect-repl/*:{JARS}/*", "org.apache.hive.beeline.BeeLine"),
                *("--property-file", str(properties), "--isolation=TRANSACTION_NONE"),
                *("--outputformat=csv2", "--silent=true", "-f", str(script)),
            ],
            env={**os.environ, "HOME": str(self.directory)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BEELINE_SECONDS,
            check=False,
        )
        return done.returncode, [row for row in csv.reader(done.stdout.splitlines()) if row], done.stderr


@pytest.fixture(scope="module")
def beeline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beeline]:
    directory = tmp_path_factory.mktemp("jdbc")
    home = directory / "home"
    home.mkdir()
    (home / "sluice.toml").write_text("[shuffle]\nenabled = false\n[taskmanager]\ncount = 1\nslots = 2\n")
    cluster = start_cluster(home)
    yield Beeline(cluster, directory)
    cluster.sluice("down")


@pytest.mark.timeout(400)
def test_statements_of_two_users_run_in_sessions_of_their_own(beeline: Beeline) -> None:
    ada, bob = beeline.token("ada"), beeline.token("bob")
    code, rows, said = beeline.run(
        ada,
        "CREATE OR REPLACE TEMPORARY VIEW numbers AS SELECT id AS n, array(id) AS held FROM range(1000)",
        "SELECT count(*) AS counted, sum(n) AS total FROM numbers",
        "SELECT n, cast(held AS STRING) AS held FROM numbers WHERE n > 997",
    )
    assert code == 0, said
    assert rows == [["counted", "total"], ["1000", "499500"], ["n", "held"], ["998", "[998]"], ["999", "[999]"]]
    for token in (ada, bob):  # a connection of the same user is a session of its own, too
        code, rows, said = beeline.run(token, "SELECT count(*) FROM numbers")
        assert (code, rows) == (2, [])
        assert "TABLE_OR_VIEW_NOT_FOUND" in said
    owners = {job["owner"] for job in beeline.cluster.get("/v1/jobs")["jobs"] if job["kind"] == "CONNECT"}
    assert owners == {"ada", "bob"}


@pytest.mark.timeout(400)
def test_an_error_of_spark_is_reported_as_an_error_of_the_statement(beeline: Beeline) -> None:
    code, rows, said = beeline.run(beeline.token("ada"), "SELECT 1 / 0 AS impossible")
    assert (code, rows) == (2, [["impossible"]])
    assert "DIVIDE_BY_ZERO" in said


@pytest.mark.timeout(400)
@pytest.mark.parametrize("why", ["guessed", "viewer", "revoked"])
def test_a_guessed_or_revoked_token_or_one_of_a_viewer_is_refused(beeline: Beeline, why: str) -> None:
    token = {"guessed": "slc_" + "g" * 43}.get(why) or beeline.token(why, "viewer" if why == "viewer" else "submitter")
    if why == "revoked":
        TokenStore(Home.at(beeline.cluster.home)).revoke(TokenId(token.split("_")[1]))
    code, rows, said = beeline.run(token, "SELECT 1 AS answer")
    assert code != 0
    assert rows == []
    assert ("PERMISSION_DENIED" if why == "viewer" else "UNAUTHENTICATED") in said
    assert why not in {job["owner"] for job in beeline.cluster.get("/v1/jobs")["jobs"]}
