"""The internal authority is rotated while a job runs.

The driver and the executors get new identities, and the job finishes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from sluice.cli.cluster.identities import renew_superseded
from sluice.cli.config import load
from sluice.core.errors import StoreError
from sluice.pki.authorities.rotation_phases import Laggard
from sluice.pki.authorities.trusted_authorities import TrustStore
from sluice.pki.identities.directory import read_identity
from sluice.pki.rotation.rotator import Rotator
from sluice.pki.x509.key_identifiers import issuer_id, key_id
from sluice.pki.x509.profiles import AuthorityKind
from tests.integration.runtime.conftest import Cluster

CONFIGURATION = load(None, environment={}, flags={})
INTERNAL = AuthorityKind.INTERNAL


def patience() -> Callable[[Sequence[Laggard]], bool]:
    """Makes the rotator poll in its own thread, while the cluster continues; gives up after 600 rounds."""
    rounds, pause = iter(range(600)), threading.Event()

    def look_again(_: Sequence[Laggard]) -> bool:
        pause.wait(0.1)
        return next(rounds, None) is not None

    return look_again


def issuers(directories: Sequence[Path]) -> set[str]:
    """The issuers of the certificates in ``directories``; empty while an identity is being replaced."""
    try:
        return {issuer_id(read_identity(directory)[0].leaf) for directory in directories}
    except StoreError:
        return set()


async def test_a_job_continues_through_a_rotation_and_its_identities_are_renewed_at_once(cluster: Cluster) -> None:
    await cluster.start_taskmanager("tm-1")
    job_id = await cluster.submit(executors=1)
    before = await cluster.until_running(job_id, 1)
    root = cluster.home.root
    directories = [*root.glob(f"jobs/{job_id}/*/identity"), *root.glob(f"work/*/jobs/{job_id}/*/identity")]
    assert len(directories) == 2
    old = issuers(directories)
    rotator = Rotator(cluster.home, cluster.pki.config, renew=lambda: renew_superseded(cluster.home, CONFIGURATION))
    await asyncio.to_thread(rotator.prepare, INTERNAL, patience=patience())
    assert issuers(directories) == old
    await asyncio.to_thread(rotator.activate, INTERNAL, patience=patience())
    await asyncio.to_thread(rotator.finish, INTERNAL, patience=patience(), last_patience=patience())
    (new,) = TrustStore(cluster.home.pki).anchors(INTERNAL)
    assert issuers(directories) == {key_id(new)} != old
    (executor,) = (await cluster.job(job_id))["executors"]
    assert (executor["id"], executor["state"]) == (before[0]["id"], "RUNNING"), "the same process"
    cluster.flag.touch()
    await cluster.until(job_id, "FINISHED")
