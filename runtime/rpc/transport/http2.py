"""HTTP/2 for a connection that carries exactly one stream (RFC 9113). No sockets here.

An RPC connection is one request that never ends, in both directions. So only a part of HTTP/2 is needed: parsing and
building frames, and both flow-control windows. Further streams and server push are refused. The peer has proved its
identity before the first byte arrives, but is not trusted: every violation raises :class:`Http2Violation`, and every
length is checked before data is buffered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

import hpack

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The client's connection preface."""

STREAM: Final = 1
"""The id of the only stream."""

WINDOW_BYTES: Final = 4 << 20
"""Flow-control window granted to the peer, for the stream and for the connection."""

MAX_FRAME_BYTES: Final = 16_384
"""Largest accepted frame payload: the smallest value that HTTP/2 allows."""

MAX_HEADER_BYTES: Final = 16_384
"""Largest accepted header block, encoded and decoded."""

MAX_CONTINUATIONS: Final = 8
"""Maximum number of frames of one header block."""

_FRAME_HEADER: Final = 9
_LARGEST_WINDOW: Final = (1 << 31) - 1
_DEFAULT_WINDOW: Final = 65_535
_LARGEST_FRAME: Final = (1 << 24) - 1
_HEADER_TABLE: Final = 4096

_DATA, _HEADERS, _PRIORITY, _RST_STREAM, _SETTINGS, _PUSH_PROMISE, _PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = (
    range(10)
)
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _WITH_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
_HEADER_TABLE_SIZE, _ENABLE_PUSH, _MAX_STREAMS, _INITIAL_WINDOW, _MAX_FRAME, _MAX_HEADER_LIST = range(1, 7)

Headers = tuple[tuple[bytes, bytes], ...]


class Http2Violation(Exception):
    """The peer violated HTTP/2 or used an unsupported feature. The message contains nothing of the content."""


