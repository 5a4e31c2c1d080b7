"""The ledger of issued certificates: changes are noticed, and every certificate is recorded first."""

from __future__ import annotations

import datetime as dt
import errno
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from sluice.core.files.append_log import ChainState, Disk
from sluice.pki.errors import LedgerError
from sluice.pki.ledger.file import Ledger, read_ledger, verify_ledger
from sluice.pki.ledger.records import MAX_LINE_BYTES, LedgerRecord, parse_state, read_chain, seal, state_after, verify
from sluice.pki.ledger.turns import holder_of

NOW = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)

words = st.text(st.characters(codec="utf-8"), max_size=40)
records = st.builds(
    LedgerRecord,
    event=st.just("issued"),
    kind=st.sampled_from(["self", "enrolment", "renewal", "job"]),
    identity=words,
    serial=words,
    requester=words,
    token=words,
)


def chain(items: list[LedgerRecord]) -> list[bytes]:
    state, lines = ChainState(), []
    for item in items:
        line, sealed = seal(item, state)
        state = state_after(sealed)
        lines.append(line)
    return lines


def issued(number: int, token: str = "") -> LedgerRecord:
    return LedgerRecord(event="issued", kind="job", identity=f"spiffe://td/{number}", token=token)


def at_noon() -> dt.datetime:
    return NOW


def opened(path: Path, disk: Disk | None = None) -> Ledger:
    return Ledger(path, clock=at_noon, disk=disk)


@given(st.lists(records, max_size=6))
def test_sealed_records_verify_and_are_read_back(items: list[LedgerRecord]) -> None:
    lines = chain(items)
    found = list(read_chain(lines))
    assert [(r.identity, r.token) for r in found] == [(r.identity, r.token) for r in items]
    assert verify(lines) == ChainState(len(items), found[-1].digest if found else "0" * 64)


@given(st.lists(records, min_size=1, max_size=5), st.data())
def test_any_change_of_a_single_byte_is_found_even_in_the_last_record(
    items: list[LedgerRecord], data: st.DataObject
) -> None:
    whole = b"".join(chain(items))
    at = data.draw(st.integers(0, len(whole) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != whole[at]))
    changed = whole[:at] + bytes([byte]) + whole[at + 1 :]
    with pytest.raises(LedgerError):
        verify(changed.splitlines(keepends=True) if byte not in b"\n\r" else changed.split(b"\n"))


@given(st.lists(records, min_size=2, max_size=6, unique_by=lambda r: r.identity), st.data())
def test_lines_removed_repeated_or_moved_are_found(items: list[LedgerRecord], data: st.DataObject) -> None:
    lines = chain(items)
    first = data.draw(st.integers(0, len(lines) - 2))
    second = data.draw(st.integers(first + 1, len(lines) - 1))
    moved = [*lines]
    moved[first], moved[second] = moved[second], moved[first]
    for broken in (lines[:first] + lines[first + 1 :], [*lines[: first + 1], *lines[first:]], moved):
        with pytest.raises(LedgerError):
            verify(broken)


def test_a_truncated_ledger_is_detected_given_a_remembered_chain_state() -> None:
    lines = chain([issued(n) for n in range(4)])
    early, late = verify(lines[:2]), verify(lines)
    assert verify(lines, known=parse_state(str(early))) == late
    assert verify(lines[:2]) == early, "the chain alone cannot tell"
    with pytest.raises(LedgerError, match="cut off"):
        verify(lines[:2], known=late)


@pytest.mark.parametrize("text", ["", "4", "4:", "x:" + "0" * 64, "-1:" + "0" * 64, "²:" + "0" * 64, "4:00"])
def test_a_malformed_chain_state_is_refused(text: str) -> None:
    with pytest.raises(LedgerError, match="not the state"):
        parse_state(text)


def test_record_that_is_too_long_is_not_sealed() -> None:
    with pytest.raises(LedgerError, match="larger"):
        seal(LedgerRecord(event="issued", identity="x" * MAX_LINE_BYTES), ChainState())


