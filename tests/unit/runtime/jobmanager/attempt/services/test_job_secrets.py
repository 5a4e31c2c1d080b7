"""Which processes of an attempt get which values, and when nobody does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.core import SluiceError
from sluice.runtime.jobmanager.attempt.services.job_secrets import JobSecrets
from sluice.runtime.jobmanager.secrets import Grant, GranteeKind, SecretRefused, SecretUseless
from sluice.runtime.messages import BlobRef, JobSubmission, SecretReference
from sluice.runtime.sandbox import IsolationLevel
from tests.unit.runtime.jobmanager.secrets.worlds import SecretWorld

VALUE = b"correct horse battery staple"
ADA = Grant(kind=GranteeKind.USER, name="ada")
JOB = "1" * 32


class World:
    """Secrets ``db`` and ``key``, both granted to ada, and three TaskManagers, one per isolation level."""

    def __init__(self, directory: Path) -> None:
        self.secrets = SecretWorld(directory)
        self.events: list[tuple[str, str, dict[str, str]]] = []
        self.log_is_full = False

    async def prepared(self) -> World:
        for name in ("db", "key"):
            await self.secrets.store.put(name, VALUE + name.encode(), "root")
            await self.secrets.store.grant(name, ADA)
        return self

    async def record(self, kind: str, principal: str, detail: Mapping[str, str]) -> None:
        if self.log_is_full:
            raise SluiceError("the audit log cannot be written")
        self.events.append((kind, principal, dict(detail)))

    async def taskmanagers(self) -> tuple[Any, ...]:
        levels = {"good": IsolationLevel.SANDBOX, "bare": IsolationLevel.NONE, "uids": IsolationLevel.UID}
        return tuple(SimpleNamespace(id=name, isolation=level) for name, level in levels.items())

    def attempt(self, *references: SecretReference, owner: str = "ada", number: int = 1, **given: Any) -> JobSecrets:
        pipeline = BlobRef(sha256="1" * 64, name="p.py", size=1)
        submission = JobSubmission(name="nightly", owner=owner, pipeline=pipeline, secrets=references)
        manager: Any = self
        services: dict[str, Any] = {"store": self.secrets.store, "record": self.record} | given
        return JobSecrets(JOB, number, submission, resource_manager=manager, **services)


@pytest.fixture
async def world(tmp_path: Path) -> World:
    return await World(tmp_path).prepared()


BOTH = (SecretReference(name="db", file="password"), SecretReference(name="key", executors=True))


async def test_driver_and_executors_get_the_secrets_that_the_job_asked_for(world: World) -> None:
    attempt = world.attempt(*BOTH)
    await attempt.check("good")
    assert world.events == []
    driver = await attempt.for_driver("good")
    assert [(each.file, each.content) for each in driver] == [("password", VALUE + b"db"), ("key", VALUE + b"key")]
    executor = await attempt.for_executor(3, "good")
    # The other one is there to be masked, and is no file.
    assert [(each.name, each.file) for each in executor] == [("db", ""), ("key", "key")]
    assert [kind for kind, _, _ in world.events] == ["secret.used"] * 4
    assert {principal for _, principal, _ in world.events} == {"ada"}
    _, _, detail = world.events[2]
    assert detail == {
        "job": JOB,
        "name": "nightly",
        "attempt": "1",
        "process": "executor 3",
        "secret": "db",
        "version": "1",
        "shown": "no",
        "taskmanager": "good",
    }
    assert VALUE.decode() not in repr((driver, executor, world.events))


async def test_an_attempt_keeps_its_secret_versions_and_the_next_one_gets_the_newest(world: World) -> None:
    first = world.attempt(*BOTH)
    await first.check("good")
    await world.secrets.store.put("db", b"another value", "root")
    assert (await first.for_driver("good"))[0].content == VALUE + b"db"
    assert (await world.attempt(*BOTH, number=2).for_driver("good"))[0].content == b"another value"


@pytest.mark.parametrize("taskmanager", ["bare", "uids", "unheard-of"])
async def test_no_secret_is_given_to_a_taskmanager_without_sandboxes(world: World, taskmanager: str) -> None:
    attempt = world.attempt(*BOTH)
    for asked in (
        attempt.check(taskmanager),
        attempt.for_driver(taskmanager),
        attempt.for_executor(1, taskmanager),
    ):
        with pytest.raises(SecretUseless, match="sandbox"):
            await asked
    assert world.events == []


async def test_a_revoked_secret_is_given_to_no_further_process(world: World) -> None:
    attempt = world.attempt(*BOTH)
    await attempt.for_driver("good")
    await world.secrets.store.revoke("db", ADA)
    with pytest.raises(SecretRefused, match="no secret db for job 'nightly' of ada"):
        await attempt.for_executor(1, "good")
    with pytest.raises(SecretRefused):
        await world.attempt(*BOTH, number=2).check("good")
    assert [kind for kind, _, _ in world.events].count("secret.refused") == 2


async def test_a_secret_whose_use_cannot_be_recorded_is_not_given(world: World) -> None:
    for attempt in (world.attempt(*BOTH, record=None), world.attempt(*BOTH, store=None)):
        with pytest.raises(SecretUseless, match="audit log"):
            await attempt.for_driver("good")
    world.log_is_full = True
    with pytest.raises(SluiceError, match="cannot be written"):
        await world.attempt(*BOTH).for_driver("good")


async def test_a_job_of_another_user_gets_no_secret(world: World) -> None:
    with pytest.raises(SecretRefused):
        await world.attempt(*BOTH, owner="bob").check("good")
    assert world.events[0][:2] == ("secret.refused", "bob")


async def test_a_job_without_secrets_needs_neither_store_nor_audit_log(world: World) -> None:
    attempt = world.attempt(record=None, store=None)
    await attempt.check("bare")
    assert await attempt.for_driver("bare") == ()
    assert await attempt.for_executor(1, "bare") == ()
