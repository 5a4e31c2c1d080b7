"""HTTP/2 with one stream, against h2 as the peer.

Input arrives in any chunks, and includes what no correct peer sends.
"""

from __future__ import annotations

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, RequestReceived, ResponseReceived, StreamEnded
from hypothesis import given, settings, strategies as st

from sluice.runtime.rpc.transport.http2 import (
    MAX_CONTINUATIONS,
    MAX_FRAME_BYTES,
    PREFACE,
    WINDOW_BYTES,
    Headers,
    Http2Stream,
    Http2Violation,
    frame,
)

REQUEST = [(":method", "POST"), (":scheme", "https"), (":path", "/x"), (":authority", "y"), ("content-type", "z")]
SETTINGS = frame(4, 0, 0, b"")
OPEN = frame(1, 0x4, 1, b"\x83")  # :method POST, from the static table


class Heard:
    """A receiver that records what it is given."""

    def __init__(self) -> None:
        self.headers: list[Headers] = []
        self.content = bytearray()
        self.ends: list[str] = []

    def headers_received(self, headers: Headers) -> None:
        self.headers.append(headers)

    def content_received(self, content: memoryview) -> None:
        self.content += content

    def end_received(self, reason: str) -> None:
        self.ends.append(reason)


def server() -> tuple[Http2Stream, Heard]:
    heard = Heard()
    return Http2Stream(heard, serving=True), heard


def client() -> tuple[Http2Stream, Heard]:
    heard = Heard()
    return Http2Stream(heard, serving=False), heard


def opened() -> tuple[Http2Stream, Heard]:
    stream, heard = server()
    stream.receive(PREFACE + SETTINGS + OPEN)
    stream.take_output()
    return stream, heard


def exchange(ours: Http2Stream, theirs: H2Connection) -> list[Event]:
    """Carry bytes in both directions until neither side has more to send; return the peer's events."""
    events: list[Event] = []
    while True:
        output, answer = ours.take_output(), theirs.data_to_send()
        if not output and not answer:
            return events
        if output:
            events += theirs.receive_data(output)
        if answer:
            ours.receive(answer)


def test_our_server_interoperates_with_an_h2_client() -> None:
    ours, heard = server()
    theirs = H2Connection(H2Configuration(client_side=True, header_encoding="ascii"))
    theirs.initiate_connection()
    theirs.send_headers(1, REQUEST)
    theirs.send_data(1, b"hello", pad_length=7)
    exchange(ours, theirs)
    assert dict(heard.headers[0])[b":path"] == b"/x"
    assert bytes(heard.content) == b"hello"
    ours.send_headers([(":status", "200")])
    ours.send_data(b"world")
    ours.send_headers([("grpc-status", "0")], end=True)
    events = exchange(ours, theirs)
    assert [type(each) for each in events if isinstance(each, ResponseReceived | DataReceived | StreamEnded)] == [
        ResponseReceived,
        DataReceived,
        StreamEnded,
    ]
    theirs.end_stream(1)
    exchange(ours, theirs)
    assert heard.ends == ["the peer ended the stream"]


def test_our_client_interoperates_with_an_h2_server() -> None:
    ours, heard = client()
    theirs = H2Connection(H2Configuration(client_side=False, header_encoding="ascii"))
    theirs.initiate_connection()
    ours.send_headers(REQUEST)
    ours.send_data(b"hello")
    ours.send_end()
    events = exchange(ours, theirs)
    assert any(isinstance(each, RequestReceived) for each in events)
    assert b"".join(each.data for each in events if isinstance(each, DataReceived) and each.data) == b"hello"
    theirs.send_headers(1, [(":status", "200")])
    theirs.send_data(1, b"world")
    theirs.send_headers(1, [("grpc-status", "0")], end_stream=True)
    exchange(ours, theirs)
    assert (heard.headers, bytes(heard.content)) == ([((b":status", b"200"),)], b"world")
    assert heard.ends == ["the peer ended the stream"]


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=3000), max_size=20), st.integers(1, 400))
def test_content_arrives_complete_in_any_chunks(messages: list[bytes], chunk: int) -> None:
    sender, _ = client()
    receiver, heard = server()
    sender.send_headers(REQUEST)
    for message in messages:
        sender.send_data(message)
    data = sender.take_output()
    for start in range(0, len(data), chunk):
        receiver.receive(data[start : start + chunk])
    assert bytes(heard.content) == b"".join(messages)


