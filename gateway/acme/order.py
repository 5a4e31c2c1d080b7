"""One order at an ACME server with certbot's library: account, challenges, certificate.

Synchronous, like the library. Any bad answer of the server raises :class:`~sluice.gateway.errors.AcmeError`.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import requests
from acme import challenges as kinds, client, crypto_util, errors, messages
from cryptography import x509
from josepy import errors as jose_errors
from josepy.b64 import b64decode
from josepy.jwa import ES256
from josepy.jwk import JWK, JWKEC

from sluice.core import Clock, SluiceError, printable, read_secret
from sluice.gateway.acme.challenges import Challenge, ChallengeProbe
from sluice.gateway.acme.store import AccountRecord, AcmeStore, OrderRecord
from sluice.gateway.acme.transport import BoundedTransport, tls_context
from sluice.gateway.config import AcmeConfig
from sluice.gateway.errors import AcmeError
from sluice.pki.x509 import DAMAGED, PrivateKey, key_to_pem

_LOG = logging.getLogger(__name__)

VALIDATION_SECONDS = 120
ISSUANCE_SECONDS = 120
SERVING_SECONDS = 30.0
"""How long Envoy may take to answer a challenge after it is published."""
MAX_NONCE_RETRIES = 5
"""The library itself retries only once."""
MAX_EAB_KEY_BYTES = 4096
MAX_ERROR_TEXT_CHARACTERS = 400
"""Maximum length of a server's error text in our messages."""
MAX_REPORTED_FAILURES = 4
_USER_AGENT = "sluice"
_POLL_SECONDS = 0.2


@kinds.ChallengeResponse.register
class _TlsAlpnResponse(kinds.KeyAuthorizationChallengeResponse):
    """Tells the server that the challenge is ready to be validated."""

    typ = "tls-alpn-01"


@kinds.Challenge.register
class _TlsAlpn(kinds.KeyAuthorizationChallenge):
    """tls-alpn-01 (RFC 8737), which the library no longer has."""

    response_cls = _TlsAlpnResponse
    typ = "tls-alpn-01"

    def validation(self, account_key: JWK, **_: Any) -> str:  # noqa: ANN401  the library's signature
        return self.key_authorization(account_key)


class _Network(client.ClientNetwork):
    """Retries requests that the server rejects for a bad nonce. This can happen without an error of the client.

    See RFC 8555, 6.5.
    """

    def post(self, *arguments: Any, **named: Any) -> requests.Response:  # noqa: ANN401  the library's signature
        for left in range(MAX_NONCE_RETRIES, -1, -1):
            try:
                return super().post(*arguments, **named)
            except messages.Error as error:
                if error.code != "badNonce" or not left:
                    raise
        raise AssertionError


