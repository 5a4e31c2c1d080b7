"""The program as installed by pip runs a cluster in an empty folder, without any checkout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.wheel.conftest import ROOT, Distributions, Installed
from tests.wheel.test_contents import DATA, METADATA, contents

pytestmark = pytest.mark.timeout(600)

PIPELINE = """
from pyspark.sql import SparkSession, functions as F

spark = SparkSession.builder.getOrCreate()
total = spark.range(1000).repartition(3).agg(F.sum("id")).first()[0]
print(f"sum: {total}")
"""

IMPORT_ALL = """
import importlib, json, pkgutil, sys
names = []
for package in sys.argv[1:]:
    found = importlib.import_module(package)
    names += [package, *(each.name for each in pkgutil.walk_packages(found.__path__, package + "."))]
names.remove("sluice.runtime.spark.training.job")  # a job, which runs when it is imported
names.remove("sluice.runtime.spark.driver.program.waiting_python")  # a program for python -c, which does as well
names.remove("sluice.audit.insider.pipeline")  # a job too
names.remove("sluice.client.spark_channel")  # for users with pyspark[connect]; sluice.spark_session says so otherwise
for name in names:
    importlib.import_module(name)
print(json.dumps([sys.modules[name].__file__ for name in names]))
"""


def test_every_module_can_be_imported_with_what_is_installed(installed: Installed) -> None:
    """No module needs a development tool at import time, and all of them come from the wheel."""
    packages = [f"sluice.{part}" for part in ("audit", "cli", "client", "core", "gateway", "pki", "runtime")]
    done = installed.run("python", "-P", "-c", IMPORT_ALL, *packages)
    assert done.returncode == 0, done.stderr
    files = json.loads(done.stdout)
    assert len(files) > 300
    assert [each for each in files if not each.startswith(str(installed.environment))] == []


def test_spark_session_without_pyspark_names_the_package_to_install(installed: Installed, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("slt_" + "a" * 40)
    token.chmod(0o600)
    code = "import sluice, sys; sluice.spark_session('https://localhost:1', token_file=sys.argv[1])"
    done = installed.run("python", "-P", "-c", code, str(token))
    assert done.returncode == 1
    assert "pyspark[connect]" in done.stderr


def test_the_installed_demo_runs_and_leaves_nothing_running(installed: Installed) -> None:
    done = installed.run("sluice", "demo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Submitting cert_inventory.py through the gateway" in done.stderr
    assert "API token of demo" in done.stdout
    assert "nothing is left running" in done.stderr


@pytest.fixture(scope="module")
def cluster(installed: Installed) -> Iterator[Installed]:
    """A cluster in the empty folder, started with `up` and ended with `down`.

    The fixture checks that nothing is left running.
    """
    installed.sluice("up", "--detach", "--port", "0")
    try:
        installed.sluice("token", "create", "me", "--role", "admin", "--output", ".sluice/token")
        yield installed
    finally:
        installed.sluice("down")
    assert installed.run("sluice", "status").returncode == 1
    assert not (installed.folder / ".sluice" / "run" / "cluster.json").exists()


def test_an_installed_cluster_runs_a_submitted_job(cluster: Installed) -> None:
    (cluster.folder / "total.py").write_text(PIPELINE)
    assert "sum: 499500" in cluster.sluice("submit", "total.py", "--wait")
    (job,) = cluster.json("jobs", "list")["jobs"]
    assert job["state"] == "FINISHED"


def test_an_installed_cluster_passes_the_audit(cluster: Installed) -> None:
    results = cluster.json("audit")["results"]
    assert [each for each in results if each["outcome"] == "finding"] == []
    assert {"edge", "rpc", "blob", "ca"} <= {each["listener"] for each in results if each["outcome"] == "passed"}


def test_an_installed_cluster_issues_and_verifies_a_user_identity(cluster: Installed) -> None:
    cluster.sluice("pki", "issue", "user/ada", "--out", "ada")
    assert "verified spiffe://sluice.local/user/ada" in cluster.sluice("pki", "verify", "ada")
    assert "spiffe://sluice.local/user/ada" in cluster.sluice("pki", "inspect", "ada/chain.pem")


def test_compose_init_writes_the_wheel_and_dockerfile_for_its_image(
    installed: Installed, distributions: Distributions
) -> None:
    written = installed.json("compose", "init", "site")
    image = installed.folder / "site" / "image"
    (wheel,) = image.glob("*.whl")
    assert wheel.name == distributions.wheel.name
    packed, built = contents(wheel), contents(distributions.wheel)
    built = {name: data for name, data in built.items() if not name.startswith(DATA)}  # nobody reads manuals there
    # The record lists the same files with the same digests, in another order.
    lines = [sorted(each.pop(f"{METADATA}/RECORD").decode().split()) for each in (packed, built)]
    records = [[line for line in each if not line.startswith(DATA)] for each in lines]
    assert records[0] == records[1]
    assert packed == built
    assert (image / "Dockerfile").read_bytes() == (ROOT / "compose" / "Dockerfile").read_bytes()
    assert (image / "run.txt").read_bytes() == (ROOT / "requirements" / "run.txt").read_bytes()
    assert {f"image/{each.name}" for each in image.iterdir()} < set(written["files"])
    assert (installed.folder / "site" / "seccomp.json").read_bytes() == (ROOT / "compose/seccomp.json").read_bytes()


def test_compose_init_refuses_to_pack_a_wheel_from_changed_files(installed: Installed) -> None:
    (changed,) = installed.environment.glob("lib/python3*/site-packages/sluice/pki/tls/openssl.cnf")
    kept = changed.read_bytes()
    changed.write_bytes(kept + b"\n")
    try:
        done = installed.run("sluice", "compose", "init", "changed")
    finally:
        changed.write_bytes(kept)
    assert done.returncode == 4
    assert "openssl.cnf is not what was installed" in done.stderr
    assert not (installed.folder / "changed").exists()
