"""Identities are renewed well before they end, and not all at the same time."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
from pathlib import Path

import pytest

from sluice.core import write_public
from sluice.core.errors import StoreError
from sluice.pki.authorities.signing import create_intermediate, create_root, to_pem
from sluice.pki.identities.directory import read_certificates
from sluice.pki.spiffe_id import SpiffeId
from sluice.pki.x509.profiles import AuthorityKind
from sluice.runtime.node import identity_renewal
from sluice.runtime.node.identity_renewal import (
    SHORTEST_RENEWAL_SECONDS,
    RenewalWatch,
    keep_renewed,
    seconds_until_renewal,
)
from tests.hostile import TRUST_DOMAIN, TestPki


def test_renewal_is_due_before_half_of_the_lifetime_at_differing_times(tmp_path: Path) -> None:
    directory = TestPki(tmp_path).directory(SpiffeId.driver(TRUST_DOMAIN, "a" * 32), lifetime=dt.timedelta(minutes=60))
    now = dt.datetime.now(dt.UTC)
    delays = [seconds_until_renewal(directory, now=now) for _ in range(50)]
    assert min(delays) >= 0.39 * 3600
    assert max(delays) <= 0.5 * 3600
    assert len(set(delays)) > 1
    assert seconds_until_renewal(directory, now=now + dt.timedelta(hours=2)) == SHORTEST_RENEWAL_SECONDS


def test_a_directory_without_a_certificate_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        seconds_until_renewal(tmp_path)
    (tmp_path / "chain.pem").write_text("nonsense")
    with pytest.raises(StoreError):
        seconds_until_renewal(tmp_path)


def test_an_identity_is_due_for_renewal_at_its_time_and_not_before(tmp_path: Path) -> None:
    directory = TestPki(tmp_path).directory(SpiffeId.driver(TRUST_DOMAIN, "a" * 32), lifetime=dt.timedelta(minutes=60))
    now = 1000.0
    watch = RenewalWatch(directory, monotonic=lambda: now)
    assert not watch.is_due()
    now += 0.38 * 3600
    assert not watch.is_due()
    now += 0.13 * 3600
    assert watch.is_due()


def test_an_identity_is_due_for_renewal_at_once_when_another_authority_comes_first(tmp_path: Path) -> None:
    pki = TestPki(tmp_path)
    directory = pki.directory(SpiffeId.driver(TRUST_DOMAIN, "a" * 32))
    watch = RenewalWatch(directory)
    now = dt.datetime.now(dt.UTC)
    other = create_intermediate(AuthorityKind.INTERNAL, create_root(pki.config, now), pki.config, now)
    (own,) = read_certificates(directory / "ca.pem")
    (directory / "ca.pem").write_bytes(to_pem(own, other.certificate))
    assert not watch.is_due(), "another one is trusted, but it does not sign yet"
    write_public(directory / "ca.pem", to_pem(other.certificate, own))  # another inode: the clock may stand still
    assert watch.is_due()
    (directory / "chain.pem").write_text("half of a set that is being written")
    assert not watch.is_due(), "whoever is renewing it is at it"


def test_a_fifo_in_place_of_a_certificate_does_not_block(tmp_path: Path) -> None:
    directory = TestPki(tmp_path).directory(SpiffeId.driver(TRUST_DOMAIN, "a" * 32))
    watch = RenewalWatch(directory)
    assert not watch.is_due()
    for name in ("chain.pem", "ca.pem", "key.pem"):
        (directory / name).unlink()
        os.mkfifo(directory / name, 0o600)
    assert not watch.is_due()
    with pytest.raises(StoreError, match="not a file"):
        RenewalWatch(directory)


@pytest.mark.parametrize("readable", [True, False])
async def test_renewal_of_an_identity_is_retried_after_any_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readable: bool
) -> None:
    """A renewal task that had ended with an error once let the identity expire."""
    for name in ("LOOK_SECONDS", "RENEWAL_RETRY_SECONDS"):
        monkeypatch.setattr(identity_renewal, name, 0.0)
    spiffe_id = SpiffeId.driver(TRUST_DOMAIN, "a" * 32)
    directory = TestPki(tmp_path).directory(spiffe_id) if readable else tmp_path / "absent"
    if readable:
        monkeypatch.setattr(identity_renewal, "seconds_until_renewal", lambda _: 0.0)
    enough = asyncio.Event()
    outcomes: list[Exception | None] = [StoreError("the disk is full"), RuntimeError("a bug"), None, None]

    async def renew() -> None:
        outcome = outcomes.pop(0)
        if not outcomes:
            enough.set()
            await asyncio.Event().wait()
        if outcome is not None:
            raise outcome

    task = asyncio.create_task(keep_renewed(directory, renew, "driver of job 1"))
    await asyncio.wait_for(enough.wait(), 30)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
