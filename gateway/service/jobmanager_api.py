"""The auth service's API for JobManagers on other machines.

It serves public keys, the validity of credentials, tokens of jobs, evidence of outgoing connections of jobs, events,
and receipts.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Literal

import msgspec
from aiohttp import web

from sluice.core import (
    EGRESS_PATH,
    MAX_EGRESS_QUESTION_BYTES,
    BodyTooLarge,
    EgressAnswer,
    EgressQuestion,
    SluiceError,
    read_body,
)
from sluice.gateway.audit_log import AuditWriter, prove_receipt, receipt_detail
from sluice.gateway.authn import IsValid, answer
from sluice.gateway.credentials import AccessTokenKeys, encode_jwks
from sluice.gateway.job_tokens import JobTokenDecisions, decode_query
from sluice.pki import Role
from sluice.pki.assertions import MAX_QUESTION_BYTES
from sluice.pki.attestations import MAX_ORDER_BYTES, RECEIPT_ISSUED, ProofOrder
from sluice.pki.jwt import MAX_QUERY_BYTES
from sluice.pki.tls import TlsIdentity, peer_of

_LOG = logging.getLogger(__name__)

JWKS_PATH = "/auth/assertion-jwks.json"
"""Returns the public keys of assertions."""
STANDING_PATH = "/auth/standing"
"""Returns whether the credentials of open streams are still valid."""

JOB_TOKENS_PATH = "/auth/job-tokens"
"""Decides whether a job may get a token."""
EVENTS_PATH = "/auth/events"
"""Writes an event of a JobManager to the audit log."""
RECEIPTS_PATH = "/auth/receipts"
"""Records the digest of a job's receipt, and proves it."""
MAX_EVENT_BYTES = 8 << 10

_Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
AnswerEgress = Callable[[EgressQuestion], Awaitable[EgressAnswer]]


def with_jobmanager_api(
    check: _Handler,
    keys: AccessTokenKeys,
    is_valid: IsValid,
    *,
    tokens: JobTokenDecisions,
    egress: AnswerEgress,
    audit: AuditWriter,
    identity: TlsIdentity,
) -> _Handler:
    """A handler for a mutual TLS listener: gateways get ``check``, JobManagers get these paths, all others get 404."""

    async def public_keys(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=encode_jwks(keys), content_type="application/json")

    async def standing(query: bytes, _: str) -> bytes:
        return answer(is_valid, query)

    async def job_token(query: bytes, _: str) -> bytes:
        return msgspec.json.encode(await tokens.decide(decode_query(query)))

    async def connections(query: bytes, _: str) -> bytes:
        return msgspec.json.encode(await egress(msgspec.json.decode(query, type=EgressQuestion)))

    async def event(query: bytes, by: str) -> bytes:
        decoded = msgspec.json.decode(query, type=_Event)
        await audit.event(decoded.kind, decoded.principal, {**decoded.detail, "by": by})
        return b""

    async def receipt(query: bytes, by: str) -> bytes:
        order = msgspec.json.decode(query, type=ProofOrder)
        recorded = await audit.event(RECEIPT_ISSUED, order.principal, receipt_detail(order, by))
        return msgspec.json.encode(prove_receipt(recorded, identity))

    answers: Mapping[tuple[str, str], _Handler] = {
        ("GET", JWKS_PATH): public_keys,
        ("POST", STANDING_PATH): _answering(standing, MAX_QUESTION_BYTES, "credentials cannot be checked", failed=500),
        ("POST", JOB_TOKENS_PATH): _answering(job_token, MAX_QUERY_BYTES, "cannot decide about a token", failed=500),
        # JobManagers retry this one.
        ("POST", EGRESS_PATH): _answering(
            connections, MAX_EGRESS_QUESTION_BYTES, "connections of jobs are not recorded"
        ),
        ("POST", EVENTS_PATH): _answering(event, MAX_EVENT_BYTES, "an event of a JobManager is not recorded"),
        ("POST", RECEIPTS_PATH): _answering(receipt, MAX_ORDER_BYTES, "a receipt is not recorded"),
    }

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        try:
            role = peer_of(request.transport).role if request.transport is not None else None
        except SluiceError:
            role = None
        if role is Role.GATEWAY:
            return await check(request)
        found = answers.get((request.method, request.raw_path)) if role is Role.JOBMANAGER else None
        return web.Response(status=404) if found is None else await found(request)

    return handle


class _Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An event. ``kind`` limits it to what a JobManager may write, so it cannot forge administrative events."""

    kind: Literal["secret.used", "secret.refused"]
    principal: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    detail: Annotated[dict[str, str], msgspec.Meta(max_length=12)]


def _answering(
    respond: Callable[[bytes, str], Awaitable[bytes]], limit: int, failure: str, *, failed: int = 503
) -> _Handler:
    """A handler for questions of at most ``limit`` bytes. Status 200 means that the audit log has the record, if any.

    ``respond`` gets the question, and the caller's identity from its certificate, so that a caller cannot write events
    or receipts of another. On a failure, ``failure`` is logged and the status ``failed`` returned.
    """

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        try:
            query = await read_body(request.content, limit)
            body = await respond(query, "" if request.transport is None else str(peer_of(request.transport)))
        except BodyTooLarge:
            return web.Response(status=413)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return web.Response(status=400)
        except SluiceError as error:
            _LOG.error("%s: %s", failure, error)
            return web.Response(status=failed)
        return web.Response(body=body, content_type="application/json")

    return handle