def test_ledger_continues_where_it_was_and_knows_used_tokens(tmp_path: Path) -> None:
    path = tmp_path / "ca" / "ledger.jsonl"
    ledger = opened(path)
    ledger.append(issued(1, token="a" * 12))
    before = ledger.state
    ledger.close()
    assert path.stat().st_mode & 0o777 == 0o600
    again = opened(path)
    assert again.state == before
    assert again.token_used("a" * 12)
    assert not again.token_used("b" * 12)
    again.append(issued(2))
    assert verify_ledger(path, known=before).count == 2
    assert [record.time for record in read_ledger(path)] == ["2026-05-01T12:00:00.000Z"] * 2
    again.close()


def test_a_writer_that_holds_the_lock_keeps_others_from_writing_and_is_named(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "ledger")
    other = Ledger(tmp_path / "ledger", clock=at_noon, patience=0.1)
    with ledger.turn():
        with pytest.raises(LedgerError, match=f"process {os.getpid()} keeps the turn"):
            other.append(issued(1))
        with pytest.raises(LedgerError, match="keeps the turn"):
            Ledger(tmp_path / "ledger", clock=at_noon, patience=0.1)
        ledger.append(issued(2))
    other.append(issued(3))
    assert [record.identity for record in read_ledger(tmp_path / "ledger")] == ["spiffe://td/2", "spiffe://td/3"]
    ledger.close()
    other.close()


def test_each_writer_knows_what_the_others_have_written(tmp_path: Path) -> None:
    first, second = opened(tmp_path / "ledger"), opened(tmp_path / "ledger")
    for number in range(3):
        first.append(issued(number, token=f"{number:012x}"))
        second.append(issued(number + 10, token=f"{number + 10:012x}"))
    with first.turn():
        assert all(first.token_used(f"{number:012x}") for number in (0, 1, 2, 10, 11, 12))
        assert first.certificate_of("0" * 12) == ""
    assert first.state == second.state == verify_ledger(tmp_path / "ledger")
    first.close()
    second.close()


