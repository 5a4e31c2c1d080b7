"""Requests to the online authority: enrolment, renewal, revocation (all blocking), and trust."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator, Sequence
from pathlib import Path

from cryptography import x509

from sluice.core import CertificateRejected, PkiError, check_space, locked_file, utc_now
from sluice.pki.authorities import to_pem, trust_domain_of
from sluice.pki.ca import (
    ATTEST_PATH,
    AUTHORITY_PATH,
    EDGE_RENEW_PATH,
    ENROL_PATH,
    MAX_NAME_CHARACTERS,
    MAX_TRUST_ANSWER_BYTES,
    RENEW_PATH,
    REVOKE_PATH,
    TRUST_PATH,
    TRUST_WAIT_SECONDS,
    Address,
    AttestRequest,
    AuthorityAnswer,
    EdgeRenewRequest,
    EnrolRequest,
    RenewRequest,
    RevokedAnswer,
    RevokeRequest,
    TrustAnswer,
    TrustRequest,
    prove_possession,
)
from sluice.pki.channels import Channel, server_policy
from sluice.pki.enrolment.exchange import ExchangeLimits, call, exchange, mutual_context
from sluice.pki.errors import CaUnavailable
from sluice.pki.identities import KEY_FILE, JoinToken, read_identity, read_peers
from sluice.pki.issuing import SignedChain, install_chain, names_of
from sluice.pki.revocation import Reason
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls import TlsIdentity, enrolment_client_context, unverified_client_context
from sluice.pki.x509 import (
    DAMAGED,
    DEFAULT_ALGORITHM,
    Purpose,
    describe_key,
    edge_algorithm,
    fingerprint,
    new_csr,
    purposes_of,
    verify_chain,
)

IDENTITY_BYTES = 64 << 10
"""Disk space for a new generation of an identity, in bytes; without it none is requested."""

BOTH = (Purpose.CLIENT, Purpose.SERVER)
"""The purposes of a process certificate."""
SERVER_ONLY = (Purpose.SERVER,)
"""The purposes of a public certificate."""


class PendingKeys:
    """Keys whose requests may have been answered although the answer was lost; for one thread at a time.

    Enrolling again with the same key and join token returns the certificate that was issued already. Keys are only in
    the memory of the process that made them.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, SpiffeId, tuple[str, ...], tuple[str, ...], str], tuple[bytes, bytes]] = {}

    def request(
        self, token: JoinToken, spiffe_id: SpiffeId, dns: Sequence[str], ips: Sequence[str], algorithm: str
    ) -> tuple[bytes, bytes]:
        """Key and signing request as PEM: those of an earlier attempt for the same, or new ones."""
        asked = (token.id, spiffe_id, tuple(dns), tuple(ips), algorithm)
        if asked not in self._kept:
            self._kept = {asked: new_csr(spiffe_id, dns=dns, ips=ips, algorithm=algorithm)}
        return self._kept[asked]

    def clear(self) -> None:
        """Forget the keys: there was an answer."""
        self._kept = {}

    def __repr__(self) -> str:
        return "PendingKeys(...)"


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
    pending: PendingKeys | None = None,
) -> SpiffeId:
    """Make a key here, have it certified for a join token, and write the identity to ``directory``.

    The token's fingerprint says which authority to trust; the token itself is sent only to a server whose certificate
    this authority signed, for role ``ca``.

    Args:
        address: of the enrolment port.
        dns: exactly the names that the token was made for; likewise ``ips``.
        edge_server: the token is for a gateway's public certificate.
        pending: the keys of earlier attempts, so that one whose answer was lost did not use the token up.

    Raises:
        EnrolmentRefused: the token is invalid, was used, has expired, or is for another name.
        CertificateRejected: the names are not the token's.
        CaUnavailable: no answer, or the server's certificate does not match the token.
    """
    token = JoinToken.parse(token_text)
    # 1. The anchors come over an unverified connection; their fingerprint proves them.
    answer = call(address, unverified_client_context(), AUTHORITY_PATH, None, AuthorityAnswer)
    anchor = _matching(answer.ca_pem, token)
    # 2. The anchors verify the server, and only then the token is sent.
    trust_domain = trust_domain_of(anchor)
    context = enrolment_client_context(to_pem(anchor), server_policy(Channel.ENROLMENT, trust_domain))
    spiffe_id = SpiffeId.process(trust_domain, role, name)
    if edge_server:
        algorithm = edge_algorithm(algorithm)
    pending = PendingKeys() if pending is None else pending
    key_pem, csr_pem = pending.request(token, spiffe_id, dns, ips, algorithm)
    body = EnrolRequest(token=token.text, csr_pem=csr_pem.decode())
    purposes = SERVER_ONLY if edge_server else BOTH
    signed = checked_chain(call(address, context, ENROL_PATH, body, SignedChain), spiffe_id, purposes)
    install_chain(directory, key_pem, signed, accept=accept, now=utc_now())
    pending.clear()
    return spiffe_id


