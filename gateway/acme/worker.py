"""One attempt to get a certificate, in its own process: ``python -m sluice.gateway.acme.worker``.

The process that holds Envoy's keys neither loads the ACME library nor parses answers of a third-party server, and it
can kill the attempt at any time.
"""

from __future__ import annotations

import datetime as dt
import http.client
import random
import shutil
import signal
import socket
import sys
from pathlib import Path

import msgspec
from cryptography import x509

from sluice.core import Clock, Home, SluiceError, StoreError, read_bounded, utc_now
from sluice.gateway.acme.challenges import Challenge, ChallengeProbe
from sluice.gateway.acme.schedule import failed, started, succeeded
from sluice.gateway.acme.store import CHAIN, KEY, AcmeStore, settings_digest
from sluice.gateway.config import AcmeConfig
from sluice.gateway.errors import AcmeError, EdgeCertificateError
from sluice.gateway.proxy import CertificateFiles
from sluice.pki.authorities import to_pem
from sluice.pki.tls import challenge_client_context
from sluice.pki.x509 import ACME_TLS_PROTOCOL, PrivateKey, acme_identifier

CONNECT_SECONDS = 5.0
MAX_ENDPOINT_BYTES = 4096
MAX_JOB_BYTES = 1 << 20
ATTEMPT_SECONDS = 600
"""An attempt is killed after this time, wherever it hangs."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What the worker reads from its standard input."""

    home: str
    config: AcmeConfig
    names: tuple[str, ...]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What the worker writes, on one line. ``problem`` is empty on success."""

    problem: str = ""


class _Endpoint(msgspec.Struct, frozen=True):
    host: str
    port: int


def renew(home: Home, config: AcmeConfig, names: tuple[str, ...], *, clock: Clock = utc_now) -> None:
    """Get a certificate for ``names`` and put it in use. The previous one stays in use until then.

    Raises:
        AcmeError: the server does not issue the certificate, or another process is ordering.
            EdgeCertificateError: the issued certificate does not suit this gateway.
        StoreError: files cannot be written.
    """
    # Imported late: only a process that orders needs the library.
    from sluice.gateway.acme.order import Ordering

    store = AcmeStore(home)
    with store.ordering():
        # 1. Count the attempt before any request: if it cannot be recorded, it must not be made.
        state = started(store.state(), settings_digest(config, names), clock(), random.random())  # noqa: S311  a pause
        store.save_state(state)
        ordering = Ordering(config, names, store, _serving(home, config), clock)
        try:
            chain, key = ordering.obtain()
            _install(store, chain, key, names, clock())
        except SluiceError as error:
            store.save_state(failed(state, str(error), ordering.retry_after, clock()))
            raise
        store.save_state(succeeded(state, config.directory, clock()))


def _serving(home: Home, config: AcmeConfig) -> ChallengeProbe:
    """Checks challenges at the gateway itself, like the server will."""
    name = "acme-http.json" if config.challenge == "http-01" else "envoy.json"

    def probe(challenge: Challenge) -> bool:
        try:
            endpoint = msgspec.json.decode(
                read_bounded(home.run / "endpoints" / name, MAX_ENDPOINT_BYTES), type=_Endpoint
            )
        except (StoreError, msgspec.MsgspecError):
            return False
        ask = _serves_http if challenge.kind == "http-01" else _serves_tls_alpn
        try:
            return ask((endpoint.host, endpoint.port), challenge)
        except (OSError, http.client.HTTPException, ValueError):
            return False

    return probe


def _serves_http(address: tuple[str, int], challenge: Challenge) -> bool:
    connection = http.client.HTTPConnection(*address, timeout=CONNECT_SECONDS)
    try:
        connection.request("GET", challenge.path, headers={"Host": challenge.name})
        answer = connection.getresponse()
        expected = challenge.key_authorization.encode()
        return answer.status == 200 and answer.read(len(expected) + 1) == expected
    finally:
        connection.close()


def _serves_tls_alpn(address: tuple[str, int], challenge: Challenge) -> bool:
    context = challenge_client_context([ACME_TLS_PROTOCOL])
    with (
        socket.create_connection(address, timeout=CONNECT_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=challenge.name) as connection,
    ):
        der = connection.getpeercert(binary_form=True) or b""
        if connection.selected_alpn_protocol() != ACME_TLS_PROTOCOL:
            return False
    wanted = acme_identifier(challenge.key_authorization)
    return any(each.critical and each.value == wanted for each in x509.load_der_x509_certificate(der).extensions)


def _install(store: AcmeStore, pem: bytes, key: PrivateKey, names: tuple[str, ...], now: dt.datetime) -> None:
    """Put the new certificate in use if it passes the checks for every gateway certificate."""
    from sluice.gateway.acme.order import chain_of

    try:
        place = store.stage(to_pem(*chain_of(pem)), key)
        try:
            CertificateFiles(place / CHAIN, place / KEY, names).update(now)
        except SluiceError:
            shutil.rmtree(place, ignore_errors=True)
            raise
    except (AcmeError, EdgeCertificateError):
        # The server would send the same certificate again.
        store.drop_order()
        raise
    store.activate(place)


def main() -> int:
    """Read the job, run it, write the result."""
    # The limit must also hold if the parent process was killed.
    signal.alarm(ATTEMPT_SECONDS)
    job = msgspec.json.decode(sys.stdin.buffer.read(MAX_JOB_BYTES), type=Job)
    try:
        renew(Home.at(Path(job.home)), job.config, job.names)
        result = Result()
    except (SluiceError, OSError) as error:
        result = Result(problem=str(error))
    sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
    return 1 if result.problem else 0


if __name__ == "__main__":
    sys.exit(main())
