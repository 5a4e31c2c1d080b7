"""From files to blocks: each input is counted once, and a bad one has a reason, whatever a file holds."""

from __future__ import annotations

import itertools
import os
import re
import socket
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given, strategies as st

from sluice.pipelines import cert_inventory as inventory
from sluice.pipelines.cert_inventory import Block
from tests.unit.pipelines import certificates as made
from tests.unit.pipelines.certificates import AS_OF, make, pem

DER = make()
CERT = pem(DER)
KEY = made.EC_KEY.private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
)
BEGIN, *_, END = CERT.splitlines()


def reasons(data: bytes) -> list[str]:
    """The final reason of every input in ``data``; empty for certificates."""
    return [inventory.parse_block(block, AS_OF).reason for block in inventory.split_pem("x", data)]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(CERT, [""], id="one"),
        pytest.param(CERT * 3, [""] * 3, id="three"),
        pytest.param(b"# Label: one\n" + CERT + b"\n= comment =\n" + CERT, [""] * 2, id="commentary between blocks"),
        pytest.param(pem(DER, newline="\r\n"), [""], id="CRLF"),
        pytest.param(pem(DER, newline="\r"), [""], id="CR alone"),
        pytest.param(b"\xef\xbb\xbf" + CERT, [""], id="byte order mark"),
        pytest.param(CERT.rstrip(), [""], id="no newline at the end"),
        pytest.param(b"  " + CERT.replace(b"\n", b"  \n\t"), [""], id="white space around lines"),
        pytest.param(pem(DER, "X509 CERTIFICATE"), [""], id="older label"),
        pytest.param(b"", [inventory.EMPTY_FILE], id="empty file"),
        pytest.param(b" \n\n", [inventory.EMPTY_FILE], id="white space only"),
        pytest.param(DER, [inventory.DER_CERTIFICATE], id="DER certificate"),
        pytest.param(b"\x30\x03\x02\x01\x01", [inventory.DER_DATA], id="other DER"),
        pytest.param(DER + b"\0", [inventory.BINARY_DATA], id="DER with something after it"),
        pytest.param(b"\x7fELF\x02\x01\0\0\0", [inventory.BINARY_DATA], id="binary"),
        pytest.param("-----BEGIN CERT".encode("utf-16"), [inventory.BINARY_DATA], id="UTF-16"),
        pytest.param(b"hello\n", [inventory.NO_BLOCK], id="text"),
        pytest.param(CERT[:300], [inventory.TRUNCATED], id="truncated at the end"),
        pytest.param(CERT[:300] + b"\n" + CERT, [inventory.TRUNCATED, ""], id="truncated, then a good one"),
        pytest.param(BEGIN, [inventory.TRUNCATED], id="BEGIN alone"),
        pytest.param(CERT[40:], [inventory.END_ALONE], id="truncated at the start"),
        pytest.param(CERT + CERT[40:] + CERT, ["", inventory.END_ALONE, ""], id="one without its BEGIN between others"),
        pytest.param(BEGIN[:-1] + b"\n" + CERT[29:], [inventory.BEGIN_MALFORMED], id="a malformed BEGIN and its END"),
        pytest.param(BEGIN[:-1] + b"\n", [inventory.BEGIN_MALFORMED], id="BEGIN line cut"),
        pytest.param(b"-----BEGIN " + b"A" * 99 + b"-----\n", [inventory.BEGIN_MALFORMED], id="endless label"),
        pytest.param(BEGIN + b"\n" + END, [inventory.EMPTY_BLOCK], id="empty block"),
        pytest.param(BEGIN + b"\n!!\n" + END, [inventory.NOT_BASE64], id="not base64"),
        pytest.param(BEGIN + b"\nAAA\n" + END, [inventory.NOT_BASE64], id="base64 without padding"),
        pytest.param(BEGIN + b"\nAAAA\n" + END, [inventory.NOT_PARSED], id="base64 of something else"),
        pytest.param(BEGIN + b"\n\xff\xfe\n" + END, [inventory.NOT_BASE64], id="bytes beyond ASCII"),
        pytest.param(CERT.replace(b"END C", b"END X"), [inventory.MISMATCH], id="labels differ"),
        pytest.param(CERT.replace(b"END C", b"END c"), [inventory.MISMATCH], id="END label malformed"),
        pytest.param(pem(b"x", "X509 CRL"), ["X509 CRL, not a certificate"], id="CRL"),
        pytest.param(pem(b"x", "CERTIFICATE REQUEST"), ["CERTIFICATE REQUEST, not a certificate"], id="CSR"),
        pytest.param(pem(b"x", "ANY THING"), ["another kind of PEM block, not a certificate"], id="unknown label"),
        pytest.param(KEY + CERT, [inventory.PRIVATE_KEY, ""], id="private key before its certificate"),
        pytest.param(pem(b"x", "RSA PRIVATE KEY"), [inventory.PRIVATE_KEY], id="PKCS#1 key"),
        pytest.param(pem(b"x", "ENCRYPTED PRIVATE KEY"), [inventory.PRIVATE_KEY], id="encrypted key"),
        pytest.param(KEY[:100], [inventory.PRIVATE_KEY], id="truncated private key"),
        pytest.param(KEY.replace(b"END P", b"END C"), [inventory.PRIVATE_KEY], id="private key with another END"),
    ],
)
def test_each_block_of_a_file_has_the_expected_reason(data: bytes, expected: list[str]) -> None:
    assert reasons(data) == expected


