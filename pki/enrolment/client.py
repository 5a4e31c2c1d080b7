"""Talking to the online authority: enrolling, renewing, and job identities for a JobManager. Blocking; for threads."""

from __future__ import annotations

import contextlib
import datetime as dt
import http.client
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from cryptography import x509

from sluice.core.clock import utc_now
from sluice.core.errors import (
    CertificateRejected,
    PeerRefused,
    PkiError,
    StoreError,
)
from sluice.core.files import check_space, locked_file, read_bounded
from sluice.pki.authorities.signing import to_pem, trust_domain_of
from sluice.pki.ca.address import CaAddress
from sluice.pki.ca.policy import JOB_ROLES
from sluice.pki.ca.possession import prove_possession
from sluice.pki.ca.protocol import (
    ALPN,
    AUTHORITY_PATH,
    EDGE_RENEW_PATH,
    ENROL_PATH,
    JOB_PATH,
    MAX_ANSWER_BYTES,
    MAX_NAME_CHARACTERS,
    RENEW_PATH,
    REVOKE_PATH,
    AuthorityAnswer,
    EdgeRenewRequest,
    EnrolRequest,
    JobRequest,
    Problem,
    RenewRequest,
    RevokedAnswer,
    RevokeRequest,
)
from sluice.pki.channels import Channel, server_policy
from sluice.pki.errors import (
    CaUnavailable,
    CertificateSuperseded,
    CertificateUnknown,
    EnrolmentRefused,
    IssuanceRefused,
    LedgerError,
    RateLimited,
)
from sluice.pki.identities.directory import KEY_FILE, PEERS_FILE, read_identity
from sluice.pki.identities.due import purposes_of
from sluice.pki.identities.join_tokens import JoinToken
from sluice.pki.issuing.issuer import install_chain
from sluice.pki.issuing.leaf import SignedChain, names_of
from sluice.pki.revocation.crl import Reason
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity, enrolment_client_context, unverified_client_context
from sluice.pki.x509.csr import new_csr
from sluice.pki.x509.key_identifiers import fingerprint
from sluice.pki.x509.keys import DEFAULT_ALGORITHM, describe_key, edge_algorithm
from sluice.pki.x509.parse_errors import DAMAGED, DAMAGED_JSON
from sluice.pki.x509.profiles import Names, Purpose
from sluice.pki.x509.verification import verify_chain

TIMEOUT_SECONDS = 10.0
"""For connecting, and for each read."""
RETRY_SECONDS = 15.0
"""How long :class:`OnlineIssuer` tries while the authority is away or asks to wait: a restart takes less."""
IDENTITY_BYTES = 64 << 10
"""Space for a new generation of an identity, in bytes; without it none is asked for."""
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0

BOTH = (Purpose.CLIENT, Purpose.SERVER)
"""What a process is in handshakes."""
SERVER_ONLY = (Purpose.SERVER,)
"""What a public certificate is for."""

_ERRORS: dict[str, type[PkiError]] = {
    error.__name__: error
    for error in (
        CertificateRejected,
        CertificateSuperseded,
        CertificateUnknown,
        EnrolmentRefused,
        IssuanceRefused,
        LedgerError,
        PeerRefused,
    )
}
_Answer = TypeVar("_Answer", bound=msgspec.Struct)
Address = tuple[str, int]


