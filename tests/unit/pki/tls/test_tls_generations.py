"""A TLS context uses one generation of an identity, even if a renewal happens while it is made."""

from __future__ import annotations

import datetime as dt
import errno
import ssl
from collections.abc import Callable, Iterator, Set as AbstractSet
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from sluice.core.errors import StoreError
from sluice.pki.channels import PeerPolicy
from sluice.pki.config import PkiConfig
from sluice.pki.identities.directory import read_certificates
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.revocation.crl import Reason
from sluice.pki.revocation.crl_files import install_crls
from sluice.pki.revocation.revoked_peers import RevokedPeers
from sluice.pki.revocation.store import RevocationTarget
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from sluice.pki.x509.profiles import AuthorityKind

CONFIG = PkiConfig(trust_domain="td")
WORKER = SpiffeId.process("td", Role.TASKMANAGER, "tm-1")
ROLES = frozenset({Role.JOBMANAGER})


class RolesReadDuringARenewal(AbstractSet[Role]):
    """Roles of a policy; the first iteration renews the identity while a context is being made.

    Another thread does the same to a thread that has read the identity but not yet stored its context.
    """

    def __init__(self, renew: Callable[[], object]) -> None:
        self._renew = [renew]

    def __contains__(self, role: object) -> bool:
        return role in ROLES

    def __len__(self) -> int:
        return len(ROLES)

    def __iter__(self) -> Iterator[Role]:
        while self._renew:
            self._renew.pop()()
        return iter(ROLES)


def issue(directory: Path, authorities: Path) -> LocalIssuer:
    issuer = LocalIssuer(authorities, CONFIG)
    issuer.ensure_authorities()
    issuer.issue_to(directory, WORKER)
    return issuer


def anchors(context: ssl.SSLContext) -> list[bytes]:
    return context.get_ca_certs(binary_form=True)


@pytest.mark.parametrize("serving", [True, False], ids=["server", "client"])
def test_a_tls_context_of_a_replaced_identity_generation_is_not_cached(tmp_path: Path, *, serving: bool) -> None:
    directory = tmp_path / "tm-1"
    issue(directory, tmp_path / "before")
    identity = TlsIdentity(directory)

    def context_for(policy: PeerPolicy) -> ssl.SSLContext:
        return identity.server_context(policy) if serving else identity.client_context(policy)

    def renew_and_look() -> None:
        issue(directory, tmp_path / "after")
        context_for(PeerPolicy("td", ROLES, name="somebody-else"))

    racing = PeerPolicy("td", RolesReadDuringARenewal(renew_and_look))
    before = anchors(context_for(racing))
    trusted = [anchor.public_bytes(Encoding.DER) for anchor in identity.material.anchors]
    assert before != trusted, "the racing context was made of the generation that was replaced meanwhile"
    assert anchors(context_for(PeerPolicy("td", ROLES))) == trusted
    assert context_for(PeerPolicy("td", ROLES)) is context_for(racing), "the new context is kept"


def test_a_renewed_identity_that_could_not_be_read_for_a_moment_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lack of descriptors is the system's fault; a damaged file is not read again until it changes."""
    directory = tmp_path / "tm-1"
    issuer = issue(directory, tmp_path / "authorities")
    identity = TlsIdentity(directory)
    before = identity.material
    issuer.issue_to(directory, WORKER)

    def fail(_: Path) -> None:
        raise StoreError("cannot read key.pem") from OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("sluice.pki.tls.contexts.read_identity", fail)
        assert identity.material is before
    assert identity.material is not before


def test_a_revocation_that_could_not_be_read_for_a_moment_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "tm-1"
    issuer = issue(directory, tmp_path / "authorities")
    issuer.revocations.revoke(AuthorityKind.INTERNAL, [RevocationTarget(7)], Reason.SUPERSEDED)
    issuer.issue_to(directory, WORKER)
    now = [0.0]
    anchors = read_certificates(directory / "ca.pem")
    peers = RevokedPeers(directory, lambda: anchors, clock=lambda: dt.datetime.now(dt.UTC), monotonic=lambda: now[0])
    version = peers.version
    issuer.revocations.revoke(AuthorityKind.INTERNAL, [RevocationTarget(8)], Reason.SUPERSEDED)
    current = issuer.revocations.current(AuthorityKind.INTERNAL)
    assert current is not None
    install_crls(directory, current.pem, dt.datetime.now(dt.UTC))

    def fail(*_: object) -> bytes:
        raise StoreError("cannot read crl.pem") from OSError(errno.ENFILE, "Too many open files in system")

    with monkeypatch.context() as patch:
        patch.setattr("sluice.pki.revocation.revoked_peers.read_bounded", fail)
        now[0] += 3600
        assert peers.look() == version
    now[0] += 3600
    assert peers.look() == version + 1
