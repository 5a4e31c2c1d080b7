"""The program as pip installs it runs a cluster in an empty folder: there is no checkout that it could lean on."""

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
    """Nothing at the top of a module needs a tool of development, and all of them come from the wheel."""
    packages = [f"sluice.{part}" for part in ("audit", "cli", "client", "core", "gateway", "pki", "runtime")]
    done = installed.run("python", "-P", "-c", IMPORT_ALL, *packages)
    assert done.returncode == 0, done.stderr
    files = json.loads(done.stdout)
    assert len(files) > 300
    assert [each for each in files if not each.startswith(str(installed.environment))] == []


def test_a_spark_session_names_what_has_to_be_installed_for_it(installed: Installed, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("slt_" + "a" * 40)
    token.chmod(0o600)
    code = "import sluice, sys; sluice.spark_session('https://localhost:1', token_file=sys.argv[1])"
    done = installed.run("python", "-P", "-c", code, str(token))
    assert done.returncode == 1
    assert "pyspark[connect]" in done.stderr


def test_the_demo(installed: Installed) -> None:
    done = installed.run("sluice", "demo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Submitting cert_inventory.py through the gateway" in done.stderr
    assert "API token of demo" in done.stdout
    assert "nothing is left running" in done.stderr


@pytest.fixture(scope="module")
def cluster(installed: Installed) -> Iterator[Installed]:
    """One that runs in the empty folder, from `up` to `down`, which must end it."""
    installed.sluice("up", "--detach", "--port", "0")
    try:
        installed.sluice("token", "create", "me", "--role", "admin", "--output", ".sluice/token")
        yield installed
    finally:
        installed.sluice("down")
    assert installed.run("sluice", "status").returncode == 1
    assert not (installed.folder / ".sluice" / "run" / "cluster.json").exists()


def test_a_job(cluster: Installed) -> None:
    (cluster.folder / "total.py").write_text(PIPELINE)
    assert "sum: 499500" in cluster.sluice("submit", "total.py", "--wait")
    (job,) = cluster.json("jobs", "list")["jobs"]
    assert job["state"] == "FINISHED"


def test_the_audit(cluster: Installed) -> None:
    results = cluster.json("audit")["results"]
    assert [each for each in results if each["outcome"] == "finding"] == []
    assert {"edge", "rpc", "blob", "ca"} <= {each["listener"] for each in results if each["outcome"] == "passed"}


def test_pki(cluster: Installed) -> None:
    cluster.sluice("pki", "issue", "user/ada", "--out", "ada")
    assert "verified spiffe://sluice.local/user/ada" in cluster.sluice("pki", "verify", "ada")
    assert "spiffe://sluice.local/user/ada" in cluster.sluice("pki", "inspect", "ada/chain.pem")


def test_a_set_for_containers_has_what_its_image_is_built_from(
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


def test_a_wheel_is_not_packed_from_files_that_were_changed(installed: Installed) -> None:
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