def enrol(
    directory: Path,
    address: Address,
    token_text: str,
    role: Role,
    name: str,
    *,
    dns: Sequence[str] = (),
    ips: Sequence[str] = (),
    algorithm: str = DEFAULT_ALGORITHM,
    accept: Sequence[str] = (),
    edge_server: bool = False,
) -> SpiffeId:
    """Make a key here, have it certified for a join token, and write the identity to ``directory``.

    The token's fingerprint says which authority to trust; the token itself is sent only to a server whose certificate
    this authority signed, for role ``ca``.

    Args:
        address: of the enrolment port.
        dns: exactly the names that the token was made for; likewise ``ips``.
        edge_server: the token is for a gateway's public certificate.

    Raises:
        EnrolmentRefused: the token is no token, was used, has expired, or is for another name.
        CertificateRejected: the names are not the token's.
        CaUnavailable: no answer, or the server is not who the token says.
    """
    token = JoinToken.parse(token_text)
    # 1. The anchors come over a connection that proves nothing; their fingerprint proves them.
    answer = _call(address, unverified_client_context(), "GET", AUTHORITY_PATH, None, AuthorityAnswer)
    anchor = _matching(answer.ca_pem, token)
    # 2. With them the server can be verified, and only then it gets to see the token.
    trust_domain = trust_domain_of(anchor)
    context = enrolment_client_context(to_pem(anchor), server_policy(Channel.ENROLMENT, trust_domain))
    spiffe_id = SpiffeId.process(trust_domain, role, name)
    if edge_server:
        algorithm = edge_algorithm(algorithm)
    key_pem, csr_pem = new_csr(spiffe_id, dns=dns, ips=ips, algorithm=algorithm)
    body = EnrolRequest(token=token.text, csr_pem=csr_pem.decode())
    purposes = SERVER_ONLY if edge_server else BOTH
    signed = _checked(_call(address, context, "POST", ENROL_PATH, body, SignedChain), spiffe_id, purposes)
    install_chain(directory, key_pem, signed, accept=accept, now=utc_now())
    return spiffe_id


def renew(directory: Path, address: Address, *, algorithm: str = "") -> dt.datetime:
    """Replace the identity in ``directory`` by a new key and certificate with the same names; returns its end.

    Args:
        address: of the mutual TLS port; the present certificate, which must be valid, is what proves who asks.
        algorithm: of the new key; by default as the present one.
    """
    with _renewing(directory):
        return _renew(directory, address, algorithm)


@contextlib.contextmanager
def _renewing(directory: Path) -> Iterator[None]:
    """What is asked for supersedes what is there: one at a time, and nobody asks who cannot keep the answer."""
    with locked_file(directory / KEY_FILE):
        check_space(directory, IDENTITY_BYTES)
        yield


def _renew(directory: Path, address: Address, algorithm: str) -> dt.datetime:
    identity = TlsIdentity(directory)
    material = identity.material
    names = names_of(material.leaf)
    key_pem, csr_pem = new_csr(
        names.spiffe_id,
        dns=names.dns,
        ips=names.ips,
        algorithm=algorithm or describe_key(material.leaf.public_key()),
    )
    answer = _call(
        address, mutual_context(identity), "POST", RENEW_PATH, RenewRequest(csr_pem=csr_pem.decode()), SignedChain
    )
    signed = _checked(answer, identity.spiffe_id, purposes_of(material.leaf))
    peers = directory / PEERS_FILE
    accept = read_bounded(peers).decode("ascii").split() if peers.exists() else []
    install_chain(directory, key_pem, signed, accept=accept, now=utc_now())
    return read_identity(directory)[0].leaf.not_valid_after_utc


def renew_edge(directory: Path, gateway: TlsIdentity, address: Address, *, algorithm: str = "") -> dt.datetime:
    """As :func:`renew`, for the public certificate in ``directory``; the internal identity ``gateway`` asks."""
    with _renewing(directory):
        return _renew_edge(directory, gateway, address, algorithm)


def _renew_edge(directory: Path, gateway: TlsIdentity, address: Address, algorithm: str) -> dt.datetime:
    material, _ = read_identity(directory)
    names = names_of(material.leaf)
    key_pem, csr_pem = new_csr(
        names.spiffe_id,
        dns=names.dns,
        ips=names.ips,
        algorithm=edge_algorithm(algorithm or describe_key(material.leaf.public_key())),
    )
    body = EdgeRenewRequest(
        chain_pem=material.chain_pem.decode(), csr_pem=csr_pem.decode(), proof=prove_possession(material.key, csr_pem)
    )
    answer = _call(address, mutual_context(gateway), "POST", EDGE_RENEW_PATH, body, SignedChain)
    install_chain(directory, key_pem, _checked(answer, names.spiffe_id, SERVER_ONLY), now=utc_now())
    return read_identity(directory)[0].leaf.not_valid_after_utc


