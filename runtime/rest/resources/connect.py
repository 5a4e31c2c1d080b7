"""Spark Connect sessions."""

from __future__ import annotations

import msgspec

from sluice.runtime.jobmanager import ConnectSessionRuns, SubmissionRejected, TooManyJobs
from sluice.runtime.jobmanager.dispatcher import SESSION_NAME, ConnectSession
from sluice.runtime.jobmanager.secrets import InvalidSecret, SecretRefused, Subject, check_secret_references
from sluice.runtime.messages import SecretReference
from sluice.runtime.rest.cluster import Cluster
from sluice.runtime.rest.protocol import Call, NoQuery, Reply, Route
from sluice.runtime.rest.submissions import admission_of


class SessionRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The request for a session."""

    secrets: tuple[SecretReference, ...] = ()
    """Secrets that the session gets as files below `/run/secrets`."""


async def ensure_connect_session(cluster: Cluster, call: Call[NoQuery]) -> Reply[ConnectSession]:
    """Get the caller's Spark Connect session, and start it if there is none."""
    session = await cluster.sessions.ensure(call.who.principal, admission_of(call.who))
    return Reply(session, status=200 if session.port else 202)


async def start_connect_session(cluster: Cluster, call: Call[NoQuery], body: SessionRequest) -> Reply[ConnectSession]:
    """Start the caller's Spark Connect session with secrets.

    A running session keeps its secrets, and the answer is 409: cancel its job first.
    """
    owner = call.who.principal
    check_secret_references(body.secrets)
    # Each attempt checks this again; here the caller gets the error at once.
    await cluster.secrets.choose(body.secrets, Subject(owner.name, SESSION_NAME, owner.roles, owner.groups))
    session = await cluster.sessions.start(owner, admission_of(call.who), body.secrets)
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
    Route(
        "POST",
        "/v1/connect/sessions",
        "connect.use",
        start_connect_session,
        other_statuses=(202,),
        errors=(SubmissionRejected, InvalidSecret, SecretRefused, ConnectSessionRuns, TooManyJobs),
    ),
)
