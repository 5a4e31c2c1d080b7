"""The online authority's two listeners: enrolment with a join token, and mutual TLS.

========================== ================================== =============================================
enrolment (no certificate) ``GET /v1/authority``              the trust anchors
\\                          ``POST /v1/enrol``                 a certificate for a join token
\\                          ``POST /v1/attest``                a certificate for whom an attestor verifies
mutual TLS                 ``POST /v1/renew``                 a new certificate for the holder of a valid one
\\                          ``POST /v1/edge/renew``            a new public certificate, for gateways
\\                          ``POST /v1/jobs/identities``       an identity of a job, for JobManagers
\\                          ``POST /v1/jobs/tokens``           a JWT-SVID of a job, for JobManagers
\\                          ``GET /v1/jobs/token-keys``        the public keys of these
\\                          ``POST /v1/trust``                 trust anchors and revocation lists, once they change
\\                          ``POST /v1/revoke``                revokes a leaf, for the auth service
========================== ================================== =============================================

Neither listener serves the routes of the other.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import MappingProxyType
from typing import TypeVar

import msgspec
from aiohttp import web
from cryptography import x509

from sluice.core import BodyTooLarge, PeerRefused, PkiError, SluiceError, printable, read_body
from sluice.pki.attestation import Attestor
from sluice.pki.ca.authority import OnlineAuthority
from sluice.pki.ca.enrolment_listener import EnrolmentListener
from sluice.pki.ca.protocol import (
    ALPN,
    ATTEST_PATH,
    AUTHORITY_PATH,
    EDGE_RENEW_PATH,
    ENROL_PATH,
    ERROR_STATUS,
    JOB_PATH,
    MAX_REQUEST_BYTES,
    MAX_TRUST_REQUEST_BYTES,
    RENEW_PATH,
    REVOKE_PATH,
    TOKEN_KEYS_PATH,
    TOKEN_PATH,
    TRUST_PATH,
    TRUST_WAIT_SECONDS,
    AttestRequest,
    AuthorityAnswer,
    EdgeRenewRequest,
    EnrolRequest,
    ErrorAnswer,
    JobRequest,
    RenewRequest,
    RevokedAnswer,
    RevokeRequest,
    SignedToken,
    TokenKeysAnswer,
    TokenRequest,
    TrustRequest,
    TrustSide,
)
from sluice.pki.ca.revoker import Revoker
from sluice.pki.ca.trust_subscribers import TrustSubscribers
from sluice.pki.ca.trust_watch import TrustWatch, View
from sluice.pki.channels import Channel, client_policy
from sluice.pki.errors import EnrolmentRefused, RateLimited
from sluice.pki.issuing import SignedChain
from sluice.pki.rate_limit import RateLimiter
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls import ConnectionLog, MutualTlsListener, TlsIdentity, network_of, peer_of, tls_object_of
from sluice.pki.x509 import DAMAGED_JSON, MAX_LEAF_LIFETIME, AuthorityKind

_LOG = logging.getLogger(__name__)

BODY_SECONDS = 10.0
"""How long a request body may take to arrive."""
IDLE_SECONDS = 60.0

ENROLMENTS_PER_ADDRESS = (64, 1.0)
"""Burst, and requests per second after it: a whole rack may enrol at once from behind one address."""
ENROLMENTS_IN_ALL = (256, 16.0)
RENEWALS_PER_IDENTITY = (8, 0.2)
JOB_IDENTITIES_PER_JOBMANAGER = (1024, 64.0)
TOKENS_PER_JOBMANAGER = (1024, 64.0)
TRUST_PER_IDENTITY = (32, 1.0)
REVOCATIONS_PER_IDENTITY = (32, 0.2)
"""Enough for an administrator in the dashboard; use `sluice pki revoke` for more."""

NO_ATTESTORS: Mapping[str, Attestor] = MappingProxyType({})

_Request = TypeVar("_Request", bound=msgspec.Struct)
_Result = TypeVar("_Result")
_Handler = Callable[[web.BaseRequest], Awaitable[msgspec.Struct | bytes]]
"""Returns what goes back as JSON; bytes are JSON already."""


class _MalformedRequest(PkiError):
    """An invalid request, answered with this status."""

    def __init__(self, status: int, what: str) -> None:
        super().__init__(what)
        self.status = status


class CaServer:
    """Serves one :class:`OnlineAuthority`.

    ``clock`` (monotonic seconds) is for the rate limits; ``subscribers`` records requests for trust. Without
    ``revoker``, requests to revoke are refused. ``attestors`` verify requesters without a join token; requests name the
    attestor.
    """

    def __init__(
        self,
        identity: TlsIdentity,
        authority: OnlineAuthority,
        *,
        connections: ConnectionLog | None = None,
        subscribers: TrustSubscribers | None = None,
        revoker: Revoker | None = None,
        attestors: Mapping[str, Attestor] = NO_ATTESTORS,
        clock: Callable[[], float] = time.monotonic,
        trust_wait_seconds: float = TRUST_WAIT_SECONDS,
    ) -> None:
        self._authority = authority
        self._attestors = attestors
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="issuing")
        self._per_address = _limiter(ENROLMENTS_PER_ADDRESS, clock)
        self._in_all = _limiter(ENROLMENTS_IN_ALL, clock)
        self._per_identity = _limiter(RENEWALS_PER_IDENTITY, clock)
        self._per_jobmanager = _limiter(JOB_IDENTITIES_PER_JOBMANAGER, clock)
        self._per_token_requester = _limiter(TOKENS_PER_JOBMANAGER, clock)
        self._per_listener = _limiter(TRUST_PER_IDENTITY, clock)
        self._per_revoker = _limiter(REVOCATIONS_PER_IDENTITY, clock)
        self._subscribers = subscribers if subscribers is not None else TrustSubscribers()
        self._trust = TrustWatch(self._read_trust, wait_seconds=trust_wait_seconds)
        self._mutual_http = web.Server(self._answer_mutual, access_log=None, keepalive_timeout=IDLE_SECONDS)
        self._mutual = MutualTlsListener(
            identity,
            Channel.CA,
            client_policy(Channel.CA, identity.spiffe_id.trust_domain),
            self._mutual_http,
            alpn=ALPN,
            connections=connections,
        )
        self._enrolment_http = web.Server(self._answer_enrolment, access_log=None)
        self._enrolment = EnrolmentListener(identity, self._enrolment_http, alpn=ALPN)
        self._mutual_routes: dict[tuple[str, str], _Handler] = {
            ("POST", RENEW_PATH): self._renew,
            ("POST", EDGE_RENEW_PATH): self._renew_edge,
            ("POST", JOB_PATH): self._issue_job,
            ("POST", TOKEN_PATH): self._issue_token,
            ("GET", TOKEN_KEYS_PATH): self._tell_token_keys,
            ("POST", TRUST_PATH): self._tell_trust,
        }
        if revoker is not None:
            self._mutual_routes["POST", REVOKE_PATH] = partial(self._revoke, revoker)
        self._enrolment_routes: dict[tuple[str, str], _Handler] = {
            ("GET", AUTHORITY_PATH): self._anchors,
            ("POST", ENROL_PATH): self._enrol,
            ("POST", ATTEST_PATH): self._enrol_attested,
        }

    async def start(self, host: str, port: int, enrolment_port: int) -> tuple[tuple[str, int], tuple[str, int]]:
        """Listen; returns the addresses of the mutual TLS and of the enrolment listener."""
        return await self._mutual.start(host, port), await self._enrolment.start(host, enrolment_port)

    async def call(self, function: Callable[[], _Result]) -> _Result:
        """Run ``function`` in the authority's thread, so that nothing else uses the authority meanwhile."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, function)

    async def close(self) -> None:
        """Stop listening, and wait for running issuances."""
        await self._trust.close()
        await self._enrolment.close()
        await self._mutual.close()
        await self._enrolment_http.shutdown(0)
        await self._mutual_http.shutdown(0)
        await asyncio.to_thread(self._worker.shutdown)

    async def _answer_mutual(self, request: web.BaseRequest) -> web.StreamResponse:
        return await _answer(request, self._mutual_routes)

    async def _answer_enrolment(self, request: web.BaseRequest) -> web.StreamResponse:
        return await _answer(request, self._enrolment_routes)

    async def _anchors(self, request: web.BaseRequest) -> AuthorityAnswer:
        self._limit_stranger(request)
        return AuthorityAnswer(ca_pem=self._authority.anchors().decode())

    async def _enrol(self, request: web.BaseRequest) -> SignedChain:
        self._limit_stranger(request)
        asked = await _read(request, EnrolRequest)
        return await self._issue(lambda: self._authority.enrol(asked.token, asked.csr_pem.encode()))

    async def _enrol_attested(self, request: web.BaseRequest) -> SignedChain:
        self._limit_stranger(request)
        asked = await _read(request, AttestRequest)
        if (attestor := self._attestors.get(asked.attestor)) is None:
            raise EnrolmentRefused("this authority has no such attestor", "configure it in section [ca], or use tokens")
        attested = await attestor.attest(asked.evidence)

        def enrol() -> SignedChain:
            _require_connected(request)
            signed = self._authority.enrol_attested(
                attested, asked.identity, asked.csr_pem.encode(), edge_server=asked.edge_server
            )
            _LOG.info("%s enrolled as %s, from %s", attested.requester, asked.identity, request.remote)
            return signed

        return await self._issue(enrol)

    async def _renew(self, request: web.BaseRequest) -> SignedChain:
        peer, current = _peer(request)
        _limit(self._per_identity, str(peer))
        asked = await _read(request, RenewRequest)

        def renew() -> SignedChain:
            _require_connected(request)
            return self._authority.renew(current, asked.csr_pem.encode())

        return await self._issue(renew)

    async def _renew_edge(self, request: web.BaseRequest) -> SignedChain:
        peer, current = _peer(request)
        _limit(self._per_identity, str(peer))
        asked = await _read(request, EdgeRenewRequest)

        def renew() -> SignedChain:
            _require_connected(request)
            with self._authority.turn():
                self._authority.require_newest(current, "edge-renewal")
                return self._authority.renew_edge(peer, asked.chain_pem.encode(), asked.csr_pem.encode(), asked.proof)

        return await self._issue(renew)

    async def _issue_job(self, request: web.BaseRequest) -> SignedChain:
        peer, current = _peer(request)
        _limit(self._per_jobmanager, str(peer))
        asked = await _read(request, JobRequest)
        lifetime = _lifetime(asked.lifetime_seconds)

        def issue() -> SignedChain:
            with self._authority.turn():
                self._authority.require_newest(current, "job")
                return self._authority.issue_job(peer, asked.spiffe_id, asked.csr_pem.encode(), lifetime)

        return await self._issue(issue)

    async def _issue_token(self, request: web.BaseRequest) -> SignedToken:
        peer, current = _peer(request)
        _limit(self._per_token_requester, str(peer))
        asked = await _read(request, TokenRequest)

        def issue() -> SignedToken:
            self._authority.require_newest(current)
            return SignedToken(token=self._authority.issue_token(peer, asked.spiffe_id, asked.audience, asked.owner))

        return await asyncio.get_running_loop().run_in_executor(self._worker, issue)

    async def _tell_token_keys(self, request: web.BaseRequest) -> TokenKeysAnswer:
        peer, _ = _peer(request)
        _limit(self._per_listener, str(peer))
        return await asyncio.get_running_loop().run_in_executor(self._worker, self._authority.token_keys)

    async def _revoke(self, revoker: Revoker, request: web.BaseRequest) -> RevokedAnswer:
        peer, current = _peer(request)
        _limit(self._per_revoker, str(peer))
        asked = await _read(request, RevokeRequest)

        def revoke() -> RevokedAnswer:
            # In one turn: another authority's certificate is either in the ledger already, or its issuance sees the
            # revocation.
            with self._authority.turn():
                self._authority.require_newest(current)
                return revoker.revoke(peer, int(asked.serial, 16), asked.reason, asked.by)

        return await asyncio.get_running_loop().run_in_executor(self._worker, revoke)

    async def _tell_trust(self, request: web.BaseRequest) -> bytes:
        peer, current = _peer(request)
        _limit(self._per_listener, str(peer))
        asked = await _read(request, TrustRequest, MAX_TRUST_REQUEST_BYTES)
        self._subscribers.heard(peer, current, request.remote or "", asked)
        # Only gateways get the edge's trust anchors.
        view = View.GATEWAY if peer.role is Role.GATEWAY else View.MEMBER
        return await self._trust.poll(str(peer), view, asked.known)

    async def _read_trust(self) -> tuple[TrustSide, TrustSide | None]:
        def read() -> tuple[TrustSide, TrustSide | None]:
            edge = self._authority.trust(AuthorityKind.EDGE) if self._authority.has_edge() else None
            return self._authority.trust(AuthorityKind.INTERNAL), edge

        return await asyncio.get_running_loop().run_in_executor(self._worker, read)

    async def _issue(self, issue: Callable[[], SignedChain]) -> SignedChain:
        return await asyncio.get_running_loop().run_in_executor(self._worker, issue)

    def _limit_stranger(self, request: web.BaseRequest) -> None:
        _limit(self._per_address, network_of(request.remote or ""))
        _limit(self._in_all, "everybody")