def test_blocks_are_numbered_and_a_bad_one_carries_no_content() -> None:
    blocks = list(inventory.split_pem("x", KEY + CERT + pem(b"y", "X509 CRL")))
    assert [(block.block, bool(block.body)) for block in blocks] == [(1, False), (2, True), (3, False)]


def test_no_part_of_a_private_key_is_in_the_split_blocks() -> None:
    secret = KEY.splitlines()[1]
    for data in (KEY, KEY[:120], KEY + CERT, CERT + KEY.replace(b"END PRIVATE", b"END CERTIFICATE")):
        blocks = list(inventory.split_pem("x", data))
        assert all(secret[:16] not in block.body for block in blocks)
        assert any(block.reason == inventory.PRIVATE_KEY for block in blocks)


@pytest.mark.parametrize(("size", "expected"), [(0, inventory.NOT_PARSED), (1, inventory.BLOCK_TOO_LARGE)])
def test_a_block_over_the_size_limit_is_a_bad_input(size: int, expected: str) -> None:
    body = b"A" * (inventory.MAX_BLOCK_BYTES + size)
    assert reasons(BEGIN + b"\n" + body + b"\n" + END) == [expected]


@given(st.lists(st.sampled_from([CERT, KEY, BEGIN + b"\n", END + b"\n", b"text\n", b"-----BEGIN \n", b"\0\xff\n"])))
def test_every_begin_line_and_every_lone_end_line_is_one_input(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    marks = re.findall(rb"^-----(BEGIN|END)", data, re.MULTILINE)
    lone = sum(mark == b"END" and before == b"END" for before, mark in itertools.pairwise([b"END", *marks]))
    assert len(reasons(data)) == max(marks.count(b"BEGIN") + lone, 1)


@given(st.binary(max_size=400))
def test_any_file_content_is_at_least_one_input(data: bytes) -> None:
    assert len(reasons(data)) >= 1


def test_unreadable_paths_are_bad_inputs_with_a_reason_and_do_not_block(tmp_path: Path) -> None:
    """Opening a FIFO without a writer as a regular file would block."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(tmp_path / "socket"))
        found = {
            name: [block.reason for block in inventory.split_file(os.fsencode(tmp_path / name))]
            for name in ("fifo", "dangling", "loop", "folder", "socket")
        }
    assert found == {
        "fifo": [inventory.NOT_REGULAR],
        "dangling": ["unreadable: No such file or directory"],
        "loop": ["unreadable: Too many levels of symbolic links"],
        "folder": [inventory.NOT_REGULAR],
        "socket": [inventory.NOT_REGULAR],
    }


def test_a_file_over_the_limit_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "big").open("wb") as file:
        file.truncate(inventory.MAX_FILE_BYTES + 1)
    (block,) = inventory.split_file(os.fsencode(tmp_path / "big"))
    assert block.reason == inventory.FILE_TOO_LARGE


def test_a_path_that_is_not_utf8_is_read_and_shown(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff\x1b.pem"
    with open(path, "wb") as file:  # noqa: PTH123 - pathlib has no bytes paths
        file.write(CERT)
    (block,) = inventory.split_file(path)
    assert block.reason == ""
    assert block.source.endswith("/\\xff�.pem")


def test_find_files_descends_and_reads_each_file_once(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c.pem").write_bytes(CERT)
    (tmp_path / "a" / "link.pem").symlink_to("b/c.pem")
    (tmp_path / "a" / "up").symlink_to("..")
    (tmp_path / "dangling.pem").symlink_to("nowhere")
    expected = [os.fsencode(tmp_path.resolve() / name) for name in ("a/b/c.pem", "nowhere")]
    assert inventory.find_files([tmp_path, tmp_path / "a" / "b" / "c.pem"]) == expected


def test_find_files_refuses_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such file or folder"):
        inventory.find_files([tmp_path / "nowhere"])


def test_batches_are_bounded_and_lose_nothing() -> None:
    body = b"x" * (inventory.MAX_BATCH_BYTES // 3)
    rows = [Block("x", number, "", body) for number in range(7)]
    batches = list(inventory.to_batches(rows, inventory.BLOCK_SCHEMA))
    assert [batch.num_rows for batch in batches] == [4, 3]
    assert [row["block"] for batch in batches for row in batch.to_pylist()] == list(range(7))
    many = (Block("x", number, "r", b"") for number in range(2 * inventory.MAX_BATCH_ROWS + 1))
    assert [batch.num_rows for batch in inventory.to_batches(many, inventory.BLOCK_SCHEMA)] == [1000, 1000, 1]