def test_data_beyond_the_flow_control_windows_waits_until_they_are_opened() -> None:
    """Ten megabytes against windows of 64 KiB: stream and connection windows count, and updates are used."""
    ours, _ = client()
    theirs = H2Connection(H2Configuration(client_side=False, header_encoding="ascii"))
    theirs.initiate_connection()
    ours.send_headers(REQUEST)
    content = bytes(range(256)) * 40_960
    ours.send_data(content)
    ours.send_data(b"the end")
    assert ours.blocked
    received = bytearray()
    while True:
        events = exchange(ours, theirs)
        if not events:
            break
        for each in events:
            if isinstance(each, DataReceived):
                received += each.data or b""
                theirs.acknowledge_received_data(each.flow_controlled_length or 0, 1)
    assert received == content + b"the end"
    assert not ours.blocked


def test_the_flow_control_window_of_the_peer_is_reopened_while_it_sends() -> None:
    ours, heard = server()
    theirs = H2Connection(H2Configuration(client_side=True, header_encoding="ascii"))
    theirs.initiate_connection()
    theirs.send_headers(1, REQUEST)
    exchange(ours, theirs)
    sent = 0
    while sent < 3 * WINDOW_BYTES:
        size = min(theirs.local_flow_control_window(1), MAX_FRAME_BYTES)
        assert size > 0
        theirs.send_data(1, bytes(size))
        exchange(ours, theirs)
        sent += size
    assert len(heard.content) == sent


def test_a_reduced_initial_window_blocks_sending_until_a_window_update() -> None:
    ours, _ = opened()
    ours.send_headers([(":status", "200")])
    ours.send_data(bytes(60_000))
    ours.receive(frame(4, 0, 0, b"\x00\x04\x00\x00\x00\x0a"))
    ours.take_output()
    ours.send_data(b"waits")
    assert ours.blocked
    ours.receive(frame(8, 0, 1, (70_000).to_bytes(4, "big")))
    assert not ours.blocked


def test_pings_are_answered_and_irrelevant_frames_are_ignored() -> None:
    ours, heard = opened()
    ours.receive(frame(6, 0, 0, b"12345678") + frame(6, 1, 0, b"87654321"))
    assert ours.take_output() == frame(6, 1, 0, b"12345678")
    ours.receive(frame(2, 0, 1, bytes(5)) + frame(0xBE, 0xFF, 1, b"x") + frame(7, 0, 0, bytes(8)))
    ours.receive(frame(0, 0, 1, b"still here"))
    assert bytes(heard.content) == b"still here"


def test_data_received_after_stop_is_not_passed_on() -> None:
    ours, heard = opened()
    ours.stop()
    ours.receive(frame(0, 0, 1, b"late"))
    assert heard.content == b""


def test_a_stream_reset_and_a_connection_error_end_the_stream() -> None:
    for data, reason in (
        (frame(3, 0, 1, (8).to_bytes(4, "big")), "the peer reset the stream, code 8"),
        (frame(7, 0, 0, bytes(4) + (11).to_bytes(4, "big")), "the peer gave up the connection, code 11"),
    ):
        ours, heard = opened()
        ours.receive(data + data)
        assert heard.ends == [reason]


