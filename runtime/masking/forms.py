"""The forms in which a value may be printed: as it is, in parts, encoded."""

from __future__ import annotations

import base64
import html
import json
import urllib.parse
from collections.abc import Iterator

MIN_MASKED_BYTES = 8
"""Shorter values are not masked: they would be found everywhere, and what is left around the masks would tell them."""
MIN_DISTINCT_BYTES = 4
"""Likewise for values such as ``00000000``."""
MAX_LINES = 64
"""Lines of one value that are masked by themselves, the first ones; a key of RSA-4096 in PEM has 52."""
MAX_VARIANT_BYTES = 4096
"""Longer values are masked in their common forms alone: as they are, their lines, and in base64 and hexadecimal."""
_COLUMNS = (76, 64)
"""Where encoders of base64 break lines: MIME, PEM."""


def is_maskable(value: bytes) -> bool:
    """Whether what a job prints of ``value`` can be masked."""
    return _is_long_enough(value.strip())


def forms(value: bytes) -> frozenset[bytes]:
    """All that is looked for where ``value`` must not be seen; nothing for one that cannot be masked."""
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
        # Frames such as "-----BEGIN PRIVATE KEY-----" are no secret.
        parts = (line.strip() for line in lines if not line.startswith(b"-----"))
        yield from [part for part in parts if part][:MAX_LINES]
        yield b"\r\n".join(lines)


def _base64(text: bytes) -> Iterator[bytes]:
    """In base64, also as a part of something longer: of each of the three alignments what the value alone decides."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for before in range(3):
            encoded = encode(bytes(before) + text).rstrip(b"=")
            # The first characters depend on what is before, the last one on what is behind.
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
    """``%2F`` as ``%2f``."""
    first, *others = quoted.split("%")
    return "%".join((first, *(other[:2].lower() + other[2:] for other in others)))
