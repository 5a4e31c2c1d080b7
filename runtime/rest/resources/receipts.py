"""Receipts of ended jobs."""

from __future__ import annotations

from sluice.pki.attestations import Envelope
from sluice.runtime.messages import Message
from sluice.runtime.receipts import ReceiptNotRecorded, ReceiptUnavailable
from sluice.runtime.rest.cluster import Cluster
from sluice.runtime.rest.job_access import JOB_ERRORS, require_visible
from sluice.runtime.rest.protocol import Call, NoQuery, NotYours, Route


class ReceiptOrder(Message, frozen=True):
    """The request for a receipt; with `disclose_parameters` it contains arguments and Spark settings."""

    disclose_parameters: bool = False


async def issue_receipt(cluster: Cluster, call: Call[NoQuery], body: ReceiptOrder) -> Envelope:
    """Issue a receipt for an ended job: a signed statement that anybody can verify.

    Only the job's owner may disclose parameters. The response is a DSSE envelope with an in-toto statement. Written as
    JSON with sorted keys and without spaces, it is the input of `sluice jobs verify-receipt`. Each receipt is recorded
    in the audit log before it is issued.
    """
    job_id = await require_visible(cluster, call)
    if cluster.receipts is None:
        raise ReceiptUnavailable("this JobManager has no gateway to record receipts", "run an auth service")
    record = await cluster.dispatcher.job_record(job_id)
    if body.disclose_parameters and call.who.name != record.detail.owner:
        raise NotYours(f"job {job_id} belongs to {record.detail.owner}", "only its owner may disclose its parameters")
    outside = None if cluster.egress is None else await cluster.egress.egress_connections(job_id)
    return await cluster.receipts.issue(record, outside, principal=call.who.name, disclose=body.disclose_parameters)


ROUTES = (
    Route(
        "POST",
        "/v1/jobs/{job_id}/receipts",
        "jobs.receipt",
        issue_receipt,
        errors=(*JOB_ERRORS, ReceiptUnavailable, ReceiptNotRecorded),
    ),
)