def _limiter(rate: tuple[int, float], clock: Callable[[], float]) -> RateLimiter:
    burst, per_second = rate
    return RateLimiter(burst=burst, per_second=per_second, clock=clock)


def _limit(limiter: RateLimiter, requester: str) -> None:
    if wait := limiter.take(requester):
        raise RateLimited(f"too many requests of {requester}", wait)


def _lifetime(seconds: float) -> dt.timedelta | None:
    if not 0 <= seconds <= MAX_LEAF_LIFETIME.total_seconds():
        raise _MalformedRequest(400, "the lifetime is not possible")
    return dt.timedelta(seconds=seconds) if seconds else None


def _peer(request: web.BaseRequest) -> tuple[SpiffeId, x509.Certificate]:
    """The requester's identity and its certificate, as verified in the handshake."""
    if request.transport is None:
        raise PeerRefused("the connection is gone")
    peer = peer_of(request.transport)
    certificate = tls_object_of(request.transport).getpeercert(binary_form=True)
    if certificate is None:
        raise PeerRefused("the peer showed no certificate")
    return peer, x509.load_der_x509_certificate(certificate)


def _require_connected(request: web.BaseRequest) -> None:
    """Refuse to renew for a closed connection: a certificate that is never received would supersede the current one."""
    transport = request.transport
    if transport is None or transport.is_closing():
        raise PeerRefused("the connection is gone")