class StreamHandler(Protocol):
    """Receives the events of the stream."""

    def headers_received(self, headers: Headers) -> None:
        """The headers of the request or response."""

    def content_received(self, content: memoryview) -> None:
        """Content of the stream; the view is valid only during the call."""

    def end_received(self, reason: str) -> None:
        """The peer has ended its side of the stream."""


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Build one frame."""
    return b"".join((len(payload).to_bytes(3, "big"), bytes((kind, flags)), stream.to_bytes(4, "big"), payload))


class Http2Stream:
    """Either end of the stream. Output is collected until :meth:`take_output`."""

    def __init__(self, handler: StreamHandler, *, serving: bool) -> None:
        self._handler = handler
        self._serving = serving
        self._encoder = hpack.Encoder()
        self._decoder = hpack.Decoder(max_header_list_size=MAX_HEADER_BYTES)
        self._output: list[bytes] = []
        # Sending.
        self._peers_initial_window = _DEFAULT_WINDOW
        self._stream_window = _DEFAULT_WINDOW
        self._connection_window = _DEFAULT_WINDOW
        self._peers_max_frame = MAX_FRAME_BYTES
        self._held: deque[memoryview] = deque()
        self._opened = False
        self._ended = False
        # Receiving.
        self._input = bytearray()
        self._preface_due = serving
        self._settings_due = True
        self._unacknowledged = 0
        self._block: bytearray | None = None
        self._block_flags = 0
        self._block_frames = 0
        self._peer_opened = False
        self._peer_ended = False
        self._stopped = False
        self._start()

    # --- sending --------------------------------------------------------------------------------------

    @property
    def blocked(self) -> bool:
        """Whether the peer's flow control holds data back."""
        return bool(self._held)

    def take_output(self) -> bytes:
        """Return the bytes to write to the connection now."""
        output = self._output
        if not output:
            return b""
        data = output[0] if len(output) == 1 else b"".join(output)
        output.clear()
        return data

    def send_headers(self, headers: Sequence[tuple[str, str]], *, end: bool = False) -> None:
        """Send headers that open the stream, or trailers that end it."""
        self._opened = True
        flags = _END_HEADERS | (_END_STREAM if end else 0)
        self._ended |= end
        self._output.append(frame(_HEADERS, flags, STREAM, self._encoder.encode(headers)))

    def send_data(self, data: bytes) -> None:
        """Send as much as both windows allow, and the rest when the peer extends them."""
        if self._held or len(data) > min(self._stream_window, self._connection_window, self._peers_max_frame):
            self._held.append(memoryview(data))
            self._send_held()
            return
        self._stream_window -= len(data)
        self._connection_window -= len(data)
        self._output += (len(data).to_bytes(3, "big") + b"\x00\x00\x00\x00\x00\x01", data)

    def send_end(self) -> None:
        """End this direction."""
        self._ended = True
        self._output.append(frame(_DATA, _END_STREAM, STREAM, b""))

    def _send_held(self) -> None:
        held = self._held
        while held:
            size = min(len(held[0]), self._stream_window, self._connection_window, self._peers_max_frame)
            if size <= 0:
                return
            self._stream_window -= size
            self._connection_window -= size
            self._output += (size.to_bytes(3, "big") + b"\x00\x00\x00\x00\x00\x01", bytes(held[0][:size]))
            if size == len(held[0]):
                held.popleft()
            else:
                held[0] = held[0][size:]

    def _start(self) -> None:
        settings = {_MAX_STREAMS: 1} if self._serving else {_ENABLE_PUSH: 0}
        settings |= {_INITIAL_WINDOW: WINDOW_BYTES, _MAX_HEADER_LIST: MAX_HEADER_BYTES}
        payload = b"".join(key.to_bytes(2, "big") + value.to_bytes(4, "big") for key, value in settings.items())
        self._output += (b"" if self._serving else PREFACE, frame(_SETTINGS, 0, 0, payload))
        self._open_window(0, WINDOW_BYTES - _DEFAULT_WINDOW)

    def _open_window(self, stream: int, size: int) -> None:
        self._output.append(frame(_WINDOW_UPDATE, 0, stream, size.to_bytes(4, "big")))

    # --- receiving ------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Process received bytes; raises :class:`Http2Violation`, after which this must not be called again."""
        if self._input:
            self._input += data
            data = bytes(self._input)
            self._input.clear()
        view = memoryview(data)
        start = self._check_preface(view) if self._preface_due else 0
        while len(view) - start >= _FRAME_HEADER and not self._stopped and not self._preface_due:
            size = int.from_bytes(view[start : start + 3], "big")
            if size > MAX_FRAME_BYTES:
                raise Http2Violation(f"a frame of {size} bytes, at most {MAX_FRAME_BYTES} are accepted")
            end = start + _FRAME_HEADER + size
            if len(view) < end:
                break
            stream = int.from_bytes(view[start + 5 : start + 9], "big") & _LARGEST_WINDOW
            self._frame(view[start + 3], view[start + 4], stream, view[start + _FRAME_HEADER : end])
            start = end
        if start < len(view):
            self._input += view[start:]

    def stop(self) -> None:
        """Stop passing on events, even from bytes that were received already."""
        self._stopped = True

    def _check_preface(self, view: memoryview) -> int:
        given = min(len(view), len(PREFACE))
        if view[:given] != PREFACE[:given]:
            raise Http2Violation("it does not speak HTTP/2")
        if given < len(PREFACE):
            return 0
        self._preface_due = False
        return len(PREFACE)

    def _frame(self, kind: int, flags: int, stream: int, payload: memoryview) -> None:
        if self._settings_due:
            if kind != _SETTINGS or flags & _ACK:
                raise Http2Violation("its first frame is not SETTINGS")
            self._settings_due = False
        if (self._block is not None) != (kind == _CONTINUATION):
            raise Http2Violation("a header block was interrupted, or continued without being begun")
        if kind == _DATA:
            self._data(flags, stream, payload)
        elif kind == _HEADERS:
            self._headers(flags, stream, payload)
        elif kind == _CONTINUATION:
            self._continuation(flags, stream, payload)
        elif kind == _WINDOW_UPDATE:
            self._window_update(stream, payload)
        elif kind == _SETTINGS:
            self._settings(flags, stream, payload)
        else:
            self._control(kind, flags, stream, payload)

    def _data(self, flags: int, stream: int, payload: memoryview) -> None:
        if stream != STREAM or not self._peer_opened or self._peer_ended:
            raise Http2Violation("data on a stream that is not open")
        self._unacknowledged += len(payload)
        if self._unacknowledged > WINDOW_BYTES:
            raise Http2Violation("more data than its window allows")
        if self._unacknowledged >= WINDOW_BYTES // 2:
            # The exchange bounds the calls in flight, so the windows can be extended right away.
            self._open_window(0, self._unacknowledged)
            self._open_window(STREAM, self._unacknowledged)
            self._unacknowledged = 0
        content = _unpadded(flags, payload)
        if content:
            self._handler.content_received(content)
        if flags & _END_STREAM:
            self._end("the peer ended the stream")

    def _headers(self, flags: int, stream: int, payload: memoryview) -> None:
        if stream != STREAM:
            raise Http2Violation("a second stream")
        if self._peer_ended or (self._peer_opened and not flags & _END_STREAM) or not (self._serving or self._opened):
            raise Http2Violation("headers at a wrong place")
        block = _unpadded(flags, payload)
        if flags & _WITH_PRIORITY:
            if len(block) < 5:
                raise Http2Violation("a HEADERS frame that is too short")
            block = block[5:]
        self._block, self._block_flags, self._block_frames = bytearray(block), flags, 1
        if flags & _END_HEADERS:
            self._block_complete()

    def _continuation(self, flags: int, stream: int, payload: memoryview) -> None:
        block = self._block
        self._block_frames += 1
        if block is None or stream != STREAM or self._block_frames > MAX_CONTINUATIONS:
            raise Http2Violation("a header block that does not end")
        block += payload
        if len(block) > MAX_HEADER_BYTES:
            raise Http2Violation(f"a header block of more than {MAX_HEADER_BYTES} bytes")
        if flags & _END_HEADERS:
            self._block_complete()

    def _block_complete(self) -> None:
        block, self._block = bytes(self._block or b""), None
        try:
            headers = tuple((bytes(each[0]), bytes(each[1])) for each in self._decoder.decode(block, raw=True))
        except (hpack.HPACKError, ValueError, IndexError) as error:
            raise Http2Violation(f"a malformed header block: {type(error).__name__}") from None
        if not self._peer_opened:
            self._peer_opened = True
            self._handler.headers_received(headers)
        if self._block_flags & _END_STREAM:
            self._end("the peer ended the stream")

    def _settings(self, flags: int, stream: int, payload: memoryview) -> None:
        if stream != 0 or len(payload) % 6 or (flags & _ACK and len(payload)):
            raise Http2Violation("a malformed SETTINGS frame")
        if flags & _ACK:
            return
        for start in range(0, len(payload), 6):
            key = int.from_bytes(payload[start : start + 2], "big")
            self._setting(key, int.from_bytes(payload[start + 2 : start + 6], "big"))
        self._output.append(frame(_SETTINGS, _ACK, 0, b""))
        self._send_held()

    def _setting(self, key: int, value: int) -> None:
        if key == _INITIAL_WINDOW:
            if value > _LARGEST_WINDOW or self._stream_window + value - self._peers_initial_window > _LARGEST_WINDOW:
                raise Http2Violation("a window beyond all bounds")
            self._stream_window += value - self._peers_initial_window  # may become negative
            self._peers_initial_window = value
        elif key == _MAX_FRAME:
            if not MAX_FRAME_BYTES <= value <= _LARGEST_FRAME:
                raise Http2Violation("a frame size beyond all bounds")
            self._peers_max_frame = value
        elif key == _HEADER_TABLE_SIZE:
            self._encoder.header_table_size = min(value, _HEADER_TABLE)

    def _window_update(self, stream: int, payload: memoryview) -> None:
        if len(payload) != 4 or stream not in (0, STREAM):
            raise Http2Violation("a malformed WINDOW_UPDATE frame")
        size = int.from_bytes(payload, "big") & _LARGEST_WINDOW
        if stream == 0:
            self._connection_window += size
        else:
            self._stream_window += size
        if size == 0 or max(self._connection_window, self._stream_window) > _LARGEST_WINDOW:
            raise Http2Violation("a window that grows by nothing, or beyond all bounds")
        self._send_held()

    def _control(self, kind: int, flags: int, stream: int, payload: memoryview) -> None:
        if kind == _PING:
            if stream != 0 or len(payload) != 8:
                raise Http2Violation("a malformed PING frame")
            if not flags & _ACK:
                self._output.append(frame(_PING, _ACK, 0, bytes(payload)))
        elif kind == _RST_STREAM:
            if stream != STREAM or len(payload) != 4 or not (self._peer_opened or self._opened):
                raise Http2Violation("a malformed RST_STREAM frame")
            self._end(f"the peer reset the stream, code {int.from_bytes(payload, 'big')}")
        elif kind == _GOAWAY:
            if stream != 0 or len(payload) < 8:
                raise Http2Violation("a malformed GOAWAY frame")
            code = int.from_bytes(payload[4:8], "big")
            if code:  # without an error code, open streams continue
                self._end(f"the peer gave up the connection, code {code}")
        elif kind == _PUSH_PROMISE:
            raise Http2Violation("an unsolicited push")
        # PRIORITY and extension frames are ignored (RFC 9113, 5.5).

    def _end(self, reason: str) -> None:
        if not self._peer_ended:
            self._peer_ended = True
            self._handler.end_received(reason)


def _unpadded(flags: int, payload: memoryview) -> memoryview:
    if not flags & _PADDED:
        return payload
    if not len(payload) or payload[0] >= len(payload):
        raise Http2Violation("more padding than frame")
    return payload[1 : len(payload) - payload[0]]
