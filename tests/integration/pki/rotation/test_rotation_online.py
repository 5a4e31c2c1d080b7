"""A rotation while the online authority runs.

The authority renews itself and signs with the new key, and its ledger counts.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from sluice.cli.cluster.identities import issue_due, prepare_authorities, renew_superseded
from sluice.cli.config import Configuration, load
from sluice.core.clock import utc_now
from sluice.core.home import Home
from sluice.pki.authorities.bundle_files import bundle_file
from sluice.pki.authorities.rotation_phases import (
    Laggard,
    PeersLag,
    Phase,
    Source,
)
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.authorities.trusted_authorities import TrustStore
from sluice.pki.ca.address import read_ca
from sluice.pki.ca.config import CaConfig
from sluice.pki.ca.process import online_ca
from sluice.pki.ca.token_store import TokenStore
from sluice.pki.enrolment.client import enrol, renew
from sluice.pki.errors import CaUnavailable
from sluice.pki.identities.directory import CA_FILE, CHAIN_FILE, read_certificates
from sluice.pki.identities.join_tokens import mint
from sluice.pki.ledger.file import ledger_path, read_ledger
from sluice.pki.rotation.rotator import Rotator
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.key_identifiers import issuer_id, key_id
from sluice.pki.x509.profiles import AuthorityKind

CONFIGURATION: Configuration = load(None, environment={}, flags={"taskmanager.count": 1})
INTERNAL = AuthorityKind.INTERNAL
ELSEWHERE = SpiffeId.process("sluice.local", Role.TASKMANAGER, "elsewhere")


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Home]:
    """A home whose online authority runs, with the identities that ``sluice up`` makes."""
    located = Home.at(tmp_path / "home")
    prepare_authorities(located, CONFIGURATION)
    async with online_ca(located, CONFIGURATION.pki, CaConfig()):
        await asyncio.to_thread(issue_due, located, CONFIGURATION)
        yield located


def rotator(home: Home) -> Rotator:
    return Rotator(home, CONFIGURATION.pki, renew=lambda: renew_superseded(home, CONFIGURATION))


def patience() -> Callable[[Sequence[Laggard]], bool]:
    rounds, pause = iter(range(600)), threading.Event()

    def look_again(_: Sequence[Laggard]) -> bool:
        pause.wait(0.1)
        return next(rounds, None) is not None

    return look_again


def token(home: Home) -> str:
    record, text = mint(ELSEWHERE, AuthorityStore(home.pki).certificate(INTERNAL), now=utc_now())
    TokenStore(home.pki).add(record, now=utc_now())
    return text


def enrol_elsewhere(home: Home, directory: Path, text: str) -> None:
    enrol(directory, read_ca(home).enrolment, text, ELSEWHERE.role, ELSEWHERE.name)


async def test_an_online_authority_renews_itself_and_every_identity_of_its_home_in_a_rotation(
    home: Home, tmp_path: Path
) -> None:
    early = token(home)
    rotating = rotator(home)
    await asyncio.to_thread(rotating.prepare, INTERNAL, patience=patience())
    await asyncio.to_thread(rotating.activate, INTERNAL, patience=patience())
    await asyncio.to_thread(rotating.finish, INTERNAL, patience=patience(), last_patience=patience())
    (new,) = TrustStore(home.pki).anchors(INTERNAL)
    for name in ("ca/ca-1", "jobmanager/jobmanager-1", "taskmanager/taskmanager-1"):
        directory = home.pki / "identities" / name
        assert issuer_id(read_certificates(directory / CHAIN_FILE)[0]) == key_id(new)
        assert read_certificates(directory / CA_FILE) == [new]
    kinds = [record.kind for record in read_ledger(ledger_path(home.pki))]
    assert kinds.count("renewal") == 5, "by their certificates of the old authority, while that was trusted"
    assert kinds.count("self") == 2
    assert await asyncio.to_thread(issue_due, home, CONFIGURATION) == []
    # A join token names the authority that signed when it was made: one of before does not admit any more.
    with pytest.raises(CaUnavailable):
        await asyncio.to_thread(enrol_elsewhere, home, tmp_path / "far", early)
    await asyncio.to_thread(enrol_elsewhere, home, tmp_path / "far", token(home))


async def test_a_rotation_waits_for_a_certificate_outside_the_home_until_it_is_renewed(
    home: Home, tmp_path: Path
) -> None:
    far = tmp_path / "far"
    await asyncio.to_thread(enrol_elsewhere, home, far, token(home))
    rotating = rotator(home)
    await asyncio.to_thread(rotating.prepare, INTERNAL, patience=patience())
    await asyncio.to_thread(rotating.activate, INTERNAL, patience=patience())

    def only_far_is_left(late: Sequence[Laggard]) -> bool:
        return {each.holder.source for each in late} != {Source.LEDGER} and patience()(late)

    with pytest.raises(PeersLag, match="elsewhere") as refused:
        await asyncio.to_thread(rotating.finish, INTERNAL, patience=only_far_is_left)
    assert [each.holder.source for each in refused.value.laggards] == [Source.LEDGER]
    tomorrow = Rotator(home, CONFIGURATION.pki, clock=lambda: utc_now() + dt.timedelta(hours=25))
    assert not [each for each in tomorrow.waiting_for() if each.holder.source is Source.LEDGER], (
        "it has expired by then"
    )
    # Its operator brings the bundle there, and it renews: by its old certificate, which is still trusted.
    (far / CA_FILE).write_bytes(bundle_file(home.pki, INTERNAL).read_bytes())
    await asyncio.to_thread(renew, far, read_ca(home).mutual)
    assert len(read_certificates(far / CA_FILE)) == 2
    await asyncio.to_thread(rotating.finish, INTERNAL, patience=patience(), last_patience=patience())
    assert rotating.state()[1] is Phase.STEADY