async def _read(request: web.BaseRequest, kind: type[_Request], limit: int = MAX_REQUEST_BYTES) -> _Request:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = await read_body(request.content, limit)
    except BodyTooLarge as error:
        raise _MalformedRequest(413, f"the request is larger than {limit} bytes") from error
    except TimeoutError as error:
        raise _MalformedRequest(408, "the request did not arrive in time") from error
    try:
        return msgspec.json.decode(body, type=kind)
    except DAMAGED_JSON as error:
        # The message names fields and types, never values, so it contains no token.
        raise _MalformedRequest(400, f"not a request of this route: {error}") from error


async def _answer(request: web.BaseRequest, routes: dict[tuple[str, str], _Handler]) -> web.Response:
    try:
        handler = routes.get((request.method, request.path))
        if handler is None:
            known = any(path == request.path for _, path in routes)
            raise _MalformedRequest(405 if known else 404, "there is nothing here")
        answer = await handler(request)
        return _json(201 if isinstance(answer, SignedChain) else 200, answer)
    except SluiceError as error:
        problem = _problem(error)
        level = logging.ERROR if problem.status >= 500 else logging.WARNING
        _LOG.log(level, "%s %r: %s", request.method, request.path[:100], printable(str(error))[:500])
        return _json(problem.status, problem)


def _problem(error: SluiceError) -> ErrorAnswer:
    status = error.status if isinstance(error, _MalformedRequest) else ERROR_STATUS.get(type(error), 500)
    if status == 500:
        return ErrorAnswer(status=500, title="InternalError", detail="see the log of the CA")
    return ErrorAnswer(
        status=status,
        title=type(error).__name__.lstrip("_"),
        detail=error.what,
        remedy=error.remedy,
        retry_after=error.retry_after if isinstance(error, RateLimited) else 0,
    )


def _json(status: int, body: msgspec.Struct | bytes) -> web.Response:
    headers = {"cache-control": "no-store"}
    if isinstance(body, ErrorAnswer) and body.retry_after:
        headers["retry-after"] = str(math.ceil(body.retry_after))
    encoded = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return web.Response(status=status, body=encoded, content_type="application/json", headers=headers)
