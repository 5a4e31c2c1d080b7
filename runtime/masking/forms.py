"""The forms in which a value may be printed: as it is, in parts, or encoded."""

from __future__ import annotations

import base64
import html
import json
import urllib.parse
from collections.abc import Iterator

MIN_MASKED_BYTES = 8
"""Shorter values are not masked: they would match everywhere, and the text around the masks would reveal them."""
MIN_DISTINCT_BYTES = 4
"""Values with fewer different bytes, such as ``00000000``, are not masked for the same reason."""
MAX_LINES = 64
"""Maximum number of lines of a value that are masked separately, from the first; an RSA-4096 key in PEM has 52."""
MAX_VARIANT_BYTES = 4096
"""Longer values are masked only in their common forms: as they are, by line, in base64 and in hexadecimal."""
_COLUMNS = (76, 64)
"""Line lengths of base64 in MIME and PEM."""


def is_maskable(value: bytes) -> bool:
    """Whether ``value`` can be masked in the output of a job."""
    return _is_long_enough(value.strip())


def forms(value: bytes) -> frozenset[bytes]:
    """All forms to search for in order to mask ``value``; empty when the value cannot be masked."""
    text = value.strip()
    if not _is_long_enough(text):
        return frozenset()
    found = {text, *_lines(text), *_base64(text), text.hex().encode(), text.hex().upper().encode()}
    if len(text) <= MAX_VARIANT_BYTES:
        found.update(_escaped(text))
    return frozenset(each for each in found if _is_long_enough(each))


def _is_long_enough(text: bytes) -> bool:
    return len(text) >= MIN_MASKED_BYTES and len(set(text)) >= MIN_DISTINCT_BYTES


def _lines(text: bytes) -> Iterator[bytes]:
    lines = text.splitlines()
    if len(lines) > 1:
        # Lines such as "-----BEGIN PRIVATE KEY-----" are not secret.
        parts = (line.strip() for line in lines if not line.startswith(b"-----"))
        yield from [part for part in parts if part][:MAX_LINES]
        yield b"\r\n".join(lines)


def _base64(text: bytes) -> Iterator[bytes]:
    """Base64 forms, also within a longer text: for each alignment, the characters that depend only on ``text``."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for before in range(3):
            encoded = encode(bytes(before) + text).rstrip(b"=")
            # The first characters also depend on the bytes before the value, the last one on those after it.
            begin = (before * 8 + 5) // 6
            end = (before + len(text)) * 8 // 6
            yield encoded[begin:end]
    whole = base64.b64encode(text)
    for columns in _COLUMNS:
        if len(whole) > columns:
            yield b"\n".join(whole[at : at + columns] for at in range(0, len(whole), columns)).rstrip(b"=")


def _escaped(text: bytes) -> Iterator[bytes]:
    for quoted in (urllib.parse.quote(text, safe=""), urllib.parse.quote(text), urllib.parse.quote_plus(text)):
        yield quoted.encode()
        yield _lower_escapes(quoted).encode()
    yield repr(text)[2:-1].encode()
    try:
        decoded = text.decode()
    except UnicodeDecodeError:
        return
    yield json.dumps(decoded)[1:-1].encode()
    yield json.dumps(decoded, ensure_ascii=False)[1:-1].encode()
    yield repr(decoded)[1:-1].encode(errors="replace")
    yield html.escape(decoded).encode()


def _lower_escapes(quoted: str) -> str:
    """Write ``%2F`` as ``%2f``."""
    first, *others = quoted.split("%")
    return "%".join((first, *(other[:2].lower() + other[2:] for other in others)))
