"""The hash chain of the audit log: verification finds changes and where they are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from sluice.core.files.append_log import GENESIS, ChainState
from sluice.gateway.audit_log.chain import (
    MAX_UNSIGNED_RECORDS,
    AuditRecord,
    ChainReader,
    parse_checkpoint,
    seal,
    seal_checkpoint,
    verify,
)
from sluice.gateway.audit_log.keys import SigningKey, VerificationKey
from sluice.gateway.errors import AuditLogError


def key() -> SigningKey:
    private = ec.generate_private_key(ec.SECP256R1())
    return SigningKey(private, VerificationKey(private.public_key()).id)


KEY, OTHER = key(), key()
CHECK = KEY.public.checker()


def decision(path: str = "/v1/jobs") -> AuditRecord:
    return AuditRecord(event="decision", path=path, decision="allow", status=200)


def chain(count: int, state: ChainState | None = None) -> list[bytes]:
    lines, state = [], state or ChainState()
    for number in range(count):
        line, state = seal(decision(f"/{number}"), state)
        lines.append(line)
    return lines


def signed(lines: list[bytes], by: SigningKey = KEY) -> list[bytes]:
    """Return ``lines`` followed by a signed checkpoint."""
    return [*lines, seal_checkpoint(verify(lines), time="2026-01-01T00:00:00.000Z", key=by.id, sign=by.sign)[0]]


def test_empty_log_is_a_valid_chain() -> None:
    assert verify([]) == ChainState(0, GENESIS)


def test_records_of_a_valid_chain_are_counted() -> None:
    assert verify(chain(5)).count == 5
    assert verify(signed(chain(5)), CHECK).count == 6


@pytest.mark.parametrize(
    ("change", "line"),
    [
        pytest.param(lambda lines: lines[1:], 1, id="first removed"),
        pytest.param(lambda lines: [*lines[:2], *lines[3:]], 3, id="one removed"),
        pytest.param(lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], 2, id="two swapped"),
        pytest.param(lambda lines: [*lines[:2], lines[1], *lines[2:]], 3, id="one repeated"),
        pytest.param(lambda lines: [lines[0].replace(b"allow", b"deny"), *lines[1:]], 2, id="one changed"),
        pytest.param(lambda lines: [lines[0].replace(b'"/0"', b'"/9"'), *lines[1:]], 2, id="path changed"),
        pytest.param(lambda lines: [lines[0].replace(b'"/0"', b'"/0" '), *lines[1:]], 2, id="blank added"),
        pytest.param(lambda lines: [*lines[:2], b"{}\n", *lines[2:]], 3, id="one inserted"),
        pytest.param(lambda lines: [*lines[:4], lines[4][:20]], 5, id="last cut short"),
        pytest.param(lambda lines: [*lines, *chain(1)], 6, id="another log appended"),
        pytest.param(lambda lines: [*lines[:2], b"\n", *lines[2:]], 3, id="empty line"),
        pytest.param(lambda lines: [*lines[:2], b"a" * 20_000 + b"\n", *lines[2:]], 3, id="line too long"),
    ],
)
def test_changed_chain_is_an_error_that_names_the_line(change: Callable[[list[bytes]], list[bytes]], line: int) -> None:
    with pytest.raises(AuditLogError, match=f"line {line} "):
        verify(change(chain(5)))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda line: line.replace(b"2026-01-01", b"2026-01-02"), id="another time"),
        pytest.param(lambda line: line.replace(b'"signature":"', b'"signature":"AAAA'), id="another signature"),
        pytest.param(lambda line: line.replace(KEY.id.encode(), OTHER.id.encode()), id="another key's id"),
        pytest.param(lambda line: line.replace(b'"}\n', b'" }\n'), id="blank after the signature"),
        pytest.param(lambda line: line[: line.index(b',"signature"')] + b"}\n", id="no signature"),
        pytest.param(lambda line: line.replace(b'"status":0', b'"status":1'), id="a field that nobody reads"),
    ],
)
def test_changed_last_checkpoint_is_detected(change: Callable[[bytes], bytes]) -> None:
    """No later line chains over it: its signature alone shows the change."""
    lines = signed(chain(3))
    assert change(lines[-1]) != lines[-1]
    with pytest.raises(AuditLogError, match="line 4 is"):
        verify([*lines[:-1], change(lines[-1])], CHECK)


def test_checkpoint_signed_with_another_key_is_refused() -> None:
    with pytest.raises(AuditLogError, match="line 4 is a checkpoint that this log's key has not signed"):
        verify(signed(chain(3), OTHER), CHECK)


def test_checkpoint_copied_into_another_chain_is_refused() -> None:
    """A new chain with an old checkpoint in it: the signature covers the digest of all lines before."""
    old = signed(chain(3))[-1]
    forged = chain(2)
    line, _ = seal(decision("/forged"), verify(forged))
    with pytest.raises(AuditLogError, match="line 4 does not follow"):
        verify([*forged, line, old], CHECK)


def test_rewritten_chain_without_checkpoints_is_detected() -> None:
    with pytest.raises(AuditLogError, match="checkpoints were removed"):
        verify(chain(MAX_UNSIGNED_RECORDS + 1), CHECK)


def test_kept_checkpoint_must_be_signed() -> None:
    lines = signed(chain(3))
    kept = parse_checkpoint(lines[-1], CHECK)
    assert (kept.sequence, kept.digest) == (4, verify(lines).digest)
    for bad in (lines[0], lines[-1].replace(b"2026", b"2027"), b"", b"{}", lines[-1] * 1000):
        with pytest.raises(AuditLogError, match="not one that this log's key has signed"):
            parse_checkpoint(bad, CHECK)


def test_chain_reader_counts_unsigned_records() -> None:
    reader = ChainReader(CHECK)
    for line in [*(lines := signed(chain(3))), *chain(2, verify(lines))]:
        reader.take(line)
    assert reader.unsigned == 2
    assert reader.checkpoint is not None
    assert reader.checkpoint.sequence == 4
