"""TLS codec and key schedule, tested with the example of RFC 8448 and with arbitrary peer input."""

from __future__ import annotations

import contextlib

import pytest
from cryptography.hazmat.primitives import hashes
from hypothesis import given, strategies as st

from sluice.audit.errors import WireError
from sluice.audit.wire.client import Verdict
from sluice.audit.wire.codec import Reader, number, vector
from sluice.audit.wire.connection import (
    Alert,
    Closed,
    MessageReader,
    Silent,
    alert_of,
    printable,
)
from sluice.audit.wire.hello import RETRY_RANDOM, ClientHello, parse_server_hello
from sluice.audit.wire.numbers import WEAK_GROUPS, Version
from sluice.audit.wire.schedule import (
    SUITES,
    KeySchedule,
    Protection,
    expand_label,
)


def server_hello(
    *, version: int = 0x0304, suite: int = 0x1301, compression: int = 0, random: bytes = b"\x01" * 32, group: int = 0x1D
) -> bytes:
    """The body of a TLS 1.3 ServerHello."""
    share = number(group, 2) + (b"" if random == RETRY_RANDOM else vector(b"k" * 32, 2))
    extensions = number(43, 2) + vector(number(version, 2), 2) + number(51, 2) + vector(share, 2)
    return b"\x03\x03" + random + vector(b"s" * 32, 1) + number(suite, 2) + bytes([compression]) + vector(extensions, 2)


def test_a_server_hello_is_parsed() -> None:
    hello = parse_server_hello(server_hello())
    assert (hello.version, hello.suite, hello.group, hello.share, hello.retry) == (
        Version.TLS13, 0x1301, 0x1D, b"k" * 32, False,
    )  # fmt: skip


def test_a_hello_retry_request_is_recognised_by_its_random() -> None:
    hello = parse_server_hello(server_hello(random=RETRY_RANDOM))
    assert hello.retry
    assert hello.group == 0x1D
    assert hello.share == b""


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_parsed_or_raise_only_wire_error(data: bytes) -> None:
    with contextlib.suppress(WireError):
        parse_server_hello(data)
    with contextlib.suppress(WireError):
        list(MessageReader().add(data))
    with contextlib.suppress(WireError):
        alert_of(data)


@given(st.integers(0, 200), st.integers(0, 255))
def test_a_damaged_server_hello_is_parsed_or_raises_only_wire_error(place: int, value: int) -> None:
    body = bytearray(server_hello())
    body[place % len(body)] = value
    with contextlib.suppress(WireError):
        parse_server_hello(bytes(body))


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_truncated_server_hello_is_refused(cut: int) -> None:
    with pytest.raises(WireError):
        parse_server_hello(server_hello()[:-cut])


def test_a_client_hello_encodes_its_groups_alpn_and_server_name() -> None:
    encoded = ClientHello(groups=WEAK_GROUPS, alpn=("h2",), server_name=b"x.example").encode()
    assert encoded[0] == 1
    assert int.from_bytes(encoded[1:4], "big") == len(encoded) - 4
    assert b"x.example" in encoded
    assert b"\x02h2" in encoded
    reader = Reader(encoded[4:])
    assert reader.number(2) == Version.TLS12
    reader.take(32)
    assert len(reader.vector(1)) == 32


def test_the_key_schedule_gives_the_keys_of_rfc_8448() -> None:
    """RFC 8448, section 3: derived secret and the server's handshake keys of the simple handshake."""
    digest = hashes.SHA256()
    early = bytes.fromhex("33ad0a1c607ec03b09e6cd9893680ce210adf300aa1f2660e1b22e10f170f92a")
    empty = bytes.fromhex("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
    derived = expand_label(digest, early, b"derived", empty, 32)
    assert derived.hex() == "6f2615a108c702c5678f54fc9dbab69716c076189c48250cebeac3576c3611ba"
    secret = bytes.fromhex("b67b7d690cc16c4e75e54213cb2d37b4e9c912bcded9105d42befd59d391ad38")
    assert expand_label(digest, secret, b"key", b"", 16).hex() == "3fce516009c21727d0f2e4e86ee403bc"
    assert expand_label(digest, secret, b"iv", b"", 12).hex() == "5d313eb2671276ee13000b30"


@pytest.mark.parametrize("suite", sorted(SUITES))
def test_sealed_records_open_only_once_and_in_order(suite: int) -> None:
    secret = b"s" * SUITES[suite].digest.digest_size
    sealing, opening = Protection(SUITES[suite], secret), Protection(SUITES[suite], secret)
    first, second = sealing.seal(23, b"one"), sealing.seal(22, b"two")
    assert opening.open(first[:5], first[5:]) == (23, b"one")
    assert opening.open(second[:5], second[5:]) == (22, b"two")
    with pytest.raises(WireError):
        opening.open(first[:5], first[5:])


def test_both_sides_of_a_schedule_agree() -> None:
    one, other = KeySchedule(SUITES[0x1302]), KeySchedule(SUITES[0x1302])
    one.transcript = other.transcript = b"hellos"
    client, server = one.derive_handshake(b"shared")
    _, opening = other.derive_handshake(b"shared")
    record = server.seal(22, b"flight")
    assert opening.open(record[:5], record[5:]) == (22, b"flight")
    assert one.finished(server=True) != one.finished(server=False)
    assert client is not server


@pytest.mark.parametrize(
    ("verdict", "refused"),
    [
        pytest.param(Verdict(Alert(116)), True, id="certificate_required"),
        pytest.param(Verdict(Alert(0)), True, id="close_notify before anything was said"),
        pytest.param(Verdict(Closed(reset=True)), True, id="reset"),
        pytest.param(Verdict(Closed(reset=False)), True, id="closed"),
        pytest.param(Verdict(Silent(2.0)), False, id="still open"),
        pytest.param(Verdict(Closed(reset=False), data=b"hello"), False, id="it spoke, then closed"),
        pytest.param(Verdict(Alert(42), data=b"hello"), False, id="it spoke, then sent an alert"),
    ],
)
def test_only_an_alert_or_close_before_any_data_is_a_refusal(verdict: Verdict, *, refused: bool) -> None:
    assert verdict.refused is refused


def test_printable_removes_control_characters_and_shortens() -> None:
    told = printable(b"\x1b[31mred\x00\xff" + b"x" * 500)
    assert "\x1b" not in told
    assert len(told) < 120
