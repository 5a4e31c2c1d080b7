"""Who signed a request: an account, or the holder of a key (RFC 8555, section 6)."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.pki.acme.jwk import Jwk
from sluice.pki.acme.jws import SignedRequest, parse_request
from sluice.pki.acme.nonces import Nonces
from sluice.pki.acme.objects import Account, Status
from sluice.pki.acme.problems import AcmeProblem, ProblemType, malformed
from sluice.pki.acme.store import AcmeStore
from sluice.pki.acme.urls import Urls


@dataclass(frozen=True, slots=True)
class Requester:
    """Who signed ``payload``; ``account`` is None when the request contains its key."""

    payload: bytes
    jwk: Jwk
    account: Account | None

    @property
    def known(self) -> Account:
        """The account.

        Raises:
            AcmeProblem: the request contains a key instead of naming an account.
        """
        if self.account is None:
            raise malformed("name the account in kid")
        return self.account


class Authenticator:
    """Verifies requests. Only a request with a valid signature uses up its nonce."""

    def __init__(self, store: AcmeStore, nonces: Nonces, urls: Urls) -> None:
        self._store = store
        self._nonces = nonces
        self._urls = urls

    def authenticate(self, body: bytes, url: str, *, kid: bool = True, jwk: bool = False) -> Requester:
        """Who signed ``body`` for ``url``, in one of the allowed ways.

        Raises:
            AcmeProblem: it is not signed, not for this URL, not by a valid account, or was sent before.
        """
        request = parse_request(body)
        # 1. For this URL: a request for one resource must not work for another (RFC 8555, 6.4).
        if request.url != url:
            raise AcmeProblem(ProblemType.UNAUTHORIZED, "the request was signed for another URL")
        # 2. The key: the named account's, or the one in the request where that is required.
        account = None
        if request.jwk is not None:
            if not jwk:
                raise malformed("name the account in kid, and leave jwk out")
            key = request.jwk
        else:
            if not kid:
                raise malformed("show the key in jwk, and leave kid out")
            account = self._account(request)
            key = account.jwk
        # 3. The signature.
        request.verify(key)
        # 4. Only the holder of the key learns whether the account is valid.
        if account is not None:
            require_valid(account)
        # 5. Once (RFC 8555, 6.5).
        self._nonces.use(request.nonce)
        return Requester(request.payload, key, account)

    def _account(self, request: SignedRequest) -> Account:
        identifier = self._urls.account_of(request.kid)
        account = self._store.account(identifier) if identifier else None
        if account is None:
            raise AcmeProblem(ProblemType.ACCOUNT_DOES_NOT_EXIST, "there is no such account here")
        return account


def require_valid(account: Account) -> None:
    """Refuse an account that was deactivated or revoked; :class:`AcmeProblem`."""
    if account.status is not Status.VALID:
        raise AcmeProblem(ProblemType.UNAUTHORIZED, f"the account is {account.status}")
