"""The auth service's API for JobManagers on other machines.

Public keys, validity of credentials, tokens of jobs, evidence of connections of jobs to the outside, events, and
receipts.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated

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
from sluice.gateway.credentials import PassKeys, encode_jwks
from sluice.gateway.job_tokens import JobTokenDecisions, decode_query
from sluice.pki import Role
from sluice.pki.assertions import MAX_QUESTION_BYTES
from sluice.pki.attestations import MAX_ORDER_BYTES, RECEIPT_ISSUED, ProofOrder
from sluice.pki.jwt import MAX_QUERY_BYTES
from sluice.pki.tls import TlsIdentity, peer_of

_LOG = logging.getLogger(__name__)

JWKS_PATH = "/auth/assertion-jwks.json"
"""The keys."""
STANDING_PATH = "/auth/standing"
"""Whether the credentials of open streams are still valid."""

JOB_TOKENS_PATH = "/auth/job-tokens"
"""Whether a job may have a token."""
EVENTS_PATH = "/auth/events"
"""Writes an event of a JobManager to the audit log."""
RECEIPTS_PATH = "/auth/receipts"
"""Records the digest of a job's receipt, and proves it."""
EVENT_KINDS = frozenset({"secret.used", "secret.refused"})
"""What a JobManager may write; nobody can take its events for administrative acts."""
MAX_EVENT_BYTES = 8 << 10

_Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
AnswerEgress = Callable[[EgressQuestion], Awaitable[EgressAnswer]]


def with_jobmanager_api(
    check: _Handler,
    keys: PassKeys,
    is_valid: IsValid,
    *,
    tokens: JobTokenDecisions,
    egress: AnswerEgress,
    audit: AuditWriter,
    identity: TlsIdentity,
) -> _Handler:
    """A handler for a mutual TLS listener: gateways get ``check``, JobManagers these paths, others 404."""

    async def public_keys(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=encode_jwks(keys), content_type="application/json")

    answers: Mapping[tuple[str, str], _Handler] = {
        ("GET", JWKS_PATH): public_keys,
        ("POST", STANDING_PATH): lambda request: _standing(request, is_valid),
        ("POST", JOB_TOKENS_PATH): lambda request: _job_token(request, tokens),
        ("POST", EGRESS_PATH): lambda request: _egress(request, egress),
        ("POST", EVENTS_PATH): lambda request: _event(request, audit),
        ("POST", RECEIPTS_PATH): lambda request: _receipt(request, audit, identity),
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


async def _standing(request: web.BaseRequest, is_valid: IsValid) -> web.StreamResponse:
    try:
        asked = await read_body(request.content, MAX_QUESTION_BYTES)
        return web.Response(body=answer(is_valid, asked), content_type="application/json")
    except BodyTooLarge:
        return web.Response(status=413)
    except msgspec.MsgspecError:
        return web.Response(status=400)


async def _job_token(request: web.BaseRequest, tokens: JobTokenDecisions) -> web.StreamResponse:
    try:
        query = decode_query(await read_body(request.content, MAX_QUERY_BYTES))
        return web.Response(body=msgspec.json.encode(await tokens.decide(query)), content_type="application/json")
    except BodyTooLarge:
        return web.Response(status=413)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return web.Response(status=400)
    except SluiceError:
        _LOG.exception("cannot decide about a token")
        return web.Response(status=500)


async def _egress(request: web.BaseRequest, answer_egress: AnswerEgress) -> web.StreamResponse:
    try:
        asked = msgspec.json.decode(await read_body(request.content, MAX_EGRESS_QUESTION_BYTES), type=EgressQuestion)
    except BodyTooLarge:
        return web.Response(status=413)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return web.Response(status=400)
    try:
        answered = await answer_egress(asked)
    except SluiceError as error:
        _LOG.error("connections of jobs are not recorded: %s", error)  # they are told again
        return web.Response(status=503)
    return web.Response(body=msgspec.json.encode(answered), content_type="application/json")


class _Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: str
    principal: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    detail: Annotated[dict[str, str], msgspec.Meta(max_length=12)]


async def _event(request: web.BaseRequest, audit: AuditWriter) -> web.StreamResponse:
    """200 says that it is in the log; the JobManager that it came from is written down with it."""
    try:
        event = msgspec.json.decode(await read_body(request.content, MAX_EVENT_BYTES), type=_Event)
        if event.kind not in EVENT_KINDS:
            return web.Response(status=400)
        by = "" if request.transport is None else str(peer_of(request.transport))
        await audit.event(event.kind, event.principal, {**event.detail, "by": by})
        return web.Response()
    except BodyTooLarge:
        return web.Response(status=413)
    except msgspec.MsgspecError:
        return web.Response(status=400)
    except SluiceError as error:
        _LOG.error("an event of a JobManager is not recorded: %s", error)
        return web.Response(status=503)


async def _receipt(request: web.BaseRequest, audit: AuditWriter, identity: TlsIdentity) -> web.StreamResponse:
    """The record names the JobManager that asks, by its certificate: nobody else's receipt passes for its own."""
    try:
        order = msgspec.json.decode(await read_body(request.content, MAX_ORDER_BYTES), type=ProofOrder)
    except BodyTooLarge:
        return web.Response(status=413)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return web.Response(status=400)
    try:
        by = "" if request.transport is None else str(peer_of(request.transport))
        recorded = await audit.event(RECEIPT_ISSUED, order.principal, receipt_detail(order, by))
        proof = prove_receipt(recorded, identity)
    except SluiceError as error:
        _LOG.error("a receipt is not recorded: %s", error)
        return web.Response(status=503)
    return web.Response(body=msgspec.json.encode(proof), content_type="application/json")
