"""Join tokens for processes that are known beforehand."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from sluice.cli.compose.invitations import Invitation, invite, joined_already
from sluice.cli.errors import UsageError
from sluice.core.clock import utc_now
from sluice.core.errors import CertificateRejected, PkiError
from sluice.pki.ca.token_store import TokenStore
from sluice.pki.identities.join_tokens import JoinToken
from tests.hostile import TRUST_DOMAIN, TestPki


def test_an_invitation_is_read_with_its_names_and_addresses() -> None:
    invitation = Invitation.parse("gateway/edge=localhost,127.0.0.1,cluster.example.org", TRUST_DOMAIN)
    assert str(invitation.spiffe_id) == f"spiffe://{TRUST_DOMAIN}/gateway/edge"
    assert invitation.dns == ("localhost", "cluster.example.org")
    assert invitation.ips == ("127.0.0.1",)
    assert invitation.public
    assert not Invitation.parse("gateway/envoy", TRUST_DOMAIN).public


@pytest.mark.parametrize("text", ["", "taskmanager", "taskmanager/", "a/b/c", "nobody/x", "taskmanager/x=", "../../x"])
def test_a_malformed_invitation_is_refused(text: str) -> None:
    with pytest.raises((UsageError, PkiError)):
        Invitation.parse(text, TRUST_DOMAIN)


def test_each_invitation_gets_its_own_token_that_only_its_owner_can_read(tmp_path: Path) -> None:
    pki = TestPki(tmp_path)
    wanted = [Invitation.parse(f"taskmanager/tm-{n}=tm-{n}", TRUST_DOMAIN) for n in (1, 2)]
    for each in wanted:
        (tmp_path / "join" / each.spiffe_id.name).mkdir(parents=True)
    paths = invite(pki.home, wanted, tmp_path / "join", now=utc_now())
    tokens = [JoinToken.parse(path.read_text().strip()) for path in paths]
    assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o600, 0o600]
    records = [TokenStore(pki.home.pki).find(token) for token in tokens]
    assert [record.identity for record in records if record] == [str(each.spiffe_id) for each in wanted]
    assert [record.dns for record in records if record] == [("tm-1",), ("tm-2",)]
    assert joined_already(pki.home) == frozenset()


def test_an_invitation_of_an_authority_or_without_a_directory_is_refused(tmp_path: Path) -> None:
    pki = TestPki(tmp_path)
    (tmp_path / "ca-2").mkdir()
    with pytest.raises(CertificateRejected):
        invite(pki.home, [Invitation.parse("ca/ca-2", TRUST_DOMAIN)], tmp_path, now=utc_now())
    with pytest.raises(UsageError, match="no directory"):
        invite(pki.home, [Invitation.parse("auth/auth-1", TRUST_DOMAIN)], tmp_path, now=utc_now())
