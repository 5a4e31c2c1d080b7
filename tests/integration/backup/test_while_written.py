"""Backups of a home that is constantly written to.

Each backup contains the home as it was at one moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from sluice.core.home import Home
from sluice.gateway.audit_log.chain import AccessPosition
from sluice.gateway.audit_log.log import AuditLog, AuditLogLimits, audit_file
from sluice.gateway.credentials.token_file import TokenStore
from sluice.pki.ca.authority import OnlineAuthority
from sluice.pki.ledger.file import ledger_path, read_ledger
from sluice.pki.spiffe_id import SpiffeId
from sluice.runtime.jobmanager.dispatcher.job_records import accepted_detail
from sluice.runtime.jobmanager.views import JobRecord
from sluice.runtime.messages import JobState
from tests.command import sluice
from tests.integration.backup.lived_in import (
    CONFIG,
    SECRET,
    LivedIn,
    enrol_at,
    read_secret_of,
    recovered,
    stores,
    submission,
)

ROUNDS = 4
MANY = 10
"""Of each writer's acts, at least, between two backups."""


class Writers:
    """Threads that write to a home until they are stopped; the failure of one thread fails the test."""

    def __init__(self, home: Home, blob: Path) -> None:
        self._home, self._blob = home, blob
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        self._counts: dict[str, int] = {}
        self._acted = threading.Condition()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        acts = (self._certificates, self._audit, self._tokens, self._jobs)
        threads = [threading.Thread(target=self._run, args=(each,)) for each in acts]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
        assert not self._failures

    def wait(self) -> None:
        """Wait until each thread has written several more times."""
        with self._acted:
            wanted = {name: count + MANY for name, count in self._counts.items()}
            done = self._acted.wait_for(
                lambda: (
                    self._failures
                    or (
                        len(self._counts) == 4
                        and all(self._counts[name] >= wanted.get(name, 1) for name in self._counts)
                    )
                ),
                timeout=110,
            )
        assert done
        assert not self._failures

    def _run(self, act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001  told by whoever waits
            with self._acted:
                self._failures.append(error)
                self._acted.notify_all()

    def _step(self, name: str) -> bool:
        with self._acted:
            self._counts[name] = self._counts.get(name, 0) + 1
            self._acted.notify_all()
        return not self._stop.is_set()

    def _certificates(self) -> None:
        with contextlib.closing(OnlineAuthority(self._home.pki, CONFIG)) as authority:
            number = 0
            while self._step("certificates"):
                number += 1
                enrol_at(
                    authority, self._home, SpiffeId.parse(f"spiffe://{CONFIG.trust_domain}/taskmanager/w-{number}")
                )

    def _audit(self) -> None:
        limits = AuditLogLimits(checkpoint_records=5, segment_bytes=4_000, segment_age=dt.timedelta(days=1))
        with contextlib.closing(AuditLog(audit_file(self._home), limits=limits)) as log:
            offset = 0
            while self._step("audit"):
                log.event("test.act", "local:test", {"offset": offset})
                after = AccessPosition("x", offset) if offset else AccessPosition("", 0)
                line = b'{"line": %d}\n' % offset
                log.append_access_lines(line, after=after, position=AccessPosition("x", offset + len(line)))
                offset += len(line)
                log.maintain()

    def _tokens(self) -> None:
        tokens = TokenStore(self._home)
        while self._step("tokens"):
            tokens.revoke(tokens.create("eve", "viewer", dt.timedelta(days=1))[0].id)

    def _jobs(self) -> None:
        asyncio.run(self._write_jobs())

    async def _write_jobs(self) -> None:
        async with stores(self._home) as (jobs, secrets):
            number = 0
            while self._step("jobs"):
                number += 1
                job_id = f"{number:032x}"
                await jobs.accept(job_id, submission(), 1, lambda _: self._blob)
                detail = accepted_detail(job_id, submission(), 1)
                ended = msgspec.structs.replace(detail, state=JobState.FINISHED, end_time=2)
                await jobs.put_result(JobRecord(submission=submission(), detail=ended))
                await jobs.clean(job_id)
                await secrets.put("db-password", SECRET, "root")
                if number % 2:
                    await jobs.forget(job_id)


@pytest.mark.timeout(600)
def test_each_backup_of_a_home_under_concurrent_writes_is_consistent(lived_in: LivedIn) -> None:
    writers = Writers(lived_in.home, lived_in.root / "pipeline.py")
    backups = []
    with writers.running():
        for number in range(ROUNDS):
            writers.wait()
            backups.append(lived_in.back_up(f"backup-{number}"))
    lengths = []
    for number, backup in enumerate(backups):
        verified = sluice("backup", "verify", backup, "--identity", lived_in.key)
        assert verified.returncode == 0, verified.stderr
        home = lived_in.restore(backup, "--accept-lost-revocations", to=lived_in.root / f"restored-{number}")
        found = recovered(home)
        assert not found.damaged
        assert not [job for job in found.accepted if job.damage]
        assert read_secret_of(home) == SECRET
        lengths.append(sum(1 for _ in read_ledger(ledger_path(home.pki))))
        tokens = {record.id: record for record in TokenStore(home).read().records}
        assert all(each.revoked_at for each in tokens.values() if each.name == "eve" and each.id != list(tokens)[-1])
    assert lengths == sorted(set(lengths)), "each knows more than the one before"
    assert not list((lived_in.home.root / "ha").glob(".*"))