def enrol_attested(  # noqa: PLR0917  in the order of the wire: where, whom to trust, who asks
    directory: Path,
    address: Address,
    anchors_pem: bytes,
    attestor: str,
    evidence: str,
    spiffe_id: SpiffeId,
    *,
    dns: Sequence[str] = (),
    ips: Sequence[str] = (),
    algorithm: str = DEFAULT_ALGORITHM,
    accept: Sequence[str] = (),
    edge_server: bool = False,
) -> None:
    """As :func:`enrol`, for ``evidence`` that the authority's attestor of this name verifies.

    Args:
        anchors_pem: the trust anchors; the evidence is sent only to a server whose certificate one of them signed, for
            role ``ca``.

    Raises:
        EnrolmentRefused: the evidence proves nothing, or its holder may not have this identity.
        CertificateRejected: the names are not those that come with the identity.
        CaUnavailable: no answer, the server is not trusted, or it cannot verify anybody now.
    """
    try:
        anchors = x509.load_pem_x509_certificates(anchors_pem)
    except DAMAGED as error:
        raise CaUnavailable("the trust anchors for enrolment are damaged") from error
    trust_domain = spiffe_id.trust_domain
    if not anchors or any(trust_domain_of(each) != trust_domain for each in anchors):
        raise CaUnavailable(f"the trust anchors for enrolment are not of {trust_domain}", "see pki.trust_domain")
    context = enrolment_client_context(to_pem(*anchors), server_policy(Channel.ENROLMENT, trust_domain))
    if edge_server:
        algorithm = edge_algorithm(algorithm)
    key_pem, csr_pem = new_csr(spiffe_id, dns=dns, ips=ips, algorithm=algorithm)
    body = AttestRequest(
        attestor=attestor,
        evidence=evidence,
        identity=str(spiffe_id),
        csr_pem=csr_pem.decode(),
        edge_server=edge_server,
    )
    purposes = SERVER_ONLY if edge_server else BOTH
    signed = checked_chain(call(address, context, ATTEST_PATH, body, SignedChain), spiffe_id, purposes)
    install_chain(directory, key_pem, signed, accept=accept, now=utc_now())


def renew(directory: Path, address: Address, *, algorithm: str = "") -> dt.datetime:
    """Replace the identity in ``directory`` by a new key and certificate with the same names; returns its end.

    Args:
        directory: of the identity.
        address: of the mutual TLS port; the current certificate, which must be valid, authenticates the request.
        algorithm: of the new key; by default as the present one.
    """
    with _renewing(directory):
        identity = TlsIdentity(directory)
        leaf = identity.material.leaf
        key_pem, csr_pem = _successor(leaf, algorithm or describe_key(leaf.public_key()))
        body = RenewRequest(csr_pem=csr_pem.decode())
        answer = call(address, mutual_context(identity), RENEW_PATH, body, SignedChain)
        return _install(directory, key_pem, checked_chain(answer, identity.spiffe_id, purposes_of(leaf)))


