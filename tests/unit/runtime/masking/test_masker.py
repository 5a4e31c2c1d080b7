"""Masking finds secret values in every form and across every boundary, and changes nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import urllib.parse
from collections.abc import Callable

import msgspec
import pytest

from sluice.runtime.masking import Masker, is_maskable
from sluice.runtime.masking.masker import MAX_HELD_BYTES

VALUE = b'p@ss/w0rd+geheim=%"quoted"\\x'
PEM = (
    b"-----BEGIN PRIVATE KEY-----\n"
    + b"\n".join(base64.b64encode(hashlib.sha384(bytes([seed])).digest()) for seed in range(4))
    + b"\n-----END PRIVATE KEY-----\n"
)


def masker(*values: bytes) -> Masker:
    return Masker((f"s{index}", value) for index, value in enumerate(values))


def streamed(what: Masker, pieces: list[bytes]) -> bytes:
    stream = what.stream()
    return b"".join([*(stream.feed(piece) for piece in pieces), stream.end()])


@pytest.mark.parametrize(
    "form",
    [
        lambda value: value,
        base64.b64encode,
        base64.urlsafe_b64encode,
        lambda value: base64.b64encode(b"user:" + value + b":tail"),
        lambda value: base64.b64encode(b"ab" + value),
        lambda value: value.hex().encode(),
        lambda value: value.hex().upper().encode(),
        lambda value: urllib.parse.quote(value, safe="").encode(),
        lambda value: urllib.parse.quote_plus(value).encode(),
        lambda value: json.dumps(value.decode()).encode(),
        lambda value: repr(value).encode(),
        lambda value: repr({"password": value.decode()}).encode(),
    ],
)
def test_every_encoded_form_of_a_value_is_masked(form: Callable[[bytes], bytes]) -> None:
    printed = b"before " + form(VALUE) + b" after"
    masked = masker(VALUE).mask(printed)
    assert b"[secret s0]" in masked
    assert masked.startswith(b"before ")
    assert masked.endswith(b" after")
    # What is left of base64 are characters that depend on the neighbours, too.
    assert form(VALUE)[4:-6] not in masked


@pytest.mark.parametrize("value", [VALUE, PEM, b"aXXXXXXXYZa", hashlib.sha512(b"1").digest() * 4 + b"x"])
def test_a_value_split_at_any_boundary_is_masked(value: bytes) -> None:
    text = value.strip()
    printed = b"begin " + text + b" middle " + text + text + b" end"
    whole = masker(value).mask(printed)
    assert text not in whole
    for cut in range(len(printed)):
        assert streamed(masker(value), [printed[:cut], printed[cut:]]) == whole
    assert streamed(masker(value), [bytes([byte]) for byte in printed]) == whole


def test_random_chunks_and_their_whole_text_are_masked_without_leaving_a_value() -> None:
    chance = random.Random(3)  # noqa: S311  # no secret
    values = [b"aab" * 4 + b"cd", b"abcdaabaab", b"daabaabcab!"]
    what = masker(*values)
    for _ in range(200):
        printed = b"".join(chance.choice([*values, b"aab", b"d", b"abcdaab", b"\n"]) for _ in range(30))
        pieces, rest = [], printed
        while rest:
            size = chance.randint(1, 9)
            pieces.append(rest[:size])
            rest = rest[size:]
        for result in (what.mask(printed), streamed(what, pieces)):
            assert not any(value in result for value in values)


def test_overlapping_occurrences_of_a_value_are_masked_completely() -> None:
    value = b"a1234567a"
    assert masker(value).mask(b"a1234567a1234567a1234567a") == b"[secret s0]"


def test_single_lines_of_a_pem_value_are_masked_but_not_its_frame() -> None:
    line = PEM.splitlines()[3]
    assert masker(PEM).mask(b"  " + line + b"  ") == b"  [secret s0]  "
    assert masker(PEM).mask(b"-----BEGIN PRIVATE KEY-----") == b"-----BEGIN PRIVATE KEY-----"
    assert line not in masker(PEM).mask(PEM.replace(b"\n", b"\r\n"))


@pytest.mark.parametrize("value", [b"short", b"", b"       ", b"0000000000000000", b" 1234567 \n"])
def test_short_or_trivial_values_are_not_masked(value: bytes) -> None:
    assert not is_maskable(value)
    assert not masker(value).needed
    assert masker(value).mask(b"0000000000000000 short 1234567") == b"0000000000000000 short 1234567"


def test_a_value_cut_off_at_the_end_of_a_stream_is_masked() -> None:
    stream = masker(VALUE).stream()
    assert stream.feed(b"x " + VALUE[:-1]) == b"x "
    assert stream.end() == b"[secret]"


def test_a_stream_holds_back_no_text_that_cannot_become_a_value() -> None:
    stream = masker(VALUE, PEM).stream()
    assert stream.feed(b"a line\n") == b"a line\n"


def test_the_text_that_a_stream_holds_back_is_bounded() -> None:
    value = b"ab" * 30_000 + b"cd"
    stream = masker(value).stream()
    piece = b"ab" * 30_000
    for _ in range(60):
        stream.feed(piece)
    assert len(stream._held) <= MAX_HELD_BYTES


class Report(msgspec.Struct, frozen=True):
    error: str
    parts: tuple[str, ...]
    more: dict[str, str]
    body: bytes
    number: int = 3


def test_all_texts_of_a_message_are_masked() -> None:
    value = VALUE.decode()
    report = Report(f"failed: {value}", ("a", value), {"k": value}, VALUE)
    masked = masker(VALUE).mask_message(report)
    assert value not in repr(masked)
    assert masked.number == 3
    assert masked.parts[0] == "a"
    assert value not in repr(masker(VALUE))
