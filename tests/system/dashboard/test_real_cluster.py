"""A real cluster and a real browser: submit a job, watch it, view the connections, cancel it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.core.home import Home
from sluice.pki.spiffe_id import Role
from tests.integration.cluster.conftest import LocalCluster, start_cluster
from tests.system.browser.chromium import chromium, pin

from .conftest import WATCH, settled

PIPELINE = """
import time

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
print("the pipeline begins", flush=True)


def slow(rows):
    time.sleep(0.4)
    yield sum(1 for _ in rows)


counted = spark.sparkContext.parallelize(range(4000), 400).mapPartitions(slow).map(lambda n: (n % 3, n))
print(counted.reduceByKey(lambda one, other: one + other).collect())
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    running = start_cluster(tmp_path / "home")
    yield running
    running.sluice("down")


@pytest.mark.long
@pytest.mark.timeout(400)
async def test_a_job_of_a_real_cluster_is_watched_and_cancelled_in_a_browser(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    home = Home.at(cluster.home)
    program = tmp_path / "slow.py"
    program.write_text(PIPELINE)
    url = (await asyncio.to_thread(cluster.json, "status"))["gateway"]
    async with chromium(tmp_path / "profile", [pin(home.identity(Role.GATEWAY, "edge") / "chain.pem")]) as tab:
        await tab.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        # 1. The address of the gateway alone leads to signing in, and from there to the overview.
        await tab.go(url)
        await tab.until("document.querySelector('#api_token')", "the page to sign in")
        await tab.type_into("#api_token", (cluster.home / "token").read_text().strip())
        await tab.click("#sign-in-with-token")
        await tab.until(
            "location.pathname === '/ui' && document.querySelector('#part-taskmanagers tr[id]')", "signed in"
        )
        # 2. A job that is submitted elsewhere appears by itself, and moves.
        job_id = await asyncio.to_thread(cluster.submit, program)
        await tab.until(f"document.querySelector('#row-{job_id}')", "the job appears")
        await tab.go(f"{url}/ui/jobs/{job_id}")
        tasks = "document.querySelector('progress[aria-label=Tasks]').value"
        await tab.until(f"{tasks} > 0", "tasks are done")
        seen = await tab.evaluate(tasks)
        await tab.until(f"{tasks} > {seen}", "more of them, without anybody's doing")
        # 3. Who talks to whom: driver and executors with certificates of this job, in TLS 1.3.
        await tab.go(f"{url}/ui/jobs/{job_id}/trust")
        await tab.until("document.querySelectorAll('.map a.edge:not(.name)').length > 2", "its channels are drawn")
        text = await tab.text()
        assert re.search(r"job/[0-9a-f]{8}/driver", text)
        assert re.search(r"job/[0-9a-f]{8}/executor/\d", text)
        assert not {"problem", "ended"} & set(text.split("Channels", 1)[1].split())
        await tab.until(
            "[...document.querySelectorAll('.map a.node')].every(each => each.textContent.includes('left'))",
            "each end has shown its certificate",
        )
        await tab.go(f"{url}/ui/trust")
        await tab.until("document.querySelectorAll('#part-trust .map').length === 1", "the job is on the whole map too")
        await settled(tab)
        # 4. Its output is followed.
        await tab.go(f"{url}/ui/jobs/{job_id}/logs?source=driver.stdout")
        await tab.until("document.querySelector('#log').textContent.includes('the pipeline begins')", "what it prints")
        # 5. It is cancelled with a button that asks first.
        await tab.go(f"{url}/ui/jobs/{job_id}")
        await tab.until("document.querySelector('summary.danger')?.checkVisibility()", "who may cancel is offered to")
        await tab.click("summary.danger")
        await tab.click("#cancel")
        await tab.until("document.querySelector('.head .badge').textContent === 'CANCELED'", "it is cancelled")
        # 6. What only the gateway knows.
        await tab.go(f"{url}/auth/ui/pki")
        text = await tab.text()
        assert "root" in text
        assert "taskmanager/" in text
        await tab.go(f"{url}/auth/ui/audit-log?operation=jobs.cancel")
        assert "allow" in await tab.text()
        assert await tab.evaluate("window.violations") == []
