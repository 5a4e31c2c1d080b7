"""A malicious shuffle worker: it answers fetches with false data and matching check values.

``LYING_WORKER=FILE python -m tests.lying_worker …`` runs like ``python -m sluice.runtime.shuffle.worker …``. It lies
while FILE exists, and appends a line about each lie to ``FILE.said``. It keeps segments that it sent, to use them in
later lies. If FILE contains "flood", it sends :data:`FLOOD_BYTES` without regard to its credit, and writes how many
bytes it could send to ``FILE.flood``.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np

from sluice.runtime.shuffle.data_plane.frames import (
    DATA_ENTRY,
    FLAG_ORDERED,
    FrameType,
    Header,
    parse_map_ids,
)
from sluice.runtime.shuffle.worker.__main__ import main
from sluice.runtime.shuffle.worker.connections import fetch as honest, server
from sluice.runtime.shuffle.worker.connections.fetch_request import Fetch
from sluice.runtime.shuffle.worker.storage.budget import Holding

PIECES_PER_FRAME = 50
HEAD_BYTES = 13
OVERFLOWING = (1 << 32) // DATA_ENTRY.itemsize + 1
"""A number of table rows whose size in bytes overflows 32 bits to a small number."""
MOST_HOARDED = 5000
FLOOD_BYTES = 512 << 20
FLOOD_FRAME = 1 << 20


class Piece(NamedTuple):
    """A segment to send."""

    partition: int
    sequence: int
    map_id: int
    data: bytes


Lie = Callable[["Liar", list[Piece]], list[Piece]]


class Liar:
    """Chooses and applies lies."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311  # no secret
        self.lying = False
        self.said: list[str] = []
        self.hoard: list[Piece] = []
        """Segments that it has seen, of all shuffles."""
        self.miscount: int | None = None
        """The wrong number of segments that the last frame of the next answer states; None: the right one."""

    def answer(self, pieces: list[Piece], *, ordered: bool) -> tuple[list[Piece], int, int]:
        """Return the pieces to send instead of ``pieces``, and the count and size for the END frame."""
        count, size = len(pieces), sum(len(each.data) for each in pieces)
        if not self.lying:
            self.hoard += pieces[: MOST_HOARDED - len(self.hoard)]
            return pieces, count, size
        names: list[str] = []
        sent, wrong = pieces, False
        while not wrong and _same(sent, pieces, ordered=ordered):
            sent, names = pieces, []
            for lie in self.rng.choices([*LIES, None], k=self.rng.choice([1, 1, 1, 2, 3])):
                if lie is None:
                    wrong = True
                    names.append("miscounted")
                else:
                    sent = lie(self, list(sent)) if sent or lie is invented else sent
                    names.append(lie.__name__)
        self.said.append("+".join(names))
        count, size = len(sent), sum(len(each.data) for each in sent)
        if wrong and sent and self.rng.random() < 0.25:
            frame = (count - 1) % PIECES_PER_FRAME + 1
            self.miscount = self.rng.choice([0, frame - 1, frame + 1, OVERFLOWING, 1 << 31, (1 << 32) - 1])
            return sent, count, size
        if wrong and self.rng.random() < 0.5:
            return sent, max(0, count + self.rng.choice([-1, 1])) if count else 1, size
        return sent, count, size + 1 if wrong else size


def _same(one: list[Piece], other: list[Piece], *, ordered: bool) -> bool:
    """Whether both answers are equivalent for a reader."""
    if ordered:
        return one == other
    return sorted(one) == sorted(other) and [each.partition for each in one] == [each.partition for each in other]


def _any(liar: Liar, pieces: list[Piece]) -> int:
    return liar.rng.randrange(len(pieces))


def _flip(liar: Liar, data: bytes, end: int) -> bytes:
    changed = bytearray(data)
    for _ in range(liar.rng.choice([1, 1, 3]) if data else 0):
        changed[liar.rng.randrange(end)] ^= 1 << liar.rng.randrange(8)
    return bytes(changed)


def altered(liar: Liar, pieces: list[Piece]) -> list[Piece]:
    """Flip bits anywhere in a segment."""
    at = _any(liar, pieces)
    data = pieces[at].data
    pieces[at] = pieces[at]._replace(data=_flip(liar, data, len(data)))
    return pieces


def altered_head(liar: Liar, pieces: list[Piece]) -> list[Piece]:
    """Flip bits in the unencrypted head: version, count of the last segment, salt."""
    at = _any(liar, pieces)
    data = pieces[at].data
    pieces[at] = pieces[at]._replace(data=_flip(liar, data, min(HEAD_BYTES, len(data))))
    return pieces


