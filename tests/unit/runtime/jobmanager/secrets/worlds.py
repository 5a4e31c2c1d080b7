"""An in-memory store of secrets for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sluice.runtime.jobmanager.secrets import KeyRing, SecretStore, Subject
from sluice.runtime.messages import SecretReference
from tests.unit.runtime.ha.simulated import Lines, MemoryStorage, Service, SimulatedPointers

ADA = Subject("ada", "nightly", roles=("submitter",), groups=("data",))


class SecretWorld:
    """An in-memory secret store with real keys on disk."""

    def __init__(self, directory: Path, *, makes_keys: bool = True) -> None:
        self.service = Service(10.0)
        self.storage = MemoryStorage()
        self.latch = self.service.open()
        self.pointers = SimulatedPointers(self.service, Lines(self.service), self.latch, lambda: None)
        self.keys = KeyRing(directory / "keys", makes_keys=makes_keys)
        self.store = self.opened(self.pointers, self.keys)

    def opened(self, pointers: Any, keys: Any, domain: str = "sluice.test") -> SecretStore:
        return SecretStore(pointers, self.storage, keys, domain, lambda: 1.0)

    async def read(
        self, name: str, subject: Subject = ADA, store: SecretStore | None = None, version: int = 0
    ) -> bytes:
        store = store or self.store
        (chosen,) = await store.choose([SecretReference(name=name, version=version)], subject)
        return await store.open(chosen, subject)