def revoke(identity: TlsIdentity, address: Address, serial: str, reason: Reason, by: str) -> RevokedAnswer:
    """Have the certificate with this number (hexadecimal) revoked, as the auth service ``identity`` for ``by``.

    Raises:
        CertificateUnknown: the authority knows no such certificate.
        PeerRefused: ``identity`` is not of an auth service.
        CaUnavailable: no answer; it may have been revoked or not.
    """
    body = RevokeRequest(serial=serial, reason=reason, by=by[:MAX_NAME_CHARACTERS])
    return _call(address, mutual_context(identity), "POST", REVOKE_PATH, body, RevokedAnswer)


class OnlineIssuer:
    """A :class:`sluice.pki.issuing.issuer.Issuer` for a JobManager: identities of jobs, signed by the online authority.

    Args:
        identity: of the JobManager.
        locate: where the authority is now; asked before each attempt, since it may come back elsewhere.
        algorithm: of the keys made here.
        retry_seconds: how long to go on trying while the authority cannot be reached or asks to wait.
    """

    def __init__(
        self,
        identity: TlsIdentity,
        locate: Callable[[], CaAddress],
        *,
        algorithm: str = DEFAULT_ALGORITHM,
        retry_seconds: float = RETRY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._identity = identity
        self._locate = locate
        self._algorithm = algorithm
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._sleep = sleep

    def issue_to(
        self,
        directory: Path,
        spiffe_id: SpiffeId,
        *,
        dns: Sequence[str] = (),
        ips: Sequence[str] = (),
        lifetime: dt.timedelta | None = None,
        accept: Sequence[str] = (),
    ) -> None:
        """See :meth:`sluice.pki.issuing.issuer.Issuer.issue_to`; the key is made here and stays here."""
        key_pem, csr_pem = new_csr(spiffe_id, dns=dns, ips=ips, algorithm=self._algorithm)
        signed = self.sign_csr(csr_pem, spiffe_id, dns=dns, ips=ips, lifetime=lifetime)
        install_chain(directory, key_pem, signed, accept=accept, now=utc_now())

    def sign_csr(
        self,
        csr_pem: bytes,
        spiffe_id: SpiffeId,
        *,
        dns: Sequence[str] = (),
        ips: Sequence[str] = (),
        lifetime: dt.timedelta | None = None,
    ) -> SignedChain:
        """See :meth:`sluice.pki.issuing.issuer.Issuer.sign_csr`.

        Raises:
            IssuanceRefused: not an identity of a job, or longer than its profile.
            CertificateRejected: the request does not ask for just this identity.
            CaUnavailable: the authority stayed away.
        """
        if spiffe_id.role not in JOB_ROLES or Names.checked(spiffe_id, dns, ips) != Names.checked(spiffe_id, (), ()):
            raise IssuanceRefused(
                f"{spiffe_id} with these names is not issued online", "identities of jobs have no host names"
            )
        seconds = 0.0 if lifetime is None else lifetime.total_seconds()
        body = JobRequest(
            spiffe_id=str(spiffe_id), csr_pem=csr_pem.decode("ascii", "replace"), lifetime_seconds=seconds
        )
        return _checked(self._patiently(body), spiffe_id, BOTH)

    def _patiently(self, body: JobRequest) -> SignedChain:
        deadline = self._clock() + self._retry_seconds
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                address = self._locate().mutual
                return _call(address, mutual_context(self._identity), "POST", JOB_PATH, body, SignedChain)
            except (CaUnavailable, RateLimited) as error:
                wait = max(pause, error.retry_after) if isinstance(error, RateLimited) else pause
                if self._clock() + wait > deadline:
                    raise
            self._sleep(wait)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def mutual_context(identity: TlsIdentity) -> ssl.SSLContext:
    """For dialing the online authority's mutual TLS port as ``identity``."""
    return identity.client_context(server_policy(Channel.CA, identity.spiffe_id.trust_domain), alpn=ALPN)


def _matching(ca_pem: str, token: JoinToken) -> x509.Certificate:
    try:
        anchors = x509.load_pem_x509_certificates(ca_pem.encode())
    except DAMAGED as error:
        raise CaUnavailable("the server's trust anchors are damaged") from error
    for anchor in anchors:
        if fingerprint(anchor) == token.fingerprint:
            return anchor
    raise CaUnavailable(
        "the server is not of the authority that the join token was made for",
        "check the address; when the authority was replaced meanwhile, make a new token",
    )


def _checked(answer: SignedChain, expected: SpiffeId, purposes: tuple[Purpose, ...]) -> SignedChain:
    """What came back must be a chain for just this identity and use: nothing else is written anywhere."""
    try:
        leaf, *rest = x509.load_pem_x509_certificates(answer.chain_pem.encode())
        anchors = x509.load_pem_x509_certificates(answer.ca_pem.encode())
        verify_chain(leaf, rest, anchors, now=utc_now(), expected=expected)
        if purposes_of(leaf) != purposes:
            raise CertificateRejected(f"the certificate is not for use as {' and '.join(purposes)}")
    except (PkiError, *DAMAGED) as error:
        raise CaUnavailable(f"the authority answered with something else than was asked for: {error}") from error
    return answer


def _call(  # noqa: PLR0917  the order of the wire: where, how, what, and what is expected back
    address: Address,
    context: ssl.SSLContext,
    method: str,
    path: str,
    body: msgspec.Struct | None,
    answer: type[_Answer],
) -> _Answer:
    host, port = address
    connection = http.client.HTTPSConnection(host, port, context=context, timeout=TIMEOUT_SECONDS)
    try:
        connection.request(
            method,
            path,
            body=None if body is None else msgspec.json.encode(body),
            headers={"content-type": "application/json", "connection": "close"},
        )
        response = connection.getresponse()
        data = response.read(MAX_ANSWER_BYTES + 1)
    except (OSError, http.client.HTTPException) as error:
        raise CaUnavailable(
            f"no answer from the CA at {host}:{port}: {error or type(error).__name__}", "is `sluice run ca` running?"
        ) from error
    finally:
        connection.close()
    if len(data) > MAX_ANSWER_BYTES:
        raise CaUnavailable(f"the answer of the CA is larger than {MAX_ANSWER_BYTES} bytes")
    try:
        if response.status in {200, 201}:
            return msgspec.json.decode(data, type=answer)
        problem = msgspec.json.decode(data, type=Problem)
    except DAMAGED_JSON as error:
        raise CaUnavailable(f"what answers at {host}:{port} is no CA (status {response.status})") from error
    raise problem_error(problem)


def problem_error(problem: Problem) -> PkiError:
    """The error that the online authority answered with, as it raised it."""
    if problem.status == 429:
        return RateLimited(problem.detail, max(0.0, min(problem.retry_after, 3600.0)))
    kind = _ERRORS.get(problem.title)
    if kind is not None:
        return kind(problem.detail, problem.remedy)
    return CaUnavailable(f"the CA answered with {problem.title} (status {problem.status}): {problem.detail}")


def parse_ca(text: str) -> CaAddress:
    """``host:port[,enrolment port]``, the latter by default the next one; raises :class:`StoreError`."""
    whole, _, enrolment = text.partition(",")
    host, port = parse_address(whole)
    if not enrolment:
        return CaAddress(mutual=(host, port), enrolment=(host, min(port + 1, 65535)))
    return CaAddress(mutual=(host, port), enrolment=parse_address(f"{_bracketed(host)}:{enrolment.strip()}"))


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def parse_address(text: str) -> Address:
    """``host:port``, ``[v6]:port``, or the same after ``https://``; raises :class:`StoreError`."""
    host, _, port = text.removeprefix("https://").rstrip("/").rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    if (
        not bare
        or (":" in bare) != bracketed
        or not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 1 << 16)
    ):
        raise StoreError(
            f"{text[:200]!r} is not an address", "use host:port, as in ca.example.org:8443, or [v6-address]:port"
        )
    return bare, int(port)