def cut(liar: Liar, pieces: list[Piece]) -> list[Piece]:
    """Cut off the beginning or the end of a segment, perhaps all of it."""
    at = _any(liar, pieces)
    data = pieces[at].data
    keep = liar.rng.randrange(len(data) or 1)
    pieces[at] = pieces[at]._replace(data=liar.rng.choice([data[:keep], data[len(data) - keep :]]))
    return pieces


def extended(liar: Liar, pieces: list[Piece]) -> list[Piece]:
    """Make a segment longer."""
    at = _any(liar, pieces)
    more = liar.rng.randbytes(liar.rng.choice([1, 16, 64]))
    pieces[at] = pieces[at]._replace(data=liar.rng.choice([pieces[at].data + more, more + pieces[at].data]))
    return pieces


def dropped(liar: Liar, pieces: list[Piece]) -> list[Piece]:
    """Leave out a segment."""
    del pieces[_any(liar, pieces)]
    return pieces


def dropped_map(liar: Liar, pieces: list[Piece]) -> list[Piece]:
    """Leave out a map, or its part of one partition."""
    gone = liar.rng.choice(pieces)
    if liar.rng.random() < 0.5:
        return [each for each in pieces if each.map_id != gone.map_id]
    return [each for each in pieces if (each.map_id, each.partition) != (gone.map_id, gone.partition)]


def dropped_partition(liar: Liar, pieces: list[Piece]) -> list[Piece]:
    """Leave out a whole partition."""
    gone = liar.rng.choice(pieces).partition
    return [each for each in pieces if each.partition != gone]


def truncated(liar: Liar, pieces: list[Piece]) -> list[Piece]:
    """End the answer early, perhaps at once."""
    return pieces[: _any(liar, pieces)]


def replayed(liar: Liar, pieces: list[Piece]) -> list[Piece]:
    """Send a segment twice."""
    at = _any(liar, pieces)
    pieces.insert(liar.rng.choice([at, at + 1]), pieces[at])
    return pieces


def moved(liar: Liar, pieces: list[Piece]) -> list[Piece]:
    """Label a segment with the partition, sequence number or map of another one."""
    at, other = _any(liar, pieces), liar.rng.choice(pieces + liar.hoard)
    chosen = liar.rng.sample(["partition", "sequence", "map_id"], liar.rng.randint(1, 3))
    pieces[at] = Piece(
        other.partition if "partition" in chosen else pieces[at].partition,
        other.sequence if "sequence" in chosen else pieces[at].sequence,
        other.map_id if "map_id" in chosen else pieces[at].map_id,
        pieces[at].data,
    )
    return pieces


def swapped(liar: Liar, pieces: list[Piece]) -> list[Piece]:
    """Swap the data of two segments."""
    one, other = _any(liar, pieces), _any(liar, pieces)
    data = pieces[one].data
    pieces[one] = pieces[one]._replace(data=pieces[other].data)
    pieces[other] = pieces[other]._replace(data=data)
    return pieces


def relabelled(liar: Liar, pieces: list[Piece]) -> list[Piece]:
    """Swap the partitions of two segments, so that all counts are right."""
    one, other = _any(liar, pieces), _any(liar, pieces)
    partition = pieces[one].partition
    pieces[one] = pieces[one]._replace(partition=pieces[other].partition)
    pieces[other] = pieces[other]._replace(partition=partition)
    return sorted(pieces)


def exchanged(liar: Liar, pieces: list[Piece]) -> list[Piece]:
    """Send a segment of another shuffle or attempt, instead of a segment or in addition."""
    at, other = _any(liar, pieces), liar.rng.choice(liar.hoard or pieces)
    if liar.rng.random() < 0.5:
        pieces[at] = pieces[at]._replace(data=other.data)
    else:
        pieces.insert(at, other._replace(partition=pieces[at].partition))
    return pieces


def disordered(liar: Liar, pieces: list[Piece]) -> list[Piece]:
    """Change the order of segments."""
    if liar.rng.random() < 0.5:
        liar.rng.shuffle(pieces)
    else:
        one, other = _any(liar, pieces), _any(liar, pieces)
        pieces[one], pieces[other] = pieces[other], pieces[one]
    return pieces


