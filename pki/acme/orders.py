"""Orders: creation, authorization by challenges, finalization (RFC 8555, 7.4 and 7.5)."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

import msgspec

from sluice.core import CertificateRejected
from sluice.pki.acme.csr import check_csr_for
from sluice.pki.acme.identifiers import Identifier, parse_identifier
from sluice.pki.acme.jwk import decode, of_public_key, thumbprint
from sluice.pki.acme.names import NamePolicy
from sluice.pki.acme.objects import (
    Account,
    Authorization,
    Certificate,
    Challenge,
    ChallengeType,
    Order,
    Status,
    StoredProblem,
    ValidationTask,
)
from sluice.pki.acme.payloads import AuthorizationUpdate, Finalize, NewOrder, read
from sluice.pki.acme.problems import URN, AcmeProblem, ProblemType, malformed
from sluice.pki.acme.requester import Requester
from sluice.pki.acme.store import AcmeStore
from sluice.pki.issuing import IssuedHost
from sluice.pki.x509 import HostNames, PublicKey, fingerprint

MAX_IDENTIFIERS = 16
"""Names in one order: with all of them, a record of the ledger is within its limit."""
MAX_UNFINISHED = 50
"""Orders of one account that are neither valid nor invalid nor expired."""
ORDER_SECONDS = 24 * 3600.0
"""How long an order can be finalized."""
TOKEN_BYTES = 32

_OF_NAMES = (ChallengeType.HTTP, ChallengeType.TLS_ALPN, ChallengeType.DNS)
_OF_ADDRESSES = (ChallengeType.HTTP, ChallengeType.TLS_ALPN)  # RFC 8738, section 7
_OF_WILDCARDS = (ChallengeType.DNS,)


class Orders:
    """The operations on orders for clients; ``clock`` gives seconds since the epoch.

    ``policy`` is called for each decision, because names of the gateway may have changed.
    """

    def __init__(self, store: AcmeStore, policy: Callable[[], NamePolicy], *, clock: Callable[[], float]) -> None:
        self._store = store
        self._policy = policy
        self._clock = clock

    def make(self, requester: Requester) -> Order:
        """Create an order for names that the account may have."""
        account, now = requester.known, self._clock()
        asked = read(requester.payload, NewOrder)
        if asked.notBefore is not None or asked.notAfter is not None:
            raise malformed("notBefore and notAfter are not supported: leave them out")
        if not 1 <= len(asked.identifiers) <= MAX_IDENTIFIERS:
            raise malformed(f"an order has 1 to {MAX_IDENTIFIERS} identifiers")
        identifiers = tuple(dict.fromkeys(_identifier(each.type, each.value) for each in asked.identifiers))
        self._require_allowed(identifiers, account)
        order = Order(
            id=secrets.token_urlsafe(16),
            account=account.id,
            identifiers=identifiers,
            created=now,
            expires=now + ORDER_SECONDS,
            authorizations=tuple(_authorization(each) for each in identifiers),
        )
        with self._store.change():
            self._store.forget(now)
            if self._store.unfinished(account.id, now) >= MAX_UNFINISHED:
                raise AcmeProblem(
                    ProblemType.RATE_LIMITED, f"the account has {MAX_UNFINISHED} orders that are not finished"
                )
            self._store.put_order(order)
        return order

    def get(self, requester: Requester, identifier: str) -> Order:
        """An order of the requester."""
        order = self._store.order(identifier)
        if order is None:
            raise malformed("there is no such order", status=404)
        if order.account != requester.known.id:
            raise AcmeProblem(ProblemType.UNAUTHORIZED, "this is an order of another account")
        if order.expires <= self._clock() and order.status in {Status.PENDING, Status.READY}:
            return msgspec.structs.replace(order, status=Status.INVALID)
        return order

    def authorization(self, requester: Requester, identifier: str, index: int) -> Order:
        """The order with the authorization ``index``, which is deactivated if the payload says so."""
        order = self.get(requester, identifier)
        if index >= len(order.authorizations):
            raise malformed("there is no such authorization", status=404)
        if not requester.payload:
            return order
        if read(requester.payload, AuthorizationUpdate).status != Status.DEACTIVATED:
            raise malformed("the status of an authorization can only become deactivated")
        authorization = order.authorizations[index]
        if authorization.status not in {Status.PENDING, Status.VALID}:
            raise malformed(f"the authorization is {authorization.status}")
        changed = msgspec.structs.replace(authorization, status=Status.DEACTIVATED)
        ended = order.status in {Status.PENDING, Status.READY}
        order = _with(order, index, changed, status=Status.INVALID if ended else order.status)
        with self._store.change():
            self._store.put_order(order)
        return order

    def begin(
        self, requester: Requester, identifier: str, index: int, kind: ChallengeType
    ) -> tuple[Order, ValidationTask | None]:
        """Start the validation of a challenge unless it was started; an empty payload starts nothing."""
        order = self.get(requester, identifier)
        if index >= len(order.authorizations):
            raise malformed("there is no such challenge", status=404)
        authorization = order.authorizations[index]
        challenge = challenge_of(authorization, kind)
        if not requester.payload or challenge.status is not Status.PENDING:
            return order, None
        if authorization.status is not Status.PENDING or order.status is not Status.PENDING:
            raise malformed(f"the authorization is {authorization.status}, its order {order.status}")
        if any(each.status is Status.PROCESSING for each in authorization.challenges):
            raise malformed("another challenge of this name is being validated")
        # The current policy: names may have been removed since the order was made.
        self._require_allowed((order.identifiers[index],), requester.known)
        changed = msgspec.structs.replace(challenge, status=Status.PROCESSING)
        order = _with(order, index, _with_challenge(authorization, changed))
        with self._store.change():
            self._store.put_order(order)
        return order, _task(order, index, changed, requester.known)

    def interrupted(self) -> list[ValidationTask]:
        """The validations that were running when this process last ended; sets interrupted issuances back to ready."""
        tasks = []
        with self._store.change():
            for order in self._store.all_unfinished():
                account = self._store.account(order.account)
                if account is None:
                    continue
                if order.status is Status.PROCESSING:
                    self._store.put_order(msgspec.structs.replace(order, status=Status.READY))
                for index, authorization in enumerate(order.authorizations):
                    tasks += [
                        _task(order, index, each, account)
                        for each in authorization.challenges
                        if each.status is Status.PROCESSING and authorization.status is Status.PENDING
                    ]
        return tasks

    def decided(self, task: ValidationTask, problem: AcmeProblem | None) -> None:
        """Store the result of a validation; ``problem`` says why it failed."""
        with self._store.change():
            order = self._store.order(task.order)
            if order is None:
                return
            authorization = order.authorizations[task.index]
            challenge = challenge_of(authorization, task.type)
            # Deactivated meanwhile, or another challenge is being validated.
            if authorization.status is not Status.PENDING or challenge.status is not Status.PROCESSING:
                return
            stored = None if problem is None else _stored(problem)
            status = Status.VALID if problem is None else Status.INVALID
            challenge = msgspec.structs.replace(
                challenge, status=status, validated=self._clock() if problem is None else 0.0, error=stored
            )
            changed = msgspec.structs.replace(_with_challenge(authorization, challenge), status=status)
            order = _with(order, task.index, changed)
            if problem is not None:
                order = msgspec.structs.replace(order, status=Status.INVALID, error=stored)
            elif order.status is Status.PENDING and all(each.status is Status.VALID for each in order.authorizations):
                order = msgspec.structs.replace(order, status=Status.READY)
            self._store.put_order(order)

    def begin_issuance(self, requester: Requester, identifier: str) -> tuple[Order, PublicKey, HostNames]:
        """Check a signing request for an order that is ready, and mark the order as processing."""
        order = self.get(requester, identifier)
        asked = read(requester.payload, Finalize)
        # 1. The client controls every name.
        if order.status is not Status.READY:
            raise AcmeProblem(ProblemType.ORDER_NOT_READY, f"the order is {order.status}")
        # 2. The names may still be certified, for this account.
        self._require_allowed(order.identifiers, requester.known)
        # 3. The request is for these names, with a key of its own.
        try:
            key = check_csr_for(decode(asked.csr, "the signing request"), order.identifiers)
        except CertificateRejected as error:
            raise AcmeProblem(ProblemType.BAD_CSR, str(error)) from None
        mark = thumbprint(of_public_key(key))
        if self._store.account_with_key(mark) is not None:
            raise AcmeProblem(ProblemType.BAD_CSR, "the key belongs to an account: make another one")
        if self._store.is_compromised(mark):
            raise AcmeProblem(ProblemType.BAD_CSR, "the key was revoked as compromised: make another one")
        order = msgspec.structs.replace(order, status=Status.PROCESSING)
        with self._store.change():
            self._store.put_order(order)
        names = HostNames.checked(
            [each.value for each in order.identifiers if each.type == "dns"],
            [each.value for each in order.identifiers if each.type == "ip"],
        )
        return order, key, names

    def issued(self, order: Order, issued: IssuedHost) -> Order:
        """Store the certificate issued for an order, which makes the order valid."""
        leaf = issued.leaf
        serial = f"{leaf.serial_number:x}"
        order = msgspec.structs.replace(order, status=Status.VALID, serial=serial)
        certificate = Certificate(
            serial=serial,
            account=order.account,
            identifiers=order.identifiers,
            sha256=fingerprint(leaf),
            not_after=leaf.not_valid_after_utc.timestamp(),
            chain_pem=issued.chain_pem.decode(),
        )
        with self._store.change():
            self._store.put_certificate(certificate)
            self._store.put_order(order)
        return order

    def not_issued(self, order: Order, problem: AcmeProblem | None) -> None:
        """Record that nothing was issued: the order is ready again, or invalid because of ``problem``."""
        error = None if problem is None else _stored(problem)
        status = Status.READY if problem is None else Status.INVALID
        with self._store.change():
            self._store.put_order(msgspec.structs.replace(order, status=status, error=error))

    def certificate(self, requester: Requester, serial: str) -> Certificate:
        """A certificate of the requester."""
        found = self._store.certificate(serial)
        if found is None:
            raise malformed("there is no such certificate", status=404)
        if found.account != requester.known.id:
            raise AcmeProblem(ProblemType.UNAUTHORIZED, "this is a certificate of another account")
        return found

    def _require_allowed(self, identifiers: Sequence[Identifier], account: Account) -> None:
        policy = self._policy()
        refused = [(each, text) for each in identifiers if (text := policy.refusal(each, account.names))]
        if refused:
            raise AcmeProblem(
                ProblemType.REJECTED_IDENTIFIER,
                "; ".join(text for _, text in refused[:3]),
                subproblems=refused if len(identifiers) > 1 else (),
            )


def challenge_of(authorization: Authorization, kind: ChallengeType) -> Challenge:
    """The challenge of this kind; :class:`AcmeProblem` when the authorization offers none."""
    for each in authorization.challenges:
        if each.type is kind:
            return each
    raise malformed("there is no such challenge", status=404)


def _identifier(kind: str, value: str) -> Identifier:
    if kind not in {"dns", "ip"}:
        raise AcmeProblem(ProblemType.UNSUPPORTED_IDENTIFIER, "identifiers are of type dns or ip")
    try:
        return parse_identifier(kind, value)
    except CertificateRejected as error:
        raise AcmeProblem(ProblemType.REJECTED_IDENTIFIER, str(error)) from None


def _authorization(identifier: Identifier) -> Authorization:
    kinds = _OF_WILDCARDS if identifier.is_wildcard else _OF_ADDRESSES if identifier.type == "ip" else _OF_NAMES
    return Authorization(
        identifier=identifier.base,
        wildcard=identifier.is_wildcard,
        challenges=tuple(Challenge(type=each, token=secrets.token_urlsafe(TOKEN_BYTES)) for each in kinds),
    )


def _with(order: Order, index: int, authorization: Authorization, *, status: Status | None = None) -> Order:
    changed = list(order.authorizations)
    changed[index] = authorization
    return msgspec.structs.replace(order, authorizations=tuple(changed), status=status or order.status)


def _with_challenge(authorization: Authorization, challenge: Challenge) -> Authorization:
    changed = tuple(challenge if each.type is challenge.type else each for each in authorization.challenges)
    return msgspec.structs.replace(authorization, challenges=changed)


def _task(order: Order, index: int, challenge: Challenge, account: Account) -> ValidationTask:
    return ValidationTask(
        order=order.id,
        index=index,
        account=account.id,
        account_names=account.names,
        identifier=order.authorizations[index].identifier,
        type=challenge.type,
        token=challenge.token,
        key_authorization=f"{challenge.token}.{account.thumbprint}",
    )


def _stored(problem: AcmeProblem) -> StoredProblem:
    return StoredProblem(URN + problem.kind, problem.what, problem.status)
