"""Accounts: creation with an external account key, update, key change, deactivation (RFC 8555, 7.3)."""

from __future__ import annotations

import datetime as dt
import logging
import re
import secrets
from collections.abc import Callable, Sequence

import msgspec

from sluice.core import CertificateRejected
from sluice.pki.acme.jwk import canonical, decode, encode, thumbprint
from sluice.pki.acme.jws import SignedRequest, check_binding, parse_request
from sluice.pki.acme.names import parse_patterns
from sluice.pki.acme.objects import Account, ExternalKey, Status
from sluice.pki.acme.payloads import AccountUpdate, KeyChange, NewAccount, read
from sluice.pki.acme.problems import AcmeProblem, ProblemType, malformed
from sluice.pki.acme.requester import Requester, require_valid
from sluice.pki.acme.store import AcmeStore
from sluice.pki.acme.urls import KEY_CHANGE_PATH, NEW_ACCOUNT_PATH, Urls

_LOG = logging.getLogger(__name__)

MAX_CONTACTS = 4
MAX_CONTACT_CHARACTERS = 320
MAX_NAMES_OF_AN_ACCOUNT = 64
SECRET_BYTES = 32
MIN_TTL = dt.timedelta(minutes=1)
MAX_TTL = dt.timedelta(days=30)
_NO_SECRET = bytes(SECRET_BYTES)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def make_external_key(name: str, names: Sequence[str], *, ttl: dt.timedelta, now: float) -> ExternalKey:
    """Make a key for one new account, which may ask for ``names``.

    Raises:
        CertificateRejected: the name, one of ``names``, or the lifetime is not allowed.
    """
    if not _NAME.fullmatch(name):
        raise CertificateRejected(f"{name[:80]!r} is not a name", "use letters, digits, '-', '.' and '_'")
    if not 1 <= len(names) <= MAX_NAMES_OF_AN_ACCOUNT:
        raise CertificateRejected(f"an account has 1 to {MAX_NAMES_OF_AN_ACCOUNT} names or patterns of names")
    parse_patterns(names)
    if not MIN_TTL <= ttl <= MAX_TTL:
        raise CertificateRejected("a key cannot be valid for so long", "use 1 minute to 30 days")
    return ExternalKey(
        id=secrets.token_hex(8),
        name=name,
        secret=encode(secrets.token_bytes(SECRET_BYTES)),
        names=tuple(dict.fromkeys(names)),
        created=now,
        expires=now + ttl.total_seconds(),
    )


def revoke_external(store: AcmeStore, name: str) -> tuple[ExternalKey, Account | None] | None:
    """Revoke the key ``name`` and the account made with it; None: no key has this name."""
    with store.change():
        key = store.external_named(name)
        if key is None:
            return None
        store.put_external(msgspec.structs.replace(key, revoked=True))
        account = store.account(key.account) if key.account else None
        if account is not None and account.status is Status.VALID:
            account = msgspec.structs.replace(account, status=Status.REVOKED)
            store.put_account(account)
        return key, account


