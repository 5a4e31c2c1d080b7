"""Submits a job and its files, so that the files stay in the blob store only if the job is accepted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from sluice.core import SluiceError
from sluice.runtime.blob import BlobStore
from sluice.runtime.ha import OutcomeUnknown
from sluice.runtime.jobmanager.gateways import DispatcherGateway
from sluice.runtime.messages import JobSubmission
from sluice.runtime.rpc import EndpointStopped, RpcTimeout


async def submit_with_blobs(
    dispatcher: DispatcherGateway, store: BlobStore, job_id: str, prepare: Callable[[], Awaitable[JobSubmission]]
) -> None:
    """Submit what ``prepare`` makes, which puts the job's files into ``store``.

    When the job is not accepted, its files are removed. While the outcome is unknown, they belong to the Dispatcher.

    Raises:
        OutcomeUnknown: no answer came; the job is accepted, or will never be.
        SluiceError: what ``prepare`` and :meth:`DispatcherGateway.submit_job` raise; the job is not accepted.
    """
    try:
        submission = await prepare()
    except BaseException:
        await asyncio.to_thread(store.remove_job, job_id)
        raise
    try:
        await dispatcher.submit_job(job_id, submission)
    except (RpcTimeout, EndpointStopped) as error:
        raise OutcomeUnknown(
            f"it is not known yet whether job {job_id} is accepted: {error.what}",
            "look whether it is in the list of jobs before it is submitted again",
        ) from error
    except OutcomeUnknown:
        raise
    except SluiceError:
        await asyncio.to_thread(store.remove_job, job_id)
        raise
