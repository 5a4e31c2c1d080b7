"""Looks for secret values in text, whole or as a stream of pieces, and puts a mark in their place.

A value that is cut by the end of a piece is held back until the rest is there. Each form of a value is looked for by
itself with ``bytes.find``, which is fast native code; the time is linear in the text and in the number of forms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from sluice.runtime.masking.forms import MIN_MASKED_BYTES, forms

MAX_HELD_BYTES = 1 << 20
"""So much is held back at most; values are shorter. What is beyond was made to look like values: it is masked."""
_ANCHOR_BYTES = 8
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Form:
    text: bytes
    period: int
    """Two occurrences are so far apart at least."""
    mark: bytes


class Masker:
    """Knows the values by the names of their secrets; its representation says neither."""

    def __init__(self, values: Mapping[str, bytes]) -> None:
        found: dict[bytes, bytes] = {}
        for name, value in values.items():
            for form in forms(value):
                found.setdefault(form, f"[secret {name}]".encode())
        self._forms = tuple(_Form(text, _period(text), mark) for text, mark in found.items())

    @property
    def needed(self) -> bool:
        """Whether there is anything to look for."""
        return bool(self._forms)

    def mask(self, data: bytes) -> bytes:
        """``data`` with a mark in the place of each value."""
        return b"".join(_replaced(data, self._found(data), 0, len(data)))

    def mask_text(self, text: str) -> str:
        """The same for text."""
        if not self._forms or len(text) < MIN_MASKED_BYTES:
            return text
        data = text.encode(errors="surrogatepass")
        masked = self.mask(data)
        return text if masked == data else masked.decode(errors="replace")

    def mask_message(self, value: _T) -> _T:
        """A copy of a message (a msgspec struct of texts, numbers and collections of them), all its texts masked."""
        masked: _T = self._masked(value) if self._forms else value  # type: ignore[assignment]  # of the same type
        return masked

    def _masked(self, value: object) -> object:  # noqa: PLR0911  # a kind of value each
        match value:
            case str():
                # A member of an enumeration is one of ours, and would lose its type.
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
        """For what comes in pieces."""
        return MaskingStream(self)

    def _found(self, data: bytes) -> list[tuple[int, int, bytes]]:
        """Where values are, in order and without overlaps: begin, end, mark."""
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
        """Where the earliest part of ``data`` begins that goes on to its end and may become a value."""
        return min((_unfinished(data, form.text) for form in self._forms), default=len(data))

    def __repr__(self) -> str:
        return "<Masker>"


class MaskingStream:
    """One stream of pieces; not for several threads at once."""

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        """What can be passed on, now that ``piece`` has come."""
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
        """What is left when nothing more comes; the beginning of a value that was cut off is masked, too."""
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
    """Where the longest end of ``data`` begins that is a beginning of ``text``, but not all of it."""
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
    """The least distance of two overlapping occurrences: the length less that of its longest border.

    Long texts are not looked at so closely: 1 is always right, and only slower where a text repeats itself.
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
