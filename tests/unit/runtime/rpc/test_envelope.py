"""The wire format: round trips, bounds, and arbitrary bytes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, strategies as st

from sluice.runtime.rpc import MessageTooLarge, ProtocolViolation, envelope as wire
from sluice.runtime.rpc.errors import MAX_MESSAGE_CHARS, MAX_TRACEBACK_CHARS

counts = st.integers(0, (1 << 62) - 1)
names = st.text(max_size=wire.MAX_NAME_CHARS)
tokens = st.none() | st.binary(max_size=wire.MAX_TOKEN_BYTES)
payloads = st.binary(max_size=200)
texts = st.text(max_size=100)
envelopes: st.SearchStrategy[wire.Envelope] = st.one_of(
    st.builds(wire.Hello, counts),
    st.builds(wire.Call, counts, names, names, tokens, payloads),
    st.builds(wire.Tell, names, names, tokens, payloads),
    st.builds(wire.Reply, counts, payloads),
    st.builds(wire.Failure, counts, names, texts, texts, texts),
    st.builds(wire.Cancel, counts),
    st.builds(wire.Consumed, counts, counts),
    st.builds(wire.Ping),
    st.builds(wire.Pong),
    st.builds(wire.Goodbye, texts),
)


@given(st.lists(envelopes, max_size=20))
def test_a_batch_survives_the_round_trip(batch: list[wire.Envelope]) -> None:
    assert wire.decode_batch(wire.join_batch([wire.encode_envelope(each) for each in batch])) == batch


@given(st.binary(max_size=2000))
def test_any_bytes_decode_to_a_batch_or_raise_a_protocol_violation(data: bytes) -> None:
    try:
        decoded = wire.decode_batch(data)
    except ProtocolViolation:
        return
    assert all(isinstance(each, msgspec.Struct) for each in decoded)


@given(st.lists(envelopes, min_size=1, max_size=5), st.data())
def test_a_truncated_or_corrupted_batch_raises_no_other_error_than_a_protocol_violation(
    batch: list[wire.Envelope], data: st.DataObject
) -> None:
    whole = bytearray(wire.join_batch([wire.encode_envelope(each) for each in batch]))
    position = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ProtocolViolation):
        wire.decode_batch(bytes(whole[:position]))
    whole[position] ^= data.draw(st.integers(1, 255))
    try:
        wire.decode_batch(bytes(whole))
    except ProtocolViolation:
        return


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param([wire.Ping, 1], id="ping-with-a-field"),
        pytest.param([0], id="hello-without-version"),
        pytest.param([10], id="unknown-tag"),
        pytest.param([-1], id="negative-tag"),
        pytest.param(["1"], id="text-tag"),
        pytest.param([], id="no-tag"),
        pytest.param([5, 1 << 62], id="id-too-large"),
        pytest.param([5, -1], id="id-negative"),
        pytest.param([5, True], id="id-bool"),
        pytest.param([1, 1, "e" * (wire.MAX_NAME_CHARS + 1), "m", None, b""], id="endpoint-too-long"),
        pytest.param([1, 1, "e", "m" * (wire.MAX_NAME_CHARS + 1), None, b""], id="method-too-long"),
        pytest.param([1, 1, "e", "m", b"t" * (wire.MAX_TOKEN_BYTES + 1), b""], id="token-too-long"),
        pytest.param([1, 1, "e", "m", None, "text"], id="arguments-text"),
        pytest.param([1, 1, "e", "m", None, []], id="arguments-nested"),
        pytest.param([4, 1, "e", "w" * (MAX_MESSAGE_CHARS + 100), "", ""], id="message-too-long"),
        pytest.param([4, 1, "e", "", "", "t" * (MAX_TRACEBACK_CHARS + 100)], id="traceback-too-long"),
    ],
)
def test_an_envelope_out_of_bounds_is_a_violation(fields: list[object]) -> None:
    plain = [7 if each is wire.Ping else each for each in fields]
    with pytest.raises(ProtocolViolation):
        wire.decode_batch(msgspec.msgpack.encode([plain]))


def test_a_protocol_violation_shows_nothing_of_the_content() -> None:
    with pytest.raises(ProtocolViolation) as caught:
        wire.decode_batch(msgspec.msgpack.encode([[1, "hunter2", "hunter2", "m", None, b"hunter2"]]))
    assert "hunter2" not in str(caught.value)


def test_the_largest_envelope_fits_and_one_byte_more_does_not() -> None:
    overhead = len(wire.encode_envelope(wire.Reply(1, bytes(1 << 20)))) - (1 << 20)
    largest = wire.encode_envelope(wire.Reply(1, bytes(wire.MAX_ENVELOPE_BYTES - overhead)))
    assert len(largest) == wire.MAX_ENVELOPE_BYTES
    assert len(wire.decode_batch(wire.join_batch([largest]))) == 1
    with pytest.raises(MessageTooLarge, match="blob server"):
        wire.encode_envelope(wire.Reply(1, bytes(wire.MAX_ENVELOPE_BYTES - overhead + 1)))


def test_a_batch_is_bounded_in_bytes_and_count() -> None:
    with pytest.raises(ProtocolViolation):
        wire.decode_batch(bytes(wire.MAX_BATCH_BYTES + 1))
    ping = wire.encode_envelope(wire.Ping())
    assert len(wire.decode_batch(wire.join_batch([ping] * wire.MAX_BATCH_ENVELOPES))) == wire.MAX_BATCH_ENVELOPES
    with pytest.raises(ProtocolViolation):
        wire.decode_batch(wire.join_batch([ping] * (wire.MAX_BATCH_ENVELOPES + 1)))
