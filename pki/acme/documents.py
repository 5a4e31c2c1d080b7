"""Accounts, orders, authorizations and challenges as clients see them (RFC 8555, section 7.1). No I/O."""

from __future__ import annotations

import datetime as dt

from sluice.pki.acme.objects import Account, Authorization, Challenge, Order, Status, StoredProblem
from sluice.pki.acme.urls import Urls

Document = dict[str, object]


def account_document(account: Account, urls: Urls) -> Document:
    """An account."""
    return {"status": account.status, "contact": account.contact, "orders": urls.orders(account.id)}


def order_document(order: Order, urls: Urls) -> Document:
    """An order."""
    found: Document = {
        "status": order.status,
        "expires": _time(order.expires),
        "identifiers": [{"type": each.type, "value": each.value} for each in order.identifiers],
        "authorizations": [urls.authorization(order.id, index) for index in range(len(order.authorizations))],
        "finalize": urls.finalize(order.id),
    }
    if order.serial:
        found["certificate"] = urls.certificate(order.serial)
    if order.error is not None:
        found["error"] = _problem(order.error)
    return found


def authorization_document(order: Order, index: int, urls: Urls) -> Document:
    """The authorization of one name of an order."""
    authorization = order.authorizations[index]
    found: Document = {
        "identifier": {"type": authorization.identifier.type, "value": authorization.identifier.value},
        "status": authorization.status,
        "expires": _time(order.expires),
        "challenges": [challenge_document(order, index, each, urls) for each in _shown(authorization)],
    }
    if authorization.wildcard:
        found["wildcard"] = True
    return found


def challenge_document(order: Order, index: int, challenge: Challenge, urls: Urls) -> Document:
    """One challenge."""
    found: Document = {
        "type": challenge.type,
        "url": urls.challenge(order.id, index, challenge.type),
        "status": challenge.status,
        "token": challenge.token,
    }
    if challenge.validated:
        found["validated"] = _time(challenge.validated)
    if challenge.error is not None:
        found["error"] = _problem(challenge.error)
    return found


def _shown(authorization: Authorization) -> tuple[Challenge, ...]:
    """All challenges; after a decision, only the one that decided it (RFC 8555, 7.1.4)."""
    if authorization.status is Status.PENDING:
        return authorization.challenges
    decided = tuple(each for each in authorization.challenges if each.status in {Status.VALID, Status.INVALID})
    return decided or authorization.challenges


def _problem(problem: StoredProblem) -> Document:
    return {"type": problem.type, "detail": problem.detail, "status": problem.status}


def _time(seconds: float) -> str:
    return dt.datetime.fromtimestamp(int(seconds), dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
