"""Replaces secret values in text by marks, in a whole text or in a stream of chunks.

A value that is split by the end of a chunk is held back until the rest arrives. Each form of a value is searched
separately with ``bytes.find``, which is fast native code. The time is linear in the text and in the number of forms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from sluice.runtime.masking.forms import MIN_MASKED_BYTES, forms

MAX_HELD_BYTES = 1 << 20
"""Maximum number of bytes held back; values are shorter. More was forged to look like values, and is masked."""
_ANCHOR_BYTES = 8
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Form:
    text: bytes
    period: int
    """Minimum distance between two occurrences."""
    mark: bytes


class Masker:
    """Masks values, each with the name of its secret. Its ``repr`` reveals neither."""

    def __init__(self, values: Iterable[tuple[str, bytes]]) -> None:
        """``values`` are names of secrets with their contents; a name may occur with several contents."""
        found: dict[bytes, bytes] = {}
        for name, value in values:
            for form in forms(value):
                found.setdefault(form, f"[secret {name}]".encode())
        self._forms = tuple(_Form(text, _period(text), mark) for text, mark in found.items())

    @property
    def needed(self) -> bool:
        """Whether there is anything to mask."""
        return bool(self._forms)

    def mask(self, data: bytes) -> bytes:
        """Return ``data`` with each value replaced by a mark."""
        return b"".join(_replaced(data, self._found(data), 0, len(data)))

    def mask_text(self, text: str) -> str:
        """Return ``text`` with each value replaced by a mark."""
        if not self._forms or len(text) < MIN_MASKED_BYTES:
            return text
        data = text.encode(errors="surrogatepass")
        masked = self.mask(data)
        return text if masked == data else masked.decode(errors="replace")

    def mask_message(self, value: _T) -> _T:
        """Return a copy of a message (a msgspec struct of strings, numbers and collections) with masked strings."""
        masked: _T = self._masked(value) if self._forms else value  # type: ignore[assignment]  # of the same type
        return masked

    def _masked(self, value: object) -> object:  # noqa: PLR0911  # one return per kind of value
        match value:
            case str():
                # A member of an enum is one of ours, and would lose its type.
                return self.mask_text(value) if type(value) is str else value
            case bytes():
                return self.mask(value)
            case tuple():
                return tuple(map(self._masked, value))
            case list():
                return list(map(self._masked, value))
            case dict():
                return {self._masked(key): self._masked(each) for key, each in value.items()}
            case msgspec.Struct():
                changed = {name: self._masked(getattr(value, name)) for name in value.__struct_fields__}
                return msgspec.structs.replace(value, **changed)
            case _:
                return value

    def stream(self) -> MaskingStream:
        """Return a masker for a stream of chunks."""
        return MaskingStream(self)

    def _found(self, data: bytes) -> list[tuple[int, int, bytes]]:
        """The positions of values, in order and without overlaps: begin, end, mark."""
        places = sorted((at, at + len(form.text), form.mark) for form in self._forms for at in _occurrences(data, form))
        merged: list[tuple[int, int, bytes]] = []
        for begin, end, mark in places:
            if merged and begin < merged[-1][1]:
                if end > merged[-1][1]:
                    merged[-1] = (merged[-1][0], end, merged[-1][2])
            else:
                merged.append((begin, end, mark))
        return merged

    def _unfinished(self, data: bytes) -> int:
        """The earliest position from which the rest of ``data`` may be the beginning of a value."""
        return min((_unfinished(data, form.text) for form in self._forms), default=len(data))

    def __repr__(self) -> str:
        return "<Masker>"


class MaskingStream:
    """Masks one stream of chunks. Not thread-safe."""

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        """Take the next chunk; return the masked bytes that can be passed on."""
        masker, data = self._masker, self._held + piece
        places = masker._found(data)  # noqa: SLF001  # two classes of one module
        cut = masker._unfinished(data)  # noqa: SLF001  # likewise
        for begin, end, _ in reversed(places):
            if begin < cut < end:
                cut = begin
        if len(data) - cut > MAX_HELD_BYTES:
            self._held = b""
            return b"".join(_replaced(data, [*(p for p in places if p[1] <= cut), (cut, len(data), b"[secret]")]))
        self._held = data[cut:]
        return b"".join(_replaced(data, [place for place in places if place[1] <= cut], 0, cut))

    def end(self) -> bytes:
        """End the stream; return the masked rest. The beginning of a truncated value is masked, too."""
        data, self._held = self._held, b""
        masked = self._masker.mask(data)
        return b"[secret]" if masked == data and len(data) >= MIN_MASKED_BYTES else masked


def _replaced(
    data: bytes, places: Iterable[tuple[int, int, bytes]], begin: int = 0, end: int | None = None
) -> Iterator[bytes]:
    at = begin
    for first, last, mark in places:
        yield data[at:first]
        yield mark
        at = last
    yield data[at : len(data) if end is None else end]


def _occurrences(data: bytes, form: _Form) -> Iterator[int]:
    at = data.find(form.text)
    while at >= 0:
        yield at
        at = data.find(form.text, at + form.period)


def _unfinished(data: bytes, text: bytes) -> int:
    """The position of the longest suffix of ``data`` that is a proper prefix of ``text``."""
    start = max(0, len(data) - len(text) + 1)
    anchor = text[:_ANCHOR_BYTES]
    at = data.find(anchor, start)
    while at >= 0:
        if text.startswith(data[at:]):
            return at
        at = data.find(anchor, at + 1)
    for at in range(max(start, len(data) - len(anchor) + 1), len(data)):
        if text.startswith(data[at:]):
            return at
    return len(data)


def _period(text: bytes) -> int:
    """The minimum distance between two overlapping occurrences: the length minus that of the longest border.

    For long texts this returns 1, which is always correct, and only slower where a text repeats itself.
    """
    if len(text) > 4096:
        return 1
    border = [0] * len(text)
    matched = 0
    for at in range(1, len(text)):
        while matched and text[at] != text[matched]:
            matched = border[matched - 1]
        if text[at] == text[matched]:
            matched += 1
        border[at] = matched
    return len(text) - border[-1]
