"""Spark Connect sessions."""

from __future__ import annotations

from sluice.runtime.jobmanager import SubmissionRejected, TooManyJobs
from sluice.runtime.jobmanager.dispatcher import ConnectSession
from sluice.runtime.rest.cluster import Cluster
from sluice.runtime.rest.route import (
    Call,
    NoQuery,
    Reply,
    Route,
)


async def ensure_connect_session(cluster: Cluster, call: Call[NoQuery]) -> Reply[ConnectSession]:
    """The Spark Connect session of the caller, started when there is none."""
    session = await cluster.sessions.ensure(call.who.principal)
    return Reply(session, status=200 if session.port else 202)


ROUTES = (
    Route(
        "POST",
        "/v1/connect/session",
        "connect.use",
        ensure_connect_session,
        other_statuses=(202,),
        errors=(SubmissionRejected, TooManyJobs),
    ),
)