class Ordering:
    """Orders certificates for the ``names`` of one gateway.

    Args:
        config: the ACME server.
        names: DNS names for the certificate.
        store: where keys and records are stored.
        probe: returns whether the gateway already answers a challenge.
        clock: returns the current time.
    """

    def __init__(
        self, config: AcmeConfig, names: tuple[str, ...], store: AcmeStore, probe: ChallengeProbe, clock: Clock
    ) -> None:
        self._config = config
        self._names = tuple(sorted({name.lower() for name in names}))
        self._store = store
        self._probe = probe
        self._clock = clock
        self._transport: BoundedTransport | None = None

    @property
    def retry_after(self) -> dt.timedelta | None:
        """The Retry-After of the server's last answer, if any."""
        return None if self._transport is None else self._transport.retry_after

    def obtain(self) -> tuple[bytes, PrivateKey]:
        """A certificate chain (PEM, as the server sent it) and its key. Raises :class:`AcmeError`."""
        with _translated():
            acme = self._client()
            try:
                return self._obtain(acme)
            except messages.Error as error:
                if error.code != "accountDoesNotExist":
                    raise
                _LOG.warning("%s no longer knows the account; registering again", self._config.directory)
            self._store.forget_account(self._config.directory)
            self._store.drop_order_record()
            acme.net.account = None
            return self._obtain(acme)

    def _obtain(self, acme: client.ClientV2) -> tuple[bytes, PrivateKey]:
        self._log_in(acme, JWKEC(key=self._store.account_key(self._config.directory)))
        key = self._store.pending_key(self._config.key_type)
        order = self._continued(acme) or self._ordered(acme, crypto_util.make_csr(key_to_pem(key), list(self._names)))
        if order.body.status == messages.STATUS_PENDING:
            order = self._validated(acme, order)
        if order.body.status in {messages.STATUS_PENDING, messages.STATUS_READY}:
            finished = acme.finalize_order(order, self._deadline(ISSUANCE_SECONDS))
        else:
            finished = acme.poll_finalization(order, self._deadline(ISSUANCE_SECONDS))
        return str(finished.fullchain_pem).encode(), key

    def _client(self) -> client.ClientV2:
        key = self._store.account_key(self._config.directory)
        network = _Network(JWKEC(key=key), alg=ES256, user_agent=_USER_AGENT)
        self._transport = BoundedTransport(self._config.directory, tls_context(self._config.ca_file), self._clock)
        # Ignore proxies and CAs from the environment, and passwords from ~/.netrc.
        network.session.trust_env = False
        network.session.mount("https://", self._transport)
        network.session.mount("http://", self._transport)
        directory = client.ClientV2.get_directory(self._config.directory, network)
        return client.ClientV2(directory, network)

    def _log_in(self, acme: client.ClientV2, key: JWK) -> None:
        """Use the known account, or register one. The server finds an existing account by its key."""
        record = self._store.account(self._config.directory)
        if record is not None:
            acme.net.account = _account(record.url)
            return
        binding = self._binding(acme, key)
        wanted = messages.NewRegistration.from_data(
            email=self._config.email or None, terms_of_service_agreed=True, external_account_binding=binding
        )
        try:
            url = str(acme.new_account(wanted).uri)
        except errors.ConflictError as known:
            url = known.location
            acme.net.account = _account(url)
        self._store.save_account(AccountRecord(directory=self._config.directory, url=url))
        _LOG.info("registered an account at %s", self._config.directory)

    def _binding(self, acme: client.ClientV2, key: JWK) -> dict[str, Any] | None:
        if not self._config.eab_key_id:
            if acme.external_account_required():
                raise AcmeError(
                    "the ACME server demands an external account binding",
                    "ask its operator for a key, and set gateway.acme.eab_key_id and eab_key_file",
                )
            return None
        path = Path(self._config.eab_key_file)
        text = read_secret(path, MAX_EAB_KEY_BYTES).decode("ascii", "replace").strip()
        try:
            secret = b64decode(text.rstrip("="))
        except (ValueError, TypeError):
            secret = b""
        if not secret:
            # No exception cause: it would show the content of the file.
            raise AcmeError(
                f"{path} holds no key in base64url", "store the key there as the server's operator gave it"
            ) from None
        return messages.ExternalAccountBinding.from_data(
            key.public_key(), self._config.eab_key_id, text.rstrip("="), acme.directory
        )

    def _continued(self, acme: client.ClientV2) -> messages.OrderResource | None:
        """The order that an earlier attempt began, if the server still accepts it."""
        record = self._store.pending_order(self._config.directory, self._names, self._config.key_type)
        if record is None:
            return None
        try:
            body = self._order_at(acme, record.url)
        except messages.Error as error:
            if error.code == "accountDoesNotExist":
                raise
            self._store.drop_order_record()
            return None
        if body.status not in {
            messages.STATUS_PENDING,
            messages.STATUS_READY,
            messages.STATUS_PROCESSING,
            messages.STATUS_VALID,
        }:
            self._store.drop_order_record()
            return None
        _LOG.info("continuing order %s (status %s)", record.url, body.status.name)
        return messages.OrderResource(
            body=body, uri=record.url, authorizations=self._authorizations(acme, body), csr_pem=record.csr.encode()
        )

    def _ordered(self, acme: client.ClientV2, csr: bytes) -> messages.OrderResource:
        order = acme.new_order(csr)
        self._store.save_order(
            OrderRecord(
                directory=self._config.directory,
                url=order.uri,
                names=self._names,
                key_type=self._config.key_type,
                csr=csr.decode(),
            )
        )
        return order

    def _order_at(self, acme: client.ClientV2, url: str) -> messages.Order:
        answer = acme.net.post(url, None, new_nonce_url=acme.directory["newNonce"])
        order: messages.Order = messages.Order.from_json(answer.json())
        return order

    def _authorizations(self, acme: client.ClientV2, body: messages.Order) -> list[messages.AuthorizationResource]:
        found = []
        for url in body.authorizations:
            answer = acme.net.post(url, None, new_nonce_url=acme.directory["newNonce"])
            found.append(messages.AuthorizationResource(body=messages.Authorization.from_json(answer.json()), uri=url))
        return found

    def _validated(self, acme: client.ClientV2, order: messages.OrderResource) -> messages.OrderResource:
        """Have the gateway answer the challenges, and wait until the server has validated them."""
        account_key = acme.net.key
        if account_key is None:
            raise AcmeError("there is no account key")
        asked: list[tuple[messages.ChallengeBody, Challenge]] = []
        for authorization in order.authorizations:
            name = str(authorization.body.identifier.value).lower()
            # The server must not make the gateway answer for names that were not ordered.
            if name not in self._names:
                raise AcmeError(f"the ACME server wants to validate {name[:253]!r}, which was not ordered")
            if authorization.body.status == messages.STATUS_VALID:
                continue
            body = self._offered(authorization)
            asked.append(
                (
                    body,
                    Challenge(
                        name=name,
                        kind=self._config.challenge,
                        token=body.chall.encode("token"),
                        key_authorization=body.chall.key_authorization(account_key),
                    ),
                )
            )
        try:
            self._store.challenges.publish(tuple(each for _, each in asked), self._clock())
            for _, challenge in asked:
                self._await_serving(challenge)
            for body, _ in asked:
                if body.status == messages.STATUS_PENDING:
                    acme.answer_challenge(body, body.chall.response(account_key))
            order = acme.poll_authorizations(order, self._deadline(VALIDATION_SECONDS))
        except errors.ValidationError:
            # An invalid authorization cannot be retried (RFC 8555, 7.1.6): the next attempt needs a new one.
            self._store.drop_order_record()
            raise
        finally:
            self._store.challenges.withdraw()
        validated: messages.OrderResource = order.update(body=self._order_at(acme, order.uri))
        return validated

    def _offered(self, authorization: messages.AuthorizationResource) -> messages.ChallengeBody:
        offered = [each for each in authorization.body.challenges or () if each.chall.typ == self._config.challenge]
        if not offered:
            self._store.drop_order_record()
            named = ", ".join(sorted({str(each.chall.typ)[:40] for each in authorization.body.challenges or ()}))
            raise AcmeError(
                f"the ACME server offers no {self._config.challenge} for {authorization.body.identifier.value[:253]}, "
                f"only {named or 'nothing'}",
                "set gateway.acme.challenge to one of the offered types",
            )
        return offered[0]

    def _await_serving(self, challenge: Challenge) -> None:
        deadline = time.monotonic() + SERVING_SECONDS
        while not self._probe(challenge):
            if time.monotonic() > deadline:
                raise AcmeError(
                    f"Envoy does not answer the challenge for {challenge.name}",
                    "check that the gateway runs with the auth service's [gateway.acme]: `sluice gateway status`",
                )
            time.sleep(_POLL_SECONDS)

    def _deadline(self, seconds: float) -> dt.datetime:
        # The library compares this with naive local time.
        return dt.datetime.now() + dt.timedelta(seconds=seconds)  # noqa: DTZ005