class Accounts:
    """The operations on accounts for clients; ``clock`` gives seconds since the epoch."""

    def __init__(
        self, store: AcmeStore, urls: Urls, *, clock: Callable[[], float], external_account_required: bool
    ) -> None:
        self._store = store
        self._urls = urls
        self._clock = clock
        self._required = external_account_required

    def open(self, requester: Requester, allow_new: Callable[[], None]) -> tuple[Account, bool]:
        """The account of a key, created if missing; returns whether it was.

        ``allow_new`` raises when there are too many new ones.
        """
        asked = read(requester.payload, NewAccount)
        key = thumbprint(requester.jwk)
        with self._store.change():
            existing = self._store.account_with_key(key)
            if existing is not None:
                require_valid(existing)
                return existing, False
            if asked.onlyReturnExisting:
                raise AcmeProblem(ProblemType.ACCOUNT_DOES_NOT_EXIST, "there is no account with this key")
            allow_new()
            if self._store.is_compromised(key):
                raise AcmeProblem(ProblemType.BAD_PUBLIC_KEY, "this key was revoked as compromised")
            contact = _contact(asked.contact)
            external = self._external(asked.externalAccountBinding, requester)
            account = Account(
                id=secrets.token_urlsafe(12),
                jwk=requester.jwk,
                thumbprint=key,
                contact=contact,
                external="" if external is None else external.id,
                name="" if external is None else external.name,
                names=None if external is None else external.names,
                created=self._clock(),
            )
            self._store.put_account(account)
            if external is not None:
                # In the same transaction: after a crash it does not work for a second account.
                self._store.put_external(msgspec.structs.replace(external, account=account.id))
        _LOG.info("new ACME account %s (%s)", account.id, account.name or "without external account")
        return account, True

    def update(self, requester: Requester, identifier: str) -> Account:
        """The account, with another contact, or deactivated."""
        account = self._own(requester, identifier)
        if not requester.payload:
            return account
        asked = read(requester.payload, AccountUpdate)
        if asked.status not in {None, Status.VALID, Status.DEACTIVATED}:
            raise malformed("the status of an account can only become deactivated")
        contact = None if asked.contact is None else _contact(asked.contact)
        with self._store.change():
            account = self._present(account)
            if contact is not None:
                account = msgspec.structs.replace(account, contact=contact)
            if asked.status == Status.DEACTIVATED:
                account = msgspec.structs.replace(account, status=Status.DEACTIVATED)
                _LOG.warning("ACME account %s (%s) was deactivated by its holder", account.id, account.name)
            self._store.put_account(account)
        return account

    def orders(self, requester: Requester, identifier: str, limit: int) -> list[str]:
        """The URLs of the account's orders."""
        account = self._own(requester, identifier)
        return [self._urls.order(each.id) for each in self._store.orders_of(account.id, limit)]

    def change_key(self, requester: Requester) -> Account:
        """Replace the account's key by the one in the inner JWS, which that key has signed (RFC 8555, 7.3.5)."""
        account = requester.known
        try:
            inner = parse_request(requester.payload, nonce=False)
        except AcmeProblem as problem:
            raise malformed(f"the inner JWS: {problem.what}") from None
        # 1. Signed with the new key, which it shows.
        if inner.jwk is None:
            raise malformed("the inner JWS shows the new key in jwk")
        inner.verify(inner.jwk)
        # 2. For this URL, this account, and its present key.
        asked = read(inner.payload, KeyChange)
        if inner.url != self._urls.at(KEY_CHANGE_PATH):
            raise malformed("the inner JWS is for another URL")
        if self._urls.account_of(asked.account) != account.id:
            raise malformed("the inner JWS names another account")
        if thumbprint(canonical(asked.oldKey)) != account.thumbprint:
            raise malformed("the inner JWS names another old key")
        # 3. A key belongs to one account only.
        new = thumbprint(inner.jwk)
        with self._store.change():
            holder = self._store.account_with_key(new)
            if holder is not None:
                raise AcmeProblem(
                    ProblemType.MALFORMED,
                    "the new key has an account already",
                    status=409,
                    location=self._urls.account(holder.id),
                )
            if self._store.is_compromised(new):
                raise AcmeProblem(ProblemType.BAD_PUBLIC_KEY, "this key was revoked as compromised")
            account = msgspec.structs.replace(self._present(account), jwk=inner.jwk, thumbprint=new)
            self._store.put_account(account)
        _LOG.info("ACME account %s (%s) has another key", account.id, account.name)
        return account

    def _present(self, account: Account) -> Account:
        """The account as of this transaction: `sluice pki acme` may have revoked it since the request."""
        found = self._store.account(account.id)
        if found is None:
            raise AcmeProblem(ProblemType.ACCOUNT_DOES_NOT_EXIST, "the account is gone")
        require_valid(found)
        return found

    def _own(self, requester: Requester, identifier: str) -> Account:
        if requester.known.id != identifier:
            raise AcmeProblem(ProblemType.UNAUTHORIZED, "this is another account")
        return requester.known

    def _external(self, binding: object, requester: Requester) -> ExternalKey | None:
        if binding is None:
            if self._required:
                raise AcmeProblem(
                    ProblemType.EXTERNAL_ACCOUNT_REQUIRED,
                    "an account needs a key id and an HMAC key of `sluice pki acme account create`",
                )
            return None
        try:
            signed: SignedRequest = parse_request(binding, nonce=False, symmetric=True)
        except AcmeProblem as problem:
            raise malformed(f"the external account binding: {problem.what}") from None
        found = self._store.external(signed.kid)
        # Compared even when there is no such key, so that timing does not reveal which ids exist.
        secret = _NO_SECRET if found is None else decode(found.secret, "the secret")
        check_binding(signed, secret=secret, account=requester.jwk, url=self._urls.at(NEW_ACCOUNT_PATH))
        # Only the holder of the secret learns more.
        if found is None or found.revoked:
            raise AcmeProblem(ProblemType.UNAUTHORIZED, "the key of the external account was revoked")
        if found.account:
            _LOG.warning("the key %s of external account %s was used again", found.id, found.name)
            raise AcmeProblem(ProblemType.UNAUTHORIZED, "an account was made with this key already: it is valid once")
        if self._clock() >= found.expires:
            raise AcmeProblem(ProblemType.UNAUTHORIZED, "the key of the external account has expired")
        return found


def _contact(asked: Sequence[str]) -> tuple[str, ...]:
    """Mail addresses, at most a few; nothing is ever sent to them."""
    if len(asked) > MAX_CONTACTS or any(len(each) > MAX_CONTACT_CHARACTERS for each in asked):
        raise AcmeProblem(ProblemType.INVALID_CONTACT, f"at most {MAX_CONTACTS} contacts, of bounded length")
    for each in asked:
        if not each.startswith("mailto:"):
            raise AcmeProblem(ProblemType.UNSUPPORTED_CONTACT, "contacts are mailto: URLs")
        address = each.removeprefix("mailto:")
        if not address.isprintable() or address.count("@") != 1 or {",", "?", " "} & set(address):
            raise AcmeProblem(ProblemType.INVALID_CONTACT, "a contact is one mail address")
    return tuple(asked)