def invented(liar: Liar, pieces: list[Piece]) -> list[Piece]:
    """Forge a segment: noise, noise behind a genuine head, or unsealed data."""
    like = liar.rng.choice(pieces or liar.hoard or [Piece(0, 0, 0, b"")])
    noise = liar.rng.randbytes(liar.rng.choice([0, 16, 40, 200]))
    plain = b"\0" + len(noise).to_bytes(4, "little") + noise
    made = like._replace(
        sequence=liar.rng.choice([like.sequence, like.sequence + 1, liar.rng.randrange(1 << 32)]),
        data=liar.rng.choice([noise, like.data[:HEAD_BYTES] + noise, plain, b"A" + bytes(12) + noise]),
    )
    at = liar.rng.randint(0, len(pieces))
    if pieces and liar.rng.random() < 0.5:
        at = _any(liar, pieces)
        pieces[at] = made._replace(partition=pieces[at].partition, map_id=pieces[at].map_id)
    else:
        pieces.insert(at, made)
    return pieces


LIES: tuple[Lie, ...] = (
    altered, altered_head, cut, extended, dropped, dropped_map, dropped_partition, truncated, replayed, moved, swapped,
    relabelled, exchanged, disordered, invented,
)  # fmt: skip


class LyingFetchConnection(honest.FetchConnection):
    """Reads segments like an honest worker, and sends what :attr:`liar` turns them into."""

    liar: Liar
    flag: Path | None = None

    def _flood(self, header: Header, said: Path) -> None:
        rows = np.zeros(1, DATA_ENTRY)
        rows["partition"], rows["length"] = header.partition, FLOOD_FRAME
        sent = 0
        try:
            while sent < FLOOD_BYTES:
                self._session.send(_frame(header, FrameType.DATA, 1, rows.tobytes() + bytes(FLOOD_FRAME)))
                sent += FLOOD_FRAME
        finally:
            said.write_text(str(sent))

    def _fetch(self, header: Header) -> None:
        if self.flag is not None and self.flag.exists() and self.flag.read_text() == "flood":
            self._payload(header, Holding(self._job.connections), header.length)
            self._flood(header, self.flag.with_suffix(".flood"))
            return
        with Holding(self._job.connections) as holding:
            maps = parse_map_ids(header, self._payload(header, holding, header.length))
            data, checks = self._job.shuffle(header.shuffle, create=False)
            data.check_committed(maps)
            ordered = bool(header.flags & FLAG_ORDERED)
            plan = data.plan(header.partition, header.aux, maps, ordered=ordered, holding=holding)
            fetch = Fetch(header, data, checks, plan, 0, time.monotonic(), holding=holding)
            pieces = []
            while fetch.advance():
                at, row = fetch.window, fetch.row
                assert at is not None
                content = bytearray(at.lengths[row])
                fetch.read(at, row, row + 1, memoryview(content))
                pieces.append(Piece(at.partitions[row], at.sequences[row], at.maps[row], bytes(content)))
                fetch.row += 1
        liar = self.liar
        if self.flag is not None:
            liar.lying = self.flag.exists()
        sent, count, size = liar.answer(pieces, ordered=ordered)
        if liar.lying and self.flag is not None:
            with self.flag.with_suffix(".said").open("a") as file:
                file.write(liar.said[-1] + "\n")
        for start in range(0, len(sent), PIECES_PER_FRAME):
            some = sent[start : start + PIECES_PER_FRAME]
            rows = [
                (each.partition, each.sequence, each.map_id, len(each.data), checks.value(*_place(each), each.data))
                for each in some
            ]
            payload = np.array(rows, DATA_ENTRY).tobytes() + b"".join(each.data for each in some)
            said = len(some)
            if liar.miscount is not None and start + PIECES_PER_FRAME >= len(sent):
                said, liar.miscount = liar.miscount, None
            self._session.send(_frame(header, FrameType.DATA, said, payload))
        self._session.send(_frame(header, FrameType.END, count, b"", extra=size))


def _place(piece: Piece) -> tuple[int, int, int]:
    return piece.partition, piece.map_id, piece.sequence


def _frame(asked: Header, kind: FrameType, count: int, payload: bytes, extra: int = 0) -> bytes:
    made = Header(kind, shuffle=asked.shuffle, request=asked.request, length=len(payload), count=count, extra=extra)
    return made.pack() + payload


def lying(liar: Liar, flag: Path | None = None) -> AbstractContextManager[object]:
    """Make the workers of this process answer with ``liar``; with ``flag``, only while that file exists."""
    made = type("Lying", (LyingFetchConnection,), {"liar": liar, "flag": flag})
    return patch.object(server, "FetchConnection", made)


if __name__ == "__main__":
    with lying(Liar(int(os.environ.get("LYING_SEED", "1"))), Path(os.environ["LYING_WORKER"])):
        sys.exit(main())
