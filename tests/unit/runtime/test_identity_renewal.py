"""Identities are renewed well before they end, and not all at the same time."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from pki.errors import StoreError
from pki.identity import SpiffeId
from runtime.identity_renewal import SHORTEST_RENEWAL_SECONDS, seconds_until_renewal
from tests.hostile import TRUST_DOMAIN, TestPki


def test_renewal_is_due_before_half_of_the_life_is_over_and_differs(tmp_path: Path) -> None:
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