def renew_edge(directory: Path, gateway: TlsIdentity, address: Address, *, algorithm: str = "") -> dt.datetime:
    """Renew the public certificate in ``directory`` like :func:`renew`, as the internal identity ``gateway``."""
    with _renewing(directory):
        material, _ = read_identity(directory)
        algorithm = edge_algorithm(algorithm or describe_key(material.leaf.public_key()))
        key_pem, csr_pem = _successor(material.leaf, algorithm)
        body = EdgeRenewRequest(
            chain_pem=material.chain_pem.decode(),
            csr_pem=csr_pem.decode(),
            proof=prove_possession(material.key, csr_pem),
        )
        answer = call(address, mutual_context(gateway), EDGE_RENEW_PATH, body, SignedChain)
        return _install(directory, key_pem, checked_chain(answer, material.spiffe_id, SERVER_ONLY))


@contextlib.contextmanager
def _renewing(directory: Path) -> Iterator[None]:
    """A new certificate supersedes the current one: renew one at a time, and only with space to store the answer."""
    with locked_file(directory / KEY_FILE):
        check_space(directory, IDENTITY_BYTES)
        yield


def _successor(leaf: x509.Certificate, algorithm: str) -> tuple[bytes, bytes]:
    """A new key, and a request for the names of ``leaf``."""
    names = names_of(leaf)
    return new_csr(names.spiffe_id, dns=names.dns, ips=names.ips, algorithm=algorithm)


def _install(directory: Path, key_pem: bytes, signed: SignedChain) -> dt.datetime:
    install_chain(directory, key_pem, signed, accept=read_peers(directory), now=utc_now())
    return read_identity(directory)[0].leaf.not_valid_after_utc


_NOTHING_KNOWN = TrustRequest()
_TRUST_LIMITS = ExchangeLimits(
    read=TRUST_WAIT_SECONDS + 10.0, total=TRUST_WAIT_SECONDS + 40.0, answer_bytes=MAX_TRUST_ANSWER_BYTES
)
"""The authority waits for a change before it answers."""


async def fetch_trust(identity: TlsIdentity, address: Address, asked: TrustRequest = _NOTHING_KNOWN) -> TrustAnswer:
    """The trust, as soon as its version is not the known one; or, after a while, that nothing changed.

    Args:
        identity: of the requester; any process that the online authority renews.
        address: of the mutual TLS port.
        asked: the known version, and the trust in use.

    Raises:
        CaUnavailable: no answer, too large an answer, or not from the online authority.
        RateLimited: too many ask; come back later.
    """
    return await exchange(address, mutual_context(identity), TRUST_PATH, asked, TrustAnswer, _TRUST_LIMITS)


def revoke(identity: TlsIdentity, address: Address, serial: str, reason: Reason, by: str) -> RevokedAnswer:
    """Have the certificate with this number (hexadecimal) revoked, as the auth service ``identity`` for ``by``.

    Raises:
        CertificateUnknown: the authority knows no such certificate.
        PeerRefused: ``identity`` is not of an auth service.
        CaUnavailable: no answer; it may have been revoked or not.
    """
    body = RevokeRequest(serial=serial, reason=reason, by=by[:MAX_NAME_CHARACTERS])
    return call(address, mutual_context(identity), REVOKE_PATH, body, RevokedAnswer)


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


def checked_chain(answer: SignedChain, expected: SpiffeId, purposes: tuple[Purpose, ...]) -> SignedChain:
    """Check that the answer is a chain for exactly this identity and use; nothing else is written."""
    try:
        leaf, *rest = x509.load_pem_x509_certificates(answer.chain_pem.encode())
        anchors = x509.load_pem_x509_certificates(answer.ca_pem.encode())
        verify_chain(leaf, rest, anchors, now=utc_now(), expected=expected)
        if purposes_of(leaf) != purposes:
            raise CertificateRejected(f"the certificate is not for use as {' and '.join(purposes)}")
    except (PkiError, *DAMAGED) as error:
        raise CaUnavailable(f"the answer of the authority does not match the request: {error}") from error
    return answer
