"""Secrets are encrypted, granted, versioned, and readable after a rotation interrupted at any point."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import pytest

from sluice.core import StoreError
from sluice.runtime.ha import EntryDamaged, LeadershipLost
from sluice.runtime.ha.pointers import Pointer
from sluice.runtime.jobmanager.secrets import (
    MAX_VALUE_BYTES,
    ChosenSecret,
    Grant,
    GranteeKind,
    InvalidSecret,
    KeyRing,
    SecretKeyMissing,
    SecretRefused,
    SecretsFull,
    SecretUnknown,
    Subject,
    check_secret_references,
)
from sluice.runtime.jobmanager.secrets.records import MAX_GRANTS
from sluice.runtime.jobmanager.secrets.store import FOLDER, MAX_VERSIONS
from sluice.runtime.messages import SecretReference
from tests.unit.runtime.ha.simulated import SimulatedPointers
from tests.unit.runtime.jobmanager.secrets.worlds import ADA, SecretWorld

TO_ADA = Grant(kind=GranteeKind.USER, name="ada")
VALUE = b"correct horse battery staple"


@pytest.fixture
def world(tmp_path: Path) -> SecretWorld:
    return SecretWorld(tmp_path)


def contents(directory: Path) -> list[bytes]:
    return [path.read_bytes() for path in directory.rglob("*") if path.is_file()]


async def test_a_granted_secret_is_readable_and_stored_nowhere_in_clear_text(
    world: SecretWorld, tmp_path: Path
) -> None:
    await world.store.put("db-password", VALUE, "root")
    await world.store.grant("db-password", TO_ADA)
    assert await world.read("db-password") == VALUE
    stored = [*world.storage.entries.values(), *map(str.encode, map(repr, vars(world.service).values()))]
    stored += contents(tmp_path)
    for form in (VALUE, base64.b64encode(VALUE), VALUE.hex().encode(), b"horse"):
        assert not any(form in each for each in stored)
    (key,) = (tmp_path / "keys").iterdir()
    assert key.stat().st_mode & 0o777 == 0o600
    assert key.parent.stat().st_mode & 0o777 == 0o700
    assert not any(key.read_bytes() in each for each in stored if each != key.read_bytes())


async def test_a_new_leader_can_read_the_secrets(world: SecretWorld) -> None:
    await world.store.put("db", VALUE, "root")
    await world.store.grant("db", TO_ADA)
    assert await world.read("db", store=world.opened(world.pointers, world.keys)) == VALUE


@pytest.mark.parametrize(
    ("grant", "subject"),
    [
        (None, ADA),
        (Grant(kind=GranteeKind.USER, name="bob"), ADA),
        (Grant(kind=GranteeKind.ROLE, name="ada"), ADA),
        (Grant(kind=GranteeKind.USER, name="submitter"), ADA),
        (Grant(kind=GranteeKind.JOB, name="nightly", owner="bob"), ADA),
        (Grant(kind=GranteeKind.JOB, name="b/nightly", owner="a"), Subject("a/b", "nightly")),
    ],
)
async def test_a_subject_without_a_grant_is_refused_as_if_the_secret_did_not_exist(
    world: SecretWorld, grant: Grant | None, subject: Subject
) -> None:
    await world.store.put("db", VALUE, "root")
    if grant is not None:
        await world.store.grant("db", grant)
    with pytest.raises(SecretRefused) as refused:
        await world.read("db", subject)
    with pytest.raises(SecretRefused) as unknown:
        await world.read("dc", subject)
    # Nobody learns by asking which secrets there are.
    assert str(refused.value).replace("db", "dc") == str(unknown.value)
    with pytest.raises(SecretRefused):
        await world.store.open(ChosenSecret("db", 1, "db", executors=False), subject)


@pytest.mark.parametrize(
    "grant",
    [
        TO_ADA,
        Grant(kind=GranteeKind.ROLE, name="submitter"),
        Grant(kind=GranteeKind.GROUP, name="data"),
        Grant(kind=GranteeKind.JOB, name="nightly", owner="ada"),
    ],
)
async def test_grants_can_be_revoked(world: SecretWorld, grant: Grant) -> None:
    await world.store.put("db", VALUE, "root")
    await world.store.grant("db", grant)
    await world.store.grant("db", grant)
    (chosen,) = await world.store.choose([SecretReference(name="db")], ADA)
    assert await world.store.open(chosen, ADA) == VALUE
    assert (await world.store.revoke("db", grant)).grants == ()
    with pytest.raises(SecretRefused):
        await world.store.open(chosen, ADA)
    with pytest.raises(SecretUnknown):
        await world.store.revoke("db", grant)


async def test_a_reference_gets_the_newest_version_or_the_named_version(world: SecretWorld) -> None:
    await world.store.put("db", b"one", "root")
    await world.store.grant("db", TO_ADA)
    (chosen,) = await world.store.choose([SecretReference(name="db")], ADA)
    await world.store.put("db", b"two", "root")
    assert await world.store.open(chosen, ADA) == b"one"
    assert await world.read("db") == b"two"
    assert await world.read("db", version=1) == b"one"
    await world.store.remove("db", 1)
    with pytest.raises(SecretRefused, match="version 1"):
        await world.read("db", version=1)
    with pytest.raises(SecretRefused, match="removed"):
        await world.store.open(chosen, ADA)
    with pytest.raises(SecretUnknown):
        await world.store.remove("db", 7)


async def test_few_versions_are_kept_and_version_numbers_are_never_reused(world: SecretWorld) -> None:
    for _ in range(MAX_VERSIONS + 3):
        view = await world.store.put("db", VALUE, "root")
    assert [each.number for each in view.versions] == list(range(4, MAX_VERSIONS + 4))
    assert len(world.storage.entries) == MAX_VERSIONS
    await world.store.remove("db", MAX_VERSIONS + 3)
    assert (await world.store.put("db", VALUE, "root")).versions[-1].number == MAX_VERSIONS + 4


async def test_removing_a_secret_removes_its_versions_and_grants(world: SecretWorld) -> None:
    await world.store.put("db", VALUE, "root")
    await world.store.grant("db", TO_ADA)
    await world.store.remove("db")
    assert world.storage.entries == {}
    assert await world.store.list() == ()
    await world.store.put("db", VALUE, "root")
    with pytest.raises(SecretRefused):
        await world.read("db")
    with pytest.raises(SecretUnknown):
        await world.store.remove("dc")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../a", "/etc/passwd", "a\0b", "a b", "-a", "ä", "a" * 65, "a\n"]
)
async def test_names_of_secrets_and_files_that_are_not_plain_are_refused(world: SecretWorld, name: str) -> None:
    with pytest.raises(InvalidSecret):
        await world.store.put(name, VALUE, "root")
    with pytest.raises(InvalidSecret):
        check_secret_references([SecretReference(name="db", file=name)] if name else [SecretReference(name=name)])
    with pytest.raises(SecretRefused):
        await world.store.choose([SecretReference(name=name)], ADA)


@pytest.mark.parametrize(
    "references", [[SecretReference(name="a"), SecretReference(name="b", file="a")], [SecretReference(name="a")] * 33]
)
def test_secret_references_with_the_same_file_name_are_refused(references: list[SecretReference]) -> None:
    with pytest.raises(InvalidSecret):
        check_secret_references(references)


async def test_value_sizes_and_numbers_of_grants_are_bounded(world: SecretWorld) -> None:
    for value in (b"", b"x" * (MAX_VALUE_BYTES + 1)):
        with pytest.raises(InvalidSecret):
            await world.store.put("db", value, "root")
    await world.store.put("db", b"x" * MAX_VALUE_BYTES, "root")
    for number in range(MAX_GRANTS):
        await world.store.grant("db", Grant(kind=GranteeKind.USER, name=f"u{number}"))
    with pytest.raises(SecretsFull):
        await world.store.grant("db", TO_ADA)


@pytest.mark.parametrize(
    "grant", [Grant(kind=GranteeKind.JOB, name="x"), Grant(kind=GranteeKind.USER, name="x", owner="y")]
)
async def test_a_grant_to_a_job_without_its_owner_is_refused(world: SecretWorld, grant: Grant) -> None:
    await world.store.put("db", VALUE, "root")
    with pytest.raises(InvalidSecret, match="owner"):
        await world.store.grant("db", grant)


# --- who may write to the storage --------------------------------------------------------------------------


async def test_a_swapped_pointer_never_yields_the_value_of_another_secret(world: SecretWorld) -> None:
    for name, value in (("a", b"value of a"), ("b", b"value of b")):
        await world.store.put(name, value, "root")
        await world.store.grant(name, TO_ADA)
    names = await world.pointers.names(FOLDER)
    found = {name: await world.pointers.get(FOLDER, name) for name in names}
    (first, one), (second, two) = found.items()
    assert one is not None
    assert two is not None
    # The whole pointer of the other one; and its own name with the versions of the other one.
    await world.pointers.replace(FOLDER, first, two.value, one.version)
    for name in ("a", "b"):
        try:
            assert await world.read(name) == f"value of {name}".encode()
        except EntryDamaged:
            continue
    mixed = {**msgspec.json.decode(one.value), "versions": msgspec.json.decode(two.value)["versions"]}
    await world.pointers.replace(FOLDER, first, msgspec.json.encode(mixed), one.version + 1)
    name = msgspec.json.decode(one.value)["name"]
    with pytest.raises(EntryDamaged):
        await world.read(name)
    assert second != first


async def test_a_secret_that_was_altered_or_belongs_to_another_trust_domain_is_damaged(world: SecretWorld) -> None:
    await world.store.put("db", VALUE, "root")
    await world.store.grant("db", TO_ADA)
    with pytest.raises(EntryDamaged):
        await world.read("db", store=world.opened(world.pointers, world.keys, "other.test"))
    (name,) = world.storage.entries
    data = world.storage.entries[name]
    world.storage.entries[name] = data[:-4] + b"AA" + data[-2:]
    with pytest.raises(EntryDamaged):
        await world.read("db")
    del world.storage.entries[name]
    with pytest.raises(EntryDamaged):
        await world.read("db")


# --- keys ---------------------------------------------------------------------------------------------------


async def test_without_its_key_a_secret_is_not_readable_and_no_new_key_is_made(
    world: SecretWorld, tmp_path: Path
) -> None:
    await world.store.put("db", VALUE, "root")
    await world.store.grant("db", TO_ADA)
    (key,) = (tmp_path / "keys").iterdir()
    content = key.read_bytes()
    key.chmod(0o640)
    with pytest.raises(SecretKeyMissing, match="0640"):
        await world.read("db")
    key.chmod(0o600)
    key.write_bytes(bytes(32))
    with pytest.raises(SecretKeyMissing, match="another key"):
        await world.read("db")
    key.unlink()
    for attempt in (world.read("db"), world.store.put("db", VALUE, "root")):
        with pytest.raises(SecretKeyMissing):
            await attempt
    assert list((tmp_path / "keys").iterdir()) == []
    key.write_bytes(content)
    key.chmod(0o600)
    assert await world.read("db") == VALUE


async def test_a_store_that_makes_no_keys_uses_distributed_keys_only(tmp_path: Path) -> None:
    world = SecretWorld(tmp_path, makes_keys=False)
    with pytest.raises(SecretKeyMissing, match="new-key"):
        await world.store.put("db", VALUE, "root")
    maker = KeyRing(tmp_path / "keys", makes_keys=True)
    first = maker.create()
    await world.store.put("db", VALUE, "root")
    await world.store.grant("db", TO_ADA)
    with pytest.raises(InvalidSecret, match="--to"):
        await world.store.rotate_key()
    with pytest.raises(InvalidSecret, match="no key with the id '0000000000000000'"):
        await world.store.rotate_key("0" * 16)
    second = maker.create()
    done = await world.store.rotate_key(second)
    assert (done.key_id, done.rewrapped, done.retired) == (second, 1, (first,))
    assert set(world.keys.ids()) == {first, second}  # whoever distributed it removes it
    maker.remove(first)
    assert await world.read("db") == VALUE


async def test_a_key_rotation_rewraps_every_version_and_removes_the_old_key(world: SecretWorld) -> None:
    for name in ("a", "b"):
        await world.store.put(name, VALUE + b"1", "root")
        await world.store.put(name, VALUE + b"2", "root")
        await world.store.grant(name, TO_ADA)
    (before,) = world.keys.ids()
    entries = dict(world.storage.entries)
    done = await world.store.rotate_key()
    assert done.rewrapped == 4
    assert done.retired == (before,)
    assert world.keys.ids() == (done.key_id,)
    assert world.storage.entries == entries  # values stay as they are
    assert await world.read("a", version=1) == VALUE + b"1"
    assert await world.read("b") == VALUE + b"2"
    assert {each.key_id for view in await world.store.list() for each in view.versions} == {done.key_id}


class Crash(Exception):  # a name for what happens
    """Simulates the end of the process."""


class CrashingPointers:
    """Pointers that crash the process before or after one of their writes."""

    def __init__(self, inner: SimulatedPointers, step: Callable[[], None]) -> None:
        self._inner, self._step = inner, step

    async def names(self, folder: str) -> list[str]:
        return await self._inner.names(folder)

    async def get(self, folder: str, name: str) -> Pointer | None:
        return await self._inner.get(folder, name)

    async def create(self, folder: str, name: str, value: bytes) -> None:
        self._step()
        await self._inner.create(folder, name, value)
        self._step()

    async def replace(self, folder: str, name: str, value: bytes, version: int) -> None:
        self._step()
        await self._inner.replace(folder, name, value, version)
        self._step()

    async def remove(self, folder: str, name: str) -> None:
        self._step()
        await self._inner.remove(folder, name)
        self._step()


class CrashingKeys(KeyRing):
    """A key ring that crashes the process before or after one of its changes on disk."""

    step: Callable[[], None] = staticmethod(lambda: None)

    def create(self) -> str:
        self.step()
        made = super().create()
        self.step()
        return made

    def remove(self, key_id: str) -> None:
        self.step()
        super().remove(key_id)
        self.step()


def crash_at(count: int) -> tuple[Callable[[], None], list[int]]:
    seen = [0]

    def step() -> None:
        seen[0] += 1
        if seen[0] == count:
            raise Crash

    return step, seen


async def all_readable(world: SecretWorld, names: Iterable[str]) -> None:
    for name in names:
        assert await world.read(name) == VALUE + name.encode()


async def test_a_key_rotation_may_be_interrupted_at_any_step(tmp_path: Path) -> None:
    """Every secret stays readable, new secrets can be put, and the next rotation completes as usual."""
    steps = 0
    for count in range(1, 100):
        world = SecretWorld(tmp_path / str(count))
        for name in ("a", "b", "c"):
            await world.store.put(name, VALUE + name.encode(), "root")
            await world.store.grant(name, TO_ADA)
        step, seen = crash_at(count)
        keys = CrashingKeys(tmp_path / str(count) / "keys", makes_keys=True)
        keys.step = step
        interrupted = world.opened(CrashingPointers(world.pointers, step), keys)
        try:
            await interrupted.rotate_key()
        except Crash:
            steps += 1
            await all_readable(world, "abc")
            await world.store.put("d", VALUE + b"d", "root")
            await world.store.grant("d", TO_ADA)
            done = await world.store.rotate_key()
            await all_readable(world, "abcd")
            assert world.keys.ids() == (done.key_id,)
        else:
            assert seen[0] == count - 1
            break
    assert steps >= 12


async def test_a_secret_that_cannot_be_read_keeps_its_key(world: SecretWorld) -> None:
    await world.store.put("a", VALUE, "root")
    await world.store.put("b", VALUE, "root")
    await world.store.grant("b", TO_ADA)
    (before,) = world.keys.ids()
    names = await world.pointers.names(FOLDER)
    for name in names:
        present = await world.pointers.get(FOLDER, name)
        assert present is not None
        record = msgspec.json.decode(present.value)
        if record["name"] == "a":
            record["versions"][0]["key"]["nonce"] = base64.b64encode(bytes(12)).decode()
            await world.pointers.replace(FOLDER, name, msgspec.json.encode(record), present.version)
    done = await world.store.rotate_key()
    assert done.unreadable == ("a",)
    assert done.retired == ()
    assert before in world.keys.ids()
    assert await world.read("b") == VALUE


async def test_a_deposed_leader_cannot_change_secrets(world: SecretWorld) -> None:
    await world.store.put("a", VALUE, "root")
    world.service.pass_time(100.0)
    for change in (world.store.put("a", VALUE, "root"), world.store.grant("a", TO_ADA), world.store.remove("a")):
        with pytest.raises(LeadershipLost):
            await change


def test_a_file_in_place_of_the_key_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(b"")
    with pytest.raises((StoreError, SecretKeyMissing)):
        KeyRing(tmp_path / "keys", makes_keys=True).create()
