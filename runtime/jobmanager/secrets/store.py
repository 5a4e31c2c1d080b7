"""Secrets in the HA storage: one pointer per secret names its valid versions; values are encrypted entries.

A new leader finds them with everything else, in any kind of storage: files, ZooKeeper or Kubernetes (ADR 111). It reads
the keys from its own directory (:mod:`sluice.runtime.jobmanager.secrets.key_ring`), never from the storage.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable, Iterable

import msgspec

from sluice.runtime.ha import EntryDamaged, EntryMissing, HaStorage, PointerStore, StoredEntry
from sluice.runtime.jobmanager.secrets.envelope import MAX_VALUE_BYTES, Place, Sealed, seal, unseal
from sluice.runtime.jobmanager.secrets.errors import InvalidSecret, SecretRefused, SecretsFull, SecretUnknown
from sluice.runtime.jobmanager.secrets.key_ring import KeyRing
from sluice.runtime.jobmanager.secrets.records import (
    MAX_GRANTS,
    ChosenSecret,
    Grant,
    SecretRecord,
    SecretView,
    StoredVersion,
    Subject,
    check_secret_name,
)
from sluice.runtime.jobmanager.secrets.rotation import KeyRotation, active_key, rotate
from sluice.runtime.masking import is_maskable
from sluice.runtime.messages import GivenSecret, SecretReference

FOLDER = "secrets"
MAX_SECRETS = 256
MAX_VERSIONS = 8
"""Most versions of one secret; a new one removes the earliest."""


class SecretStore:
    """Stores secrets and opens them for jobs. It exists while this process leads. Changes run one at a time.

    Args:
        pointers: the pointers of this term.
        storage: the storage of values.
        keys: the key-encryption keys.
        trust_domain: the trust domain of the cluster.
        clock: epoch seconds.
    """

    def __init__(
        self,
        pointers: PointerStore,
        storage: HaStorage,
        keys: KeyRing,
        trust_domain: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._pointers = pointers
        self._storage = storage
        self._keys = keys
        self._trust_domain = trust_domain
        self._clock = clock
        self._changing = asyncio.Lock()

    # --- for administrators ---------------------------------------------------------------------------------

    async def put(self, name: str, value: bytes, by: str) -> SecretView:
        """Store a new version; durable when this returns.

        Raises:
            InvalidSecret: the name, or the size of the value, is not allowed.
            SecretsFull: there are too many secrets.
            SecretKeyMissing: the key to encrypt it with is missing.
        """
        check_secret_name(name)
        if not 0 < len(value) <= MAX_VALUE_BYTES:
            raise InvalidSecret(f"the value of secret {name} has {len(value)} bytes", f"1 to {MAX_VALUE_BYTES}")
        async with self._changing:
            found = await self._find(name)
            if found is None and len(await self._pointers.names(FOLDER)) >= MAX_SECRETS:
                raise SecretsFull(f"there are {MAX_SECRETS} secrets", "remove some: `sluice secret rm`")
            record, pointer = found or (SecretRecord(name=name, incarnation=secrets.token_hex(16)), None)
            number = record.latest + 1
            key_id = await active_key(self._pointers, self._keys)
            key = await asyncio.to_thread(self._keys.key, key_id)
            sealed, wrapped = seal(value, self._place(record, number), key_id, key)
            data = msgspec.json.encode(sealed)
            entry = StoredEntry.of(f"{FOLDER}/{_pointer_name(name)}/{number}-{secrets.token_hex(8)}", data)
            await asyncio.to_thread(self._storage.write, entry.name, data)
            version = StoredVersion(
                number=number,
                entry=entry,
                key=wrapped,
                created_at=int(self._clock() * 1000),
                created_by=by,
                masked=is_maskable(value),
            )
            every = (*record.versions, version)
            changed = msgspec.structs.replace(record, latest=number, versions=every[-MAX_VERSIONS:])
            await self._write(changed, pointer)
            await self._forget(every[:-MAX_VERSIONS])
            return changed.view()

    async def list(self) -> tuple[SecretView, ...]:
        """All secrets, sorted by name."""
        names = await self._pointers.names(FOLDER)
        records = [await self._read(each) for each in names]
        return tuple(sorted((record.view() for record, _ in filter(None, records)), key=lambda view: view.name))

    async def get(self, name: str) -> SecretView:
        """One secret; raises :class:`SecretUnknown`."""
        return (await self._known(name))[0].view()

    async def remove(self, name: str, version: int = 0) -> None:
        """Remove a secret with its grants, or one version; raises :class:`SecretUnknown`."""
        async with self._changing:
            record, pointer = await self._known(name)
            if version == 0:
                await self._pointers.remove(FOLDER, _pointer_name(name))
                await asyncio.to_thread(self._storage.remove, f"{FOLDER}/{_pointer_name(name)}")
                return
            gone = record.version(version)
            if gone is None:
                raise SecretUnknown(f"secret {name} has no version {version}", "see `sluice secret versions`")
            kept = tuple(each for each in record.versions if each is not gone)
            await self._write(msgspec.structs.replace(record, versions=kept), pointer)
            await self._forget((gone,))

    async def grant(self, name: str, grant: Grant) -> SecretView:
        """Grant a secret to jobs; raises :class:`SecretUnknown`, ``InvalidSecret`` or ``SecretsFull``."""
        grant.checked()
        async with self._changing:
            record, pointer = await self._known(name)
            if grant in record.grants:
                return record.view()
            if len(record.grants) >= MAX_GRANTS:
                raise SecretsFull(f"secret {name} has {MAX_GRANTS} grants", "grant it to a role or a group")
            changed = msgspec.structs.replace(record, grants=(*record.grants, grant))
            await self._write(changed, pointer)
            return changed.view()

    async def revoke(self, name: str, grant: Grant) -> SecretView:
        """Revoke a grant: processes that start later do not get the secret. Raises :class:`SecretUnknown`."""
        async with self._changing:
            record, pointer = await self._known(name)
            if grant not in record.grants:
                raise SecretUnknown(f"secret {name} is not granted to {grant}", "see `sluice secret versions`")
            kept = tuple(each for each in record.grants if each != grant)
            changed = msgspec.structs.replace(record, grants=kept)
            await self._write(changed, pointer)
            return changed.view()

    async def rotate_key(self, to: str = "") -> KeyRotation:
        """Rewrap all data keys with another key-encryption key; see :mod:`.rotation`."""
        async with self._changing:
            return await rotate(self._pointers, self._keys, FOLDER, self._place, to=to)

    # --- for jobs -------------------------------------------------------------------------------------------

    async def choose(self, references: Iterable[SecretReference], subject: Subject) -> tuple[ChosenSecret, ...]:
        """Choose the versions for an attempt that begins now; raises :class:`SecretRefused`."""
        chosen = []
        for reference in references:
            record = await self._granted(reference.name, subject)
            version = record.version(reference.version)
            if version is None:
                wanted = f"version {reference.version}" if reference.version else "version"
                raise SecretRefused(f"secret {reference.name} has no {wanted}", "ask for another one")
            file = reference.file or reference.name
            chosen.append(ChosenSecret(reference.name, version.number, file, reference.executors))
        return tuple(chosen)

    async def open(self, chosen: ChosenSecret, subject: Subject) -> bytes:
        """Decrypt the value of a chosen version.

        Raises :class:`SecretRefused`, also if it was revoked or removed since, ``SecretKeyMissing``, ``EntryDamaged``.
        """
        async with self._changing:  # a rotation removes keys meanwhile
            record = await self._granted(chosen.name, subject)
            version = record.version(chosen.version)
            if version is None:
                raise SecretRefused(f"version {chosen.version} of secret {chosen.name} was removed")
            key = await asyncio.to_thread(self._keys.key, version.key.key_id)
            try:
                data = version.entry.check(await asyncio.to_thread(self._storage.read, version.entry.name))
                sealed = msgspec.json.decode(data, type=Sealed)
            except (EntryMissing, msgspec.DecodeError) as error:
                raise EntryDamaged(f"the value of secret {chosen.name} cannot be read", "store it again") from error
            return unseal(sealed, version.key, self._place(record, version.number), key)

    async def _granted(self, name: str, subject: Subject) -> SecretRecord:
        found = await self._find(name)
        if found is None or not found[0].granted_to(subject):
            raise SecretRefused(
                f"there is no secret {name[:64]} for job {subject.job_name!r} of {subject.owner}",
                "ask an administrator to grant it: `sluice secret grant`",
            )
        return found[0]

    # --- inside ---------------------------------------------------------------------------------------------

    def _place(self, record: SecretRecord, number: int) -> Place:
        return Place(self._trust_domain, record.name, record.incarnation, number)

    async def _known(self, name: str) -> tuple[SecretRecord, int | None]:
        found = await self._find(check_secret_name(name))
        if found is None:
            raise SecretUnknown(f"there is no secret {name}", "see `sluice secret list`")
        return found

    async def _find(self, name: str) -> tuple[SecretRecord, int | None] | None:
        return await self._read(_pointer_name(name))

    async def _read(self, pointer_name: str) -> tuple[SecretRecord, int | None] | None:
        present = await self._pointers.get(FOLDER, pointer_name)
        if present is None:
            return None
        return decode_record(pointer_name, present.value), present.version

    async def _write(self, record: SecretRecord, pointer: int | None) -> None:
        name, value = _pointer_name(record.name), msgspec.json.encode(record)
        if pointer is None:
            await self._pointers.create(FOLDER, name, value)
        else:
            await self._pointers.replace(FOLDER, name, value, pointer)

    async def _forget(self, versions: Iterable[StoredVersion]) -> None:
        for each in versions:
            await asyncio.to_thread(self._storage.remove, each.entry.name)


def given_secret(chosen: ChosenSecret, value: bytes, *, shown: bool) -> GivenSecret:
    """The secret for a process of a job. Unless ``shown``, it has no file, and only serves to mask logs."""
    return GivenSecret(name=chosen.name, file=chosen.file if shown else "", content=value)


def decode_record(pointer_name: str, data: bytes) -> SecretRecord:
    """Decode the pointer of a secret; raises ``EntryDamaged``."""
    try:
        record = msgspec.json.decode(data, type=SecretRecord)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EntryDamaged(f"the pointer {FOLDER}/{pointer_name} cannot be read", "store the secret again") from error
    if _pointer_name(record.name) != pointer_name:
        raise EntryDamaged(f"the pointer {FOLDER}/{pointer_name} belongs to another secret", "store the secret again")
    return record


def _pointer_name(name: str) -> str:
    """The pointer name of a secret: a digest, because pointer names allow fewer characters than names of secrets."""
    return hashlib.sha256(name.encode()).hexdigest()
