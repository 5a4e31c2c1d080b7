"""A TLS context uses one generation of an identity, even if a renewal happens while it is made."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Set as AbstractSet
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from sluice.pki.channels import PeerPolicy
from sluice.pki.config import PkiConfig
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity

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
