"""The quota on the total size of the files of one user's unfinished jobs."""

from __future__ import annotations

import msgspec

from sluice.runtime.config import LimitsConfig
from tests.integration.runtime.conftest import Cluster


async def test_the_files_of_unfinished_jobs_are_bounded_and_the_same_content_counts_once(cluster: Cluster) -> None:
    await cluster.master.aclose()
    cluster.config = msgspec.structs.replace(cluster.config, limits=LimitsConfig(max_blob_bytes_per_user=300))
    await cluster.start_jobmanager()
    first = await cluster.submit(executors=0)
    second = await cluster.submit(executors=0)
    form = cluster.form(b"x" * 250)
    status, document = await cluster.call("POST", "/v1/jobs", data=form)
    assert (status, document["type"]) == (413, "urn:sluice:problem:QuotaExceeded")
    assert {path.name for path in cluster.home.blobs.iterdir()} == {first, second, "shared"}
    cluster.flag.touch()
    for job_id in (first, second):
        await cluster.until(job_id, "FINISHED")
    status, _ = await cluster.call("POST", "/v1/jobs", data=cluster.form(b"x" * 250))
    assert status == 202