VIOLATIONS = [
    pytest.param(b"GET / HTTP/1.1\r\n", "does not speak HTTP/2", id="http1"),
    pytest.param(PREFACE + OPEN, "not SETTINGS", id="headers-first"),
    pytest.param(PREFACE + frame(4, 1, 0, b""), "not SETTINGS", id="ack-first"),
    pytest.param(PREFACE + frame(4, 0, 0, b"12345"), "SETTINGS", id="settings-of-five-bytes"),
    pytest.param(PREFACE + frame(4, 0, 1, b""), "SETTINGS", id="settings-on-the-stream"),
    pytest.param(PREFACE + SETTINGS + frame(4, 1, 0, b"123456"), "SETTINGS", id="ack-with-content"),
    pytest.param(PREFACE + frame(4, 0, 0, b"\x00\x04\x80\x00\x00\x00"), "window", id="window-of-two-gigabytes"),
    pytest.param(PREFACE + frame(4, 0, 0, b"\x00\x05\x00\x00\x00\x01"), "frame size", id="frames-of-one-byte"),
    pytest.param(PREFACE + SETTINGS + b"\x00\x40\x01\x00" + bytes(5), "a frame of 16385", id="large-frame"),
    pytest.param(PREFACE + SETTINGS + frame(0, 0, 1, b"x"), "not open", id="data-before-headers"),
    pytest.param(PREFACE + SETTINGS + OPEN + frame(0, 0, 3, b"x"), "not open", id="data-of-another-stream"),
    pytest.param(PREFACE + SETTINGS + OPEN + frame(0, 8, 1, b"\x05xxxx"), "padding", id="padding-too-long"),
    pytest.param(PREFACE + SETTINGS + OPEN + frame(0, 8, 1, b""), "padding", id="padding-without-length"),
    pytest.param(PREFACE + SETTINGS + OPEN + OPEN, "wrong place", id="headers-twice"),
    pytest.param(PREFACE + SETTINGS + OPEN + frame(1, 0x4, 3, b"\x83"), "second stream", id="second-stream"),
    pytest.param(PREFACE + SETTINGS + frame(1, 0x24, 1, b"\x83"), "too short", id="priority-cut-off"),
    pytest.param(PREFACE + SETTINGS + frame(1, 0x4, 1, b"\xff\xff\xff\xff\xff"), "header block", id="not-hpack"),
    pytest.param(PREFACE + SETTINGS + frame(1, 0x4, 1, b"\xbe"), "header block", id="unknown-index"),
    pytest.param(PREFACE + SETTINGS + frame(9, 0x4, 1, b"\x83"), "header block", id="continuation-alone"),
    pytest.param(PREFACE + SETTINGS + frame(1, 0, 1, b"\x83") + frame(6, 0, 0, bytes(8)), "header", id="interrupted"),
    pytest.param(
        PREFACE + SETTINGS + frame(1, 0, 1, b"") + frame(9, 0, 1, b"") * MAX_CONTINUATIONS, "end", id="continued"
    ),
    pytest.param(
        PREFACE + SETTINGS + frame(1, 0, 1, bytes(9000)) + frame(9, 0, 1, bytes(9000)), "16384", id="long-headers"
    ),
    pytest.param(
        PREFACE + SETTINGS + frame(1, 0x4, 1, b"\x40\x01a\x7f\xb9\x16" + b"a" * 3000 + b"\xbe" * 16),
        "malformed header block: OversizedHeaderListError",
        id="header-bomb",
    ),
    pytest.param(PREFACE + SETTINGS + frame(5, 0x4, 1, bytes(4)), "push", id="push"),
    pytest.param(PREFACE + SETTINGS + frame(6, 0, 0, b"1"), "PING", id="short-ping"),
    pytest.param(PREFACE + SETTINGS + frame(3, 0, 1, bytes(4)), "RST_STREAM", id="reset-before-headers"),
    pytest.param(PREFACE + SETTINGS + frame(7, 0, 0, b""), "GOAWAY", id="short-goaway"),
    pytest.param(PREFACE + SETTINGS + frame(8, 0, 0, bytes(4)), "grows by nothing", id="window-by-nothing"),
    pytest.param(PREFACE + SETTINGS + frame(8, 0, 0, b"\x7f\xff\xff\xff"), "beyond", id="window-overflow"),
    pytest.param(PREFACE + SETTINGS + frame(8, 0, 5, bytes(4)), "WINDOW_UPDATE", id="window-of-another-stream"),
]


@pytest.mark.parametrize(("data", "words"), VIOLATIONS)
def test_frames_that_no_correct_peer_sends_are_a_violation(data: bytes, words: str) -> None:
    ours, _ = server()
    with pytest.raises(Http2Violation, match=words):
        ours.receive(data)


def test_more_data_than_the_window_is_a_violation() -> None:
    ours, heard = opened()
    ours._unacknowledged = WINDOW_BYTES - 10
    with pytest.raises(Http2Violation, match="window"):
        ours.receive(frame(0, 0, 1, bytes(11)))
    assert heard.content == b""


def test_data_after_the_end_is_a_violation() -> None:
    ours, _ = opened()
    with pytest.raises(Http2Violation, match="not open"):
        ours.receive(frame(0, 1, 1, b"") + frame(0, 0, 1, b"more"))


def test_a_response_before_any_request_is_a_violation() -> None:
    ours, _ = client()
    with pytest.raises(Http2Violation, match="wrong place"):
        ours.receive(SETTINGS + frame(1, 0x4, 1, b"\x88"))


@settings(max_examples=200)
@given(st.binary(max_size=400))
def test_garbage_raises_no_other_error_than_a_violation(garbage: bytes) -> None:
    for start in (b"", PREFACE + SETTINGS, PREFACE + SETTINGS + OPEN):
        ours, _ = server()
        try:
            ours.receive(start + garbage)
        except Http2Violation:
            continue
