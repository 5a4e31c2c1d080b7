"""The HTTP side of the ACME server (RFC 8555, section 7): routes, and the order of steps.

One thread runs decisions and the store, another one the authority.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import math
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import msgspec
from aiohttp import web
from prometheus_client import Counter

from sluice.core import REGISTRY, BodyTooLarge, CertificateRejected, SluiceError, printable, read_body
from sluice.pki.acme import urls as paths
from sluice.pki.acme.accounts import Accounts
from sluice.pki.acme.documents import account_document, authorization_document, challenge_document, order_document
from sluice.pki.acme.jws import MAX_REQUEST_BYTES
from sluice.pki.acme.limits import Limits
from sluice.pki.acme.names import NamePolicy
from sluice.pki.acme.nonces import Nonces
from sluice.pki.acme.objects import Account, Certificate, ChallengeType, Order, Status, ValidationTask
from sluice.pki.acme.orders import Orders, challenge_of
from sluice.pki.acme.payloads import require_empty
from sluice.pki.acme.problems import AcmeProblem, ProblemType, malformed
from sluice.pki.acme.requester import Authenticator, Requester
from sluice.pki.acme.revocations import Revocations
from sluice.pki.acme.store import AcmeStore
from sluice.pki.acme.validation import Check, Validator
from sluice.pki.issuing import HostRequest, IssuedHost
from sluice.pki.revocation import Reason
from sluice.pki.tls import network_of
from sluice.pki.x509 import Profile

_LOG = logging.getLogger(__name__)

BODY_SECONDS = 10.0
"""How long a request body may take to arrive."""
IDLE_SECONDS = 60.0
POLL_SECONDS = 1
"""When a client should ask again for a result that is not ready."""
MAX_ORDERS_LISTED = 100
JOSE = "application/jose+json"
CHAIN = "application/pem-certificate-chain"

REQUESTS = Counter(
    "sluice_acme_requests_total",
    "Requests to the ACME server, by resource and by how they ended: ok, or the type of the problem.",
    ["resource", "result"],
    registry=REGISTRY,
)
ISSUED = Counter("sluice_acme_issued_total", "Certificates issued by the ACME server.", registry=REGISTRY)

_Result = TypeVar("_Result")


class HostAuthority(Protocol):
    """Signs and revokes."""

    async def issue(self, request: HostRequest) -> IssuedHost:
        """Sign and record; raises :class:`SluiceError` when nothing was issued."""
        ...

    async def revoke(self, certificate: Certificate, reason: Reason, by: str) -> bool:
        """Put a certificate on the CRL; returns False when it was there already."""
        ...


@dataclass(frozen=True, slots=True)
class _Answer:
    document: dict[str, object] | None = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    content_type: str = "application/json"


_Handler = Callable[[web.BaseRequest, bytes, "re.Match[str]"], Awaitable[_Answer]]


class AcmeServer:
    """Serves one store.

    Args:
        store: accounts and orders.
        base: URL of the server without a slash at its end.
        authority: signs and revokes.
        policy: the names that may be certified now.
        check: how challenges are validated.
        profile: of the certificates.
        external_account_required: whether new accounts need a key that an operator has made.
        clock: seconds since the epoch, for stored times.
        monotonic: seconds that never go back, for nonces and limits.
    """

    def __init__(
        self,
        store: AcmeStore,
        base: str,
        authority: HostAuthority,
        *,
        policy: Callable[[], NamePolicy],
        check: Check,
        profile: Profile,
        external_account_required: bool = True,
        clock: Callable[[], float] = lambda: dt.datetime.now(dt.UTC).timestamp(),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._authority = authority
        self._profile = profile
        self._urls = paths.Urls(base)
        self._nonces = Nonces(monotonic)
        self._limits = Limits(monotonic)
        self._authenticator = Authenticator(store, self._nonces, self._urls)
        self._accounts = Accounts(store, self._urls, clock=clock, external_account_required=external_account_required)
        self._external_account_required = external_account_required
        self._orders = Orders(store, policy, clock=clock)
        self._revocations = Revocations(store, clock=clock)
        self._validator = Validator(check, self._decided)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="acme")
        self._issuing: set[asyncio.Task[Any]] = set()
        self.http = web.Server(self._answer, access_log=None, keepalive_timeout=IDLE_SECONDS)
        self._posts: tuple[tuple[re.Pattern[str], str, _Handler], ...] = (
            (re.compile(paths.NEW_ACCOUNT_PATH), "new-account", self._new_account),
            (re.compile(paths.NEW_ORDER_PATH), "new-order", self._new_order),
            (re.compile(paths.REVOKE_PATH), "revoke-cert", self._revoke),
            (re.compile(paths.KEY_CHANGE_PATH), "key-change", self._key_change),
            (paths.ACCOUNT, "account", self._account),
            (paths.ACCOUNT_ORDERS, "orders", self._account_orders),
            (paths.ORDER, "order", self._order),
            (paths.FINALIZE, "finalize", self._finalize),
            (paths.AUTHORIZATION, "authorization", self._authorization),
            (paths.CHALLENGE, "challenge", self._challenge),
            (paths.CERTIFICATE, "certificate", self._certificate),
        )

    async def start(self) -> None:
        """Resume the validations that were running when the process last ended."""
        for task in await self._do(self._orders.interrupted):
            self._validator.start(task)

    async def close(self) -> None:
        """Stop validations, and wait for running issuances."""
        await self._validator.close()
        await asyncio.gather(*self._issuing, return_exceptions=True)
        await self.http.shutdown(0)
        await asyncio.to_thread(self._worker.shutdown)

    async def _do(self, function: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._worker, function)

    async def _decided(self, task: ValidationTask, problem: AcmeProblem | None) -> None:
        await self._do(lambda: self._orders.decided(task, problem))

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        resource = "unknown"
        try:
            self._limits.request(network_of(request.remote or ""))
            resource, answer = await self._route(request)
            REQUESTS.labels(resource, "ok").inc()
        except AcmeProblem as problem:
            level = logging.INFO if problem.kind is ProblemType.BAD_NONCE else logging.WARNING
            _LOG.log(level, "%s %r from %s: %s", request.method, request.path[:100], request.remote, _plain(problem))
            answer = _problem(problem)
            REQUESTS.labels(resource, problem.kind).inc()
        except SluiceError as error:
            _LOG.error("%s %r from %s: %s", request.method, request.path[:100], request.remote, _plain(error))
            answer = _problem(AcmeProblem(ProblemType.SERVER_INTERNAL, "see the log of the CA"))
            REQUESTS.labels(resource, ProblemType.SERVER_INTERNAL).inc()
        return self._response(request, answer)

    def _response(self, request: web.BaseRequest, answer: _Answer) -> web.Response:
        headers = {
            "cache-control": "no-store",
            "link": f'<{self._urls.at(paths.DIRECTORY_PATH)}>;rel="index"',
            **answer.headers,
        }
        if request.method in {"POST", "HEAD"} or request.path == paths.NEW_NONCE_PATH:
            headers["replay-nonce"] = self._nonces.make()
        if answer.document is None:
            body, kind = answer.body, answer.content_type
        else:
            body, kind = msgspec.json.encode(answer.document), answer.content_type
        return web.Response(status=answer.status, body=body, content_type=kind, headers=headers)

    async def _route(self, request: web.BaseRequest) -> tuple[str, _Answer]:
        path = request.rel_url.raw_path
        if request.rel_url.query_string:
            raise malformed("no resource here has a query", status=404)
        if path == paths.DIRECTORY_PATH:
            _require_method(request, "GET", "HEAD")
            return "directory", _Answer(self._directory())
        if path == paths.NEW_NONCE_PATH:
            _require_method(request, "GET", "HEAD")
            return "new-nonce", _Answer(status=200 if request.method == "HEAD" else 204)
        for pattern, resource, handler in self._posts:
            if (match := pattern.fullmatch(path)) is not None:
                _require_method(request, "POST")
                return resource, await handler(request, await _read(request), match)
        raise malformed("there is nothing here", status=404)

    def _directory(self) -> dict[str, object]:
        meta = {"externalAccountRequired": self._external_account_required}
        return {**self._urls.directory(), "meta": meta}

    def _requester(self, request: web.BaseRequest, body: bytes, *, kid: bool = True, jwk: bool = False) -> Requester:
        """Authenticate a request, in the store's thread.

        Its URL is built from our base: the client's Host header is ignored.
        """
        return self._authenticator.authenticate(body, self._urls.at(request.rel_url.raw_path), kid=kid, jwk=jwk)

    async def _new_account(self, request: web.BaseRequest, body: bytes, _: re.Match[str]) -> _Answer:
        def work() -> tuple[Account, bool]:
            requester = self._requester(request, body, kid=False, jwk=True)
            return self._accounts.open(requester, lambda: self._limits.new_account(network_of(request.remote or "")))

        account, made = await self._do(work)
        return self._of_account(account, status=201 if made else 200)

    async def _account(self, request: web.BaseRequest, body: bytes, match: re.Match[str]) -> _Answer:
        account = await self._do(lambda: self._accounts.update(self._requester(request, body), match[1]))
        return self._of_account(account)

    async def _account_orders(self, request: web.BaseRequest, body: bytes, match: re.Match[str]) -> _Answer:
        def work() -> list[str]:
            requester = self._requester(request, body)
            require_empty(requester.payload)
            return self._accounts.orders(requester, match[1], MAX_ORDERS_LISTED)

        return _Answer({"orders": await self._do(work)})

    async def _key_change(self, request: web.BaseRequest, body: bytes, _: re.Match[str]) -> _Answer:
        return self._of_account(await self._do(lambda: self._accounts.change_key(self._requester(request, body))))

    async def _new_order(self, request: web.BaseRequest, body: bytes, _: re.Match[str]) -> _Answer:
        def work() -> Order:
            requester = self._requester(request, body)
            self._limits.new_order(requester.known.id)
            return self._orders.make(requester)

        return self._of_order(await self._do(work), status=201)

    async def _order(self, request: web.BaseRequest, body: bytes, match: re.Match[str]) -> _Answer:
        def work() -> Order:
            requester = self._requester(request, body)
            require_empty(requester.payload)
            return self._orders.get(requester, match[1])

        return self._of_order(await self._do(work))

    async def _authorization(self, request: web.BaseRequest, body: bytes, match: re.Match[str]) -> _Answer:
        index = int(match[2])
        order = await self._do(lambda: self._orders.authorization(self._requester(request, body), match[1], index))
        working = order.authorizations[index].status is Status.PENDING
        return _Answer(authorization_document(order, index, self._urls), headers=_later() if working else {})

    async def _challenge(self, request: web.BaseRequest, body: bytes, match: re.Match[str]) -> _Answer:
        index, kind = int(match[2]), ChallengeType(match[3])

        def work() -> tuple[Order, ValidationTask | None]:
            requester = self._requester(request, body)
            if requester.payload:
                self._validator.require_room()
                self._limits.validation(requester.known.id)
            return self._orders.begin(requester, match[1], index, kind)

        order, task = await self._do(work)
        if task is not None:
            self._validator.start(task)
        challenge = challenge_of(order.authorizations[index], kind)
        up = f'<{self._urls.authorization(order.id, index)}>;rel="up"'
        headers = {"link": up} | (_later() if challenge.status is Status.PROCESSING else {})
        return _Answer(challenge_document(order, index, challenge, self._urls), headers=headers)

    async def _finalize(self, request: web.BaseRequest, body: bytes, match: re.Match[str]) -> _Answer:
        order, key, names = await self._do(
            lambda: self._orders.begin_issuance(self._requester(request, body), match[1])
        )
        account = f"acme:{order.account}"
        # Shielded: a client that disconnects must not leave an order between two states.
        order = await self._shielded(self._issue(order, HostRequest(names, self._profile, key, account)))
        return self._of_order(order)

    async def _issue(self, order: Order, wanted: HostRequest) -> Order:
        try:
            issued = await self._authority.issue(wanted)
        except CertificateRejected as error:
            problem = AcmeProblem(ProblemType.REJECTED_IDENTIFIER, str(error))
            await self._do(lambda: self._orders.not_issued(order, problem))
            raise problem from None
        except BaseException:
            await self._do(lambda: self._orders.not_issued(order, None))
            raise
        ISSUED.inc()
        names, serial = str(wanted.names), f"{issued.leaf.serial_number:x}"
        _LOG.info("issued %s, serial %s, to ACME account %s", names, serial, order.account)
        return await self._do(lambda: self._orders.issued(order, issued))

    async def _certificate(self, request: web.BaseRequest, body: bytes, match: re.Match[str]) -> _Answer:
        def work() -> Certificate:
            requester = self._requester(request, body)
            require_empty(requester.payload)
            return self._orders.certificate(requester, match[1])

        found = await self._do(work)
        return _Answer(body=found.chain_pem.encode(), content_type=CHAIN)

    async def _revoke(self, request: web.BaseRequest, body: bytes, _: re.Match[str]) -> _Answer:
        def grant() -> tuple[Any, str]:
            requester = self._requester(request, body, jwk=True)
            who = requester.account.id if requester.account else network_of(request.remote or "")
            self._limits.revocation(who)
            return self._revocations.grant(requester), who

        granted, _who = await self._do(grant)
        added = await self._shielded(self._authority.revoke(granted.certificate, granted.reason, granted.by))
        await self._do(lambda: self._revocations.done(granted))
        if not added:
            raise AcmeProblem(ProblemType.ALREADY_REVOKED, "the certificate was revoked already")
        return _Answer()

    async def _shielded(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        task = asyncio.create_task(work)
        self._issuing.add(task)
        task.add_done_callback(self._issuing.discard)
        return await asyncio.shield(task)

    def _of_account(self, account: Account, *, status: int = 200) -> _Answer:
        headers = {"location": self._urls.account(account.id)}
        return _Answer(account_document(account, self._urls), status, headers)

    def _of_order(self, order: Order, *, status: int = 200) -> _Answer:
        headers = {"location": self._urls.order(order.id)}
        if order.status in {Status.PENDING, Status.PROCESSING}:
            headers |= _later()
        return _Answer(order_document(order, self._urls), status, headers)


def _later() -> dict[str, str]:
    return {"retry-after": str(POLL_SECONDS)}


def _require_method(request: web.BaseRequest, *methods: str) -> None:
    if request.method not in methods:
        raise malformed(f"this resource accepts only {' and '.join(methods)}", status=405)


async def _read(request: web.BaseRequest) -> bytes:
    if request.content_type != JOSE:
        raise malformed(f"requests must have the type {JOSE}", status=415)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await read_body(request.content, MAX_REQUEST_BYTES)
    except BodyTooLarge as error:
        raise malformed(f"the request is larger than {MAX_REQUEST_BYTES} bytes", status=413) from error
    except TimeoutError as error:
        raise malformed("the request did not arrive in time", status=408) from error


def _problem(problem: AcmeProblem) -> _Answer:
    headers = {}
    if problem.retry_after:
        headers["retry-after"] = str(math.ceil(problem.retry_after))
    if problem.location:
        headers["location"] = problem.location
    return _Answer(problem.document(), problem.status, headers, content_type="application/problem+json")


def _plain(error: Exception) -> str:
    """``text`` bounded, and without control characters."""
    return printable(str(error))[:500]
