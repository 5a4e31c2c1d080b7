"""ACME orders that are killed or run out of disk space.

No key and no order is lost, and the old certificate stays in use.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import msgspec
import pytest

from sluice.core import StoreError
from sluice.gateway.acme.store import AcmeStore
from sluice.gateway.acme.worker import Job, renew
from sluice.pki.x509 import key_from_pem, same_public_key
from tests.acme.conftest import MakeSite, Site
from tests.acme.test_issue import issued, told
from tests.integration.gateway.conftest import eventually
from tests.unit.core.files.test_files import disk_full_beyond


@pytest.fixture
def slow_site(make_site: MakeSite) -> Site:
    """Provides a started site whose ACME server takes some seconds for a validation.

    The gateway's own agent has already failed to reach the server, and pauses before its next attempt.
    """
    site = make_site(pebble={"environment": {"PEBBLE_VA_NOSLEEP": "", "PEBBLE_VA_SLEEPTIME": "5"}})
    site.gateway.start()
    told(site, "gave no answer")
    site.pebble.start()
    return site


def worker(site: Site) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "sluice.gateway.acme.worker"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert process.stdin is not None
    job = Job(home=str(site.home.root), config=site.acme, names=site.config.server_names)
    process.stdin.write(msgspec.json.encode(job))
    process.stdin.close()
    return process


def test_an_order_that_was_killed_midway_is_continued_with_the_same_key(slow_site: Site) -> None:
    store, pending = AcmeStore(slow_site.home), AcmeStore(slow_site.home).directory / "pending"
    process = worker(slow_site)
    eventually(store.challenges.path.exists, "no challenge is published")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    key = (pending / "ecdsa-p256.pem").read_bytes()
    order = (pending / "order.json").read_bytes()
    state = store.state()
    assert (state.failures, state.last_error) == (2, "the attempt was interrupted")
    renew(slow_site.home, slow_site.acme, slow_site.config.server_names)
    found = issued(slow_site)
    assert same_public_key(key_from_pem(key, "the key before").public_key(), found.public_key())
    assert b"order" in order
    assert not pending.exists()
    assert not store.challenges.path.exists()


def test_an_issued_certificate_is_not_lost_when_the_disk_is_full(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site()
    site.gateway.start()
    told(site, "gave no answer")
    site.pebble.start()
    stage = AcmeStore.stage

    def full(store: AcmeStore, chain: bytes, key: object) -> object:
        with disk_full_beyond(100):
            return stage(store, chain, key)  # type: ignore[arg-type]

    monkeypatch.setattr(AcmeStore, "stage", full)
    with pytest.raises(StoreError, match="cannot write"):
        renew(site.home, site.acme, site.config.server_names)
    pending = (AcmeStore(site.home).directory / "pending" / "ecdsa-p256.pem").read_bytes()
    monkeypatch.undo()
    renew(site.home, site.acme, site.config.server_names)
    found = issued(site)
    assert same_public_key(key_from_pem(pending, "the key before").public_key(), found.public_key())


def test_a_disk_full_before_the_order_fails_without_asking_the_acme_server(make_site: MakeSite) -> None:
    site = make_site()
    site.gateway.start()
    told(site, "gave no answer")
    with disk_full_beyond(10), pytest.raises(StoreError, match="cannot write"):
        renew(site.home, site.acme, site.config.server_names)
    assert AcmeStore(site.home).state().failures == 1