@pytest.mark.parametrize("torn", [b"{", b'{"event":"issued","sequence":2', b"\0" * 50])
def test_a_half_written_record_of_a_killed_writer_is_dropped_by_the_next_writer(torn: bytes, tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = opened(path)
    ledger.append(issued(1))
    with path.open("ab") as file:
        file.write(torn)
    ledger.append(issued(2))
    found = list(read_ledger(path))
    assert [record.event for record in found] == ["issued", "recovered", "issued"]
    assert found[1].dropped_bytes == len(torn)
    ledger.close()


@pytest.mark.parametrize("change", ["cut", "replaced", "removed", "damaged", "foreign"])
def test_a_running_writer_refuses_a_ledger_file_that_was_changed_or_replaced(change: str, tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = opened(path)
    for number in range(3):
        ledger.append(issued(number))
    lines = path.read_bytes().splitlines(keepends=True)
    match change:
        case "cut":
            os.truncate(path, len(lines[0]))
        case "replaced":
            path.rename(tmp_path / "before")
            path.write_bytes(b"".join(lines))
        case "removed":
            path.unlink()
        case "damaged":
            with path.open("ab") as file:
                file.write(b"garbage\n")
        case "foreign":
            with path.open("ab") as file:
                file.write(lines[0])
    with pytest.raises(LedgerError):
        ledger.append(issued(9))
    ledger.close()


def test_the_lock_holder_is_found_only_for_a_granted_lock_on_the_same_file(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        info = os.fstat(file.fileno())
        place = f"{os.major(info.st_dev):02x}:{os.minor(info.st_dev):02x}"
        table = (
            f"1: FLOCK  ADVISORY  WRITE 77 {place}:{info.st_ino + 1} 0 EOF\n2: POSIX  ADVISORY  WRITE 78 x\ngarbage\n"
        )
        assert holder_of(file.fileno(), table) is None
        assert holder_of(file.fileno(), f"{table}3: FLOCK  ADVISORY  WRITE 79 {place}:{info.st_ino} 0 EOF\n") == 79
        assert holder_of(file.fileno(), f"3: -> FLOCK  ADVISORY  WRITE 79 {place}:{info.st_ino} 0 EOF\n") is None
        assert holder_of(file.fileno(), f"3: FLOCK  ADVISORY  WRITE 0 {place}:{info.st_ino} 0 EOF\n") is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=40)
@given(cut=st.integers(0, 10_000), junk=st.binary(max_size=30).filter(lambda b: b"\n" not in b))
def test_a_torn_tail_is_dropped_and_recorded_wherever_it_was_cut(cut: int, junk: bytes, tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    lines = chain([issued(1, token="1" * 12), issued(2, token="2" * 12)])
    tail = seal(issued(3, token="3" * 12), verify(lines))[0]
    torn = tail[: cut % len(tail)] + junk
    path.write_bytes(b"".join(lines) + torn)
    ledger = opened(path)
    ledger.close()
    found = list(read_ledger(path))
    assert [record.token for record in found[:2]] == ["1" * 12, "2" * 12]
    assert not ledger.token_used("3" * 12)
    assert [(r.event, r.dropped_bytes) for r in found[2:]] == ([("recovered", len(torn))] if torn else [])


@pytest.mark.parametrize("damage", [b"garbage\n", b"\0" * 40 + b"\n", b"{}\n"])
def test_damage_other_than_a_torn_tail_keeps_the_ledger_from_opening(damage: bytes, tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    content = b"".join(chain([issued(1)])) + damage
    path.write_bytes(content)
    with pytest.raises(LedgerError, match="line 2"):
        opened(path)
    assert path.read_bytes() == content, "nothing was repaired away"


def test_endless_line_is_not_taken_for_a_torn_tail(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    path.write_bytes(b"x" * (MAX_LINE_BYTES + 1))
    with pytest.raises(LedgerError, match="more than"):
        opened(path)


class FullDisk(Disk):
    """A disk that accepts ``room`` more bytes and syncs only while ``syncs`` is true."""

    def __init__(self) -> None:
        self.room = 1 << 20
        self.syncs = True

    def write(self, descriptor: int, data: bytes) -> int:
        """Write as many bytes as there is room for."""
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = os.write(descriptor, data[: self.room])
        self.room -= written
        return written

    def sync(self, descriptor: int) -> None:
        """Sync unless ``syncs`` is false."""
        if not self.syncs:
            raise OSError(errno.EIO, "Input/output error")
        super().sync(descriptor)


@pytest.mark.parametrize("room", [0, 1, 50])
def test_a_record_is_refused_on_a_full_disk_and_the_chain_continues_once_there_is_room(
    room: int, tmp_path: Path
) -> None:
    disk = FullDisk()
    ledger = opened(tmp_path / "ledger", disk)
    ledger.append(issued(1))
    disk.room = room
    with pytest.raises(LedgerError, match=r"space|whole"):
        ledger.append(issued(2, token="a" * 12))
    assert not ledger.token_used("a" * 12)
    disk.room = 1 << 20
    ledger.append(issued(3))
    ledger.close()
    assert [record.identity for record in read_ledger(tmp_path / "ledger")] == ["spiffe://td/1", "spiffe://td/3"]


def test_after_a_failed_flush_nothing_is_recorded_until_a_restart(tmp_path: Path) -> None:
    disk = FullDisk()
    ledger = opened(tmp_path / "ledger", disk)
    disk.syncs = False
    with pytest.raises(LedgerError, match="flush"):
        ledger.append(issued(1))
    disk.syncs = True
    with pytest.raises(LedgerError, match="could not be flushed"):
        ledger.append(issued(2))
    ledger.close()


def test_no_field_of_a_record_could_hold_a_secret_or_a_key() -> None:
    """A new field is a decision: this table has to be changed with it."""
    assert {field.name for field in msgspec.structs.fields(LedgerRecord)} == {
        "event",
        "sequence",
        "time",
        "kind",
        "identity",
        "serial",
        "certificate",
        "not_after",
        "requester",
        "token",
        "dropped_bytes",
        "dropped_sha256",
        "previous",
        "digest",
    }
