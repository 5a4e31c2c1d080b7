"""Rotation of the key-encryption key. Every secret stays readable after each step.

1. A new key is on disk (made here, or distributed), and nothing uses it yet.
2. A pointer names the new key: new versions are encrypted with it.
3. The data keys of each secret are rewrapped with the new key, one secret after the other.
4. Keys that no secret uses any more are removed, if this JobManager makes keys.

After an interruption, another rotation starts over and reaches the same state. Both keys exist until step 4.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from sluice.runtime.ha import EntryDamaged, PointerStore
from sluice.runtime.jobmanager.secrets.envelope import Place, WrappedKey, unwrap, wrap
from sluice.runtime.jobmanager.secrets.errors import InvalidSecret, SecretKeyMissing
from sluice.runtime.jobmanager.secrets.key_ring import KeyRing
from sluice.runtime.jobmanager.secrets.records import SecretRecord

_LOG = logging.getLogger(__name__)

_META, _ACTIVE = "meta", "secret-key"


class KeyRotation(msgspec.Struct, frozen=True, kw_only=True):
    """What a rotation has done.

    Attributes:
        key_id: the key in use after the rotation.
        rewrapped: how many versions were rewrapped.
        retired: keys that nothing uses any more. They are removed if this JobManager makes keys.
        unreadable: secrets whose key is missing, or that are damaged; they are unchanged.
    """

    key_id: str
    rewrapped: int
    retired: tuple[str, ...]
    unreadable: tuple[str, ...]


class _Active(msgspec.Struct, frozen=True):
    key_id: str


async def active_key(pointers: PointerStore, keys: KeyRing) -> str:
    """The id of the key for new versions; the first call makes or chooses it.

    Raises:
        SecretKeyMissing: no key was chosen, and there is not exactly one: distribute one first.
    """
    present = await pointers.get(_META, _ACTIVE)
    if present is not None:
        return _decoded(present.value)
    there = await asyncio.to_thread(keys.ids)
    if keys.makes_keys:
        key_id = there[0] if len(there) == 1 else await asyncio.to_thread(keys.create)
    elif len(there) == 1:
        key_id = there[0]
    else:
        raise SecretKeyMissing(
            f"{len(there)} keys for secrets are on this JobManager, and none is in use yet",
            "make one with `sluice secret new-key DIRECTORY`, and copy it to [secrets] keys of each JobManager",
        )
    await pointers.create(_META, _ACTIVE, msgspec.json.encode(_Active(key_id)))
    return key_id


async def rotate(
    pointers: PointerStore,
    keys: KeyRing,
    folder: str,
    place: Callable[[SecretRecord, int], Place],
    *,
    to: str = "",
) -> KeyRotation:
    """Rotate the key-encryption key, in the steps above.

    Args:
        pointers: the pointers of this term.
        keys: the key-encryption keys.
        folder: the folder of the secrets' pointers.
        place: returns the place of the ciphertext of a version.
        to: the id of the new key. Empty: make one, or, where keys are distributed, take the only one not in use.

    Raises:
        InvalidSecret: the new key is missing, or it is not clear which one is meant.
        SecretKeyMissing: the new key cannot be read.
    """
    if to and to not in await asyncio.to_thread(keys.ids):
        raise InvalidSecret(
            f"no key with the id {to[:64]!r} is on this JobManager",
            "copy it to [secrets] keys of each JobManager first",
        )
    before = await active_key(pointers, keys)
    target = to or await _next_key(keys, before)
    key = await asyncio.to_thread(keys.key, target)
    await _activate(pointers, target)
    rewrapped, unreadable, needed = 0, [], {target}
    for name in await pointers.names(folder):
        present = await pointers.get(folder, name)
        if present is None:
            continue
        try:
            record = msgspec.json.decode(present.value, type=SecretRecord)
        except msgspec.DecodeError:
            unreadable.append(name)
            continue
        changed, count, kept = await asyncio.to_thread(_rewrapped, record, keys, target, key, place)
        if count:
            await pointers.replace(folder, name, msgspec.json.encode(changed), present.version)
        rewrapped += count
        needed |= kept
        if kept:
            unreadable.append(record.name)
    retired: tuple[str, ...] = ()
    if not unreadable:
        retired = tuple(each for each in await asyncio.to_thread(keys.ids) if each not in needed)
    if keys.makes_keys:
        for each in retired:
            await asyncio.to_thread(keys.remove, each)
    _LOG.info("secrets are encrypted with key %s now: %d versions were rewrapped", target, rewrapped)
    return KeyRotation(key_id=target, rewrapped=rewrapped, retired=retired, unreadable=tuple(unreadable))


def _rewrapped(
    record: SecretRecord, keys: KeyRing, target: str, key: bytes, place: Callable[[SecretRecord, int], Place]
) -> tuple[SecretRecord, int, set[str]]:
    """``record`` under the new key, how many versions were rewrapped, and the keys of the others."""
    versions, count, kept = [], 0, set()
    for version in record.versions:
        wrapped: WrappedKey = version.key
        if wrapped.key_id != target:
            where = place(record, version.number)
            try:
                wrapped = wrap(unwrap(wrapped, where, keys.key(wrapped.key_id)), where, target, key)
                count += 1
            except (SecretKeyMissing, EntryDamaged) as error:
                _LOG.error("version %d of secret %s was not rewrapped: %s", version.number, record.name, error)
                kept.add(wrapped.key_id)
        versions.append(msgspec.structs.replace(version, key=wrapped))
    return msgspec.structs.replace(record, versions=tuple(versions)), count, kept


async def _next_key(keys: KeyRing, before: str) -> str:
    if keys.makes_keys:
        return await asyncio.to_thread(keys.create)
    others = [each for each in await asyncio.to_thread(keys.ids) if each != before]
    if len(others) != 1:
        raise InvalidSecret(
            f"{len(others)} keys are on this JobManager besides the one in use",
            "make one with `sluice secret new-key DIRECTORY`, copy it to each JobManager, and name it: --to ID",
        )
    return others[0]


async def _activate(pointers: PointerStore, key_id: str) -> None:
    present = await pointers.get(_META, _ACTIVE)
    value = msgspec.json.encode(_Active(key_id))
    if present is None:
        await pointers.create(_META, _ACTIVE, value)
    elif present.value != value:
        await pointers.replace(_META, _ACTIVE, value, present.version)


def _decoded(data: bytes) -> str:
    try:
        return msgspec.json.decode(data, type=_Active).key_id
    except msgspec.DecodeError as error:
        raise EntryDamaged(f"the pointer {_META}/{_ACTIVE} cannot be read", "rotate the key with --to") from error