def _account(url: str) -> messages.RegistrationResource:
    return messages.RegistrationResource(body=messages.Registration(), uri=url)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Translate errors of the library and of parsing answers into :class:`AcmeError` with a one-line text."""
    try:
        yield
    except SluiceError:
        raise
    except messages.Error as error:
        raise AcmeError(f"the ACME server refuses: {describe_error(error)}", _remedy(str(error.code))) from error
    except errors.ValidationError as error:
        raise AcmeError(
            f"the ACME server could not validate {'; '.join(_failures(error))}",
            "the ACME server must reach this gateway by that name, on port 443 (tls-alpn-01) or 80 (http-01)",
        ) from error
    except errors.IssuanceError as error:
        raise AcmeError(f"the ACME server did not issue a certificate: {describe_error(error.error)}") from error
    except errors.TimeoutError as error:
        raise AcmeError("the ACME server did not finish in time", "the next attempt continues the order") from error
    except requests.RequestException as error:
        raise AcmeError(
            f"the ACME server gave no answer: {_line(error)}", "check gateway.acme.directory, ca_file and the network"
        ) from error
    except (errors.Error, jose_errors.Error) as error:
        raise AcmeError(f"the ACME server sent an invalid answer: {type(error).__name__} {_line(error)}") from error
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError, *DAMAGED) as error:
        # The library does not check the structure of the server's JSON.
        raise AcmeError(f"the ACME server sent an invalid answer: {type(error).__name__} {_line(error)}") from error


def describe_error(error: messages.Error) -> str:
    """Code and detail of a problem document, on one line."""
    return f"{_line(error.code or error.typ)}: {_line(error.detail)}"[:MAX_ERROR_TEXT_CHARACTERS]


def _failures(error: errors.ValidationError) -> list[str]:
    found = [
        f"{_line(each.body.identifier.value)} ({describe_error(challenge.error)})"
        for each in error.failed_authzrs
        for challenge in each.body.challenges
        if challenge.error is not None
    ]
    return found[:MAX_REPORTED_FAILURES]


def _remedy(code: str) -> str:
    match code:
        case "rateLimited":
            return "wait; the gateway retries automatically"
        case "externalAccountRequired":
            return "set gateway.acme.eab_key_id and eab_key_file as the server's operator gave them"
        case "userActionRequired":
            return "read the server's current terms of service"
        case _:
            return ""


def _line(text: object) -> str:
    """``text`` as one printable line, with control characters replaced."""
    return printable(str(text)[:MAX_ERROR_TEXT_CHARACTERS], " ")


def chain_of(pem: bytes) -> tuple[x509.Certificate, ...]:
    """The certificates in ``pem``, without any other content. Raises :class:`AcmeError`."""
    try:
        return tuple(x509.load_pem_x509_certificates(pem))
    except DAMAGED as error:
        raise AcmeError(f"the ACME server sent no readable certificate: {_line(error)}") from error
