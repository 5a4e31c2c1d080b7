"""The processes of :mod:`benchmarks.shuffle_worker`: our worker, the minimal loop, and the load driver.

``sluice DIRECTORY CORE`` and ``barest DIRECTORY CORE`` serve: they print their port, and answer each line of their
standard input with the CPU seconds that they have used. ``drive DIRECTORY CORE`` reads loads and answers with figures.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import resource
import shutil
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from sluice.pki import Channel, server_policy
from sluice.pki.tls import BulkStream, BulkTls, TlsIdentity
from sluice.runtime.shuffle.data_plane import (
    HEADER_BYTES,
    SEGMENT_ENTRY,
    FrameType,
    Header,
    SegmentChecks,
    error_of,
    pack_hello,
    parse_header,
)
from sluice.runtime.shuffle.worker import ShuffleWorker, WorkerConfig

KEY = bytes(8)
SEGMENT_BYTES = 64 << 10
SEGMENTS = 8
FRAME_BYTES = SEGMENT_BYTES * SEGMENTS
MAP_FRAMES = 64
PARTITIONS = 64
CREDIT_BYTES = 32 << 20
BAREST = struct.Struct("<cQ")
"""A request to the minimal loop: ``p`` (push) or ``f`` (fetch), and the number of bytes."""


def cpu_seconds() -> float:
    """CPU time of this process so far, user and system."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def say(**figures: float) -> None:
    """Print one line of figures to the parent process."""
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()


def answer_lines(figures: Callable[[], dict[str, float]]) -> None:
    """Answer each line until the input ends."""
    for _ in sys.stdin:
        say(**figures())


async def serve_sluice(directory: Path) -> None:
    """Run our complete worker."""
    identity = TlsIdentity(directory / "worker")
    config = WorkerConfig((directory / "data",), max_connections_per_peer=1024)
    worker = ShuffleWorker(config, identity)
    worker.allow_job(JOB, KEY)
    _, port = await worker.start("127.0.0.1", 0)
    say(port=port)
    while line := await asyncio.to_thread(sys.stdin.readline):
        if json.loads(line).get("release"):
            await worker.release_job(JOB)
            worker.allow_job(JOB, KEY)
        report = worker.report()
        say(
            cpu=cpu_seconds(),
            memory_peak_bytes=report.memory_peak,
            rss_peak_kib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        )
    await worker.stop()


def serve_barest(directory: Path) -> None:
    """Run the minimal loop: one thread with ``ssl.SSLSocket.recv_into`` and ``os.write``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(directory / "worker" / "chain.pem", directory / "worker" / "key.pem")
    context.load_verify_locations(directory / "worker" / "ca.pem")
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_mode = ssl.CERT_REQUIRED
    listening = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_barest_loop, args=(context, listening, directory / "barest"), daemon=True).start()
    say(port=listening.getsockname()[1])
    answer_lines(lambda: {"cpu": cpu_seconds()})


def _barest_loop(context: ssl.SSLContext, listening: socket.socket, path: Path) -> None:
    buffer = memoryview(bytearray(FRAME_BYTES))
    while True:
        accepted, _ = listening.accept()
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with context.wrap_socket(accepted, server_side=True) as connection:
            command, left = BAREST.unpack(connection.recv(BAREST.size))
            if command == b"p":
                path.unlink(missing_ok=True)
                file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                while left:
                    filled = 0
                    while filled < FRAME_BYTES:
                        filled += connection.recv_into(buffer[filled:])
                    left -= os.write(file, buffer)
            else:
                file = os.open(path, os.O_RDONLY)
                while left:
                    left -= os.readv(file, [buffer])
                    connection.sendall(buffer)
            connection.sendall(b"k")
            os.close(file)


JOB = "a" * 32


class Driver:
    """Loads a server over native streams, so that the server is the bottleneck."""

    def __init__(self, directory: Path) -> None:
        identity = TlsIdentity(directory / "executor")
        self._tls = BulkTls(identity, server_policy(Channel.DATA, identity.spiffe_id.trust_domain), serving=False)
        self._data = os.urandom(FRAME_BYTES)

    def run(self, order: dict[str, int | str]) -> float:
        """Carry out ``order`` over the number of connections that it names; returns the seconds that it took."""
        work = {"push": self._push, "fetch": self._fetch, "barest-push": self._barest, "barest-fetch": self._barest}
        count = int(order["connections"])
        streams = [self._connect(int(order["port"])) for _ in range(count)]
        start = time.perf_counter()
        with ThreadPoolExecutor(count) as pool:
            running = [
                pool.submit(work[str(order["what"])], stream, order, index) for index, stream in enumerate(streams)
            ]
            for each in running:
                each.result()
        seconds = time.perf_counter() - start
        for stream in streams:
            stream.close()
        return seconds

    def _connect(self, port: int) -> BulkStream:
        return self._tls.handshake(socket.create_connection(("127.0.0.1", port)))

    def _barest(self, stream: BulkStream, order: dict[str, int | str], _index: int) -> None:
        size = int(order["bytes"])
        push = order["what"] == "barest-push"
        stream.write_all(BAREST.pack(b"p" if push else b"f", size))
        view = memoryview(mmap.mmap(-1, FRAME_BYTES))
        view[:] = self._data
        for _ in range(size // FRAME_BYTES):
            if push:
                stream.write_all(view)
            else:
                stream.read_exactly(view)
        stream.read_exactly(view[:1])

    def _push(self, stream: BulkStream, order: dict[str, int | str], index: int) -> None:
        credit = _greet(stream, "push")
        shuffle, frames = int(order["shuffle"]), int(order["bytes"]) // FRAME_BYTES // int(order["connections"])
        checks = SegmentChecks(KEY, shuffle)
        table_bytes = SEGMENTS * SEGMENT_ENTRY.itemsize
        frame = memoryview(mmap.mmap(-1, HEADER_BYTES + table_bytes + FRAME_BYTES))
        table = np.frombuffer(frame[HEADER_BYTES : HEADER_BYTES + table_bytes], SEGMENT_ENTRY)
        data = frame[HEADER_BYTES + table_bytes :]
        data[:] = self._data
        table["length"] = SEGMENT_BYTES
        answer = memoryview(bytearray(HEADER_BYTES))
        sent = acknowledged = 0
        for number in range(frames):
            map_id = index << 32 | number // MAP_FRAMES
            for segment in range(SEGMENTS):
                sequence = number % MAP_FRAMES * SEGMENTS + segment
                partition = sequence % PARTITIONS
                part = data[segment * SEGMENT_BYTES : (segment + 1) * SEGMENT_BYTES]
                check = checks.value(partition, map_id, sequence, part)
                table[segment] = (partition, sequence, SEGMENT_BYTES, check)
            header = Header(
                FrameType.PUSH, shuffle=shuffle, map_id=map_id, length=table_bytes + FRAME_BYTES, count=SEGMENTS
            )
            frame[:HEADER_BYTES] = header.pack()
            while sent + header.length - acknowledged > credit:
                acknowledged = _next(stream, answer).extra
            stream.write_all(frame)
            sent += header.length
            if number % MAP_FRAMES == MAP_FRAMES - 1 or number == frames - 1:
                of_map = number % MAP_FRAMES + 1
                commit = Header(
                    FrameType.COMMIT,
                    shuffle=shuffle,
                    map_id=map_id,
                    request=1,
                    count=of_map * SEGMENTS,
                    extra=of_map * FRAME_BYTES,
                )
                stream.write_all(commit.pack())
                while (got := _next(stream, answer)).kind is not FrameType.COMMIT_OK:
                    acknowledged = got.extra

    def _fetch(self, stream: BulkStream, order: dict[str, int | str], index: int) -> None:
        _greet(stream, "fetch")
        count = int(order["connections"])
        frames = int(order["bytes"]) // FRAME_BYTES // count
        ids = [
            each << 32 | number for each in range(count) for number in range((frames + MAP_FRAMES - 1) // MAP_FRAMES)
        ]
        payload = np.array(ids, "<i8").tobytes()
        answer = memoryview(bytearray(HEADER_BYTES))
        buffer = memoryview(mmap.mmap(-1, 8 << 20))
        for partition in range(index, PARTITIONS, count):
            fetch = Header(
                FrameType.FETCH,
                shuffle=int(order["shuffle"]),
                partition=partition,
                aux=partition + 1,
                request=1,
                count=len(ids),
                length=len(payload),
                extra=CREDIT_BYTES,
            )
            stream.write_all(fetch.pack() + payload)
            taken = 0
            while (got := _next(stream, answer)).kind is FrameType.DATA:
                stream.read_exactly(buffer[: got.length])
                taken += got.length
                if taken >= CREDIT_BYTES // 4:
                    stream.write_all(Header(FrameType.CREDIT, request=1, extra=taken).pack())
                    taken = 0


def _greet(stream: BulkStream, direction: str) -> int:
    stream.write_all(pack_hello("push" if direction == "push" else "fetch"))
    return _next(stream, memoryview(bytearray(HEADER_BYTES))).aux


def _next(stream: BulkStream, view: memoryview) -> Header:
    if not stream.read_exactly(view):
        raise SystemExit("the worker ended the connection")
    header = parse_header(view, from_client=False)
    if header.kind is FrameType.ERROR:
        text = memoryview(bytearray(header.length))
        stream.read_exactly(text)
        raise error_of(header, text)
    return header


def drive(directory: Path) -> None:
    """Read loads, and answer each with the time that it took."""
    driver = Driver(directory)
    say(ready=1)
    for line in sys.stdin:
        order = json.loads(line)
        before = cpu_seconds()
        seconds = driver.run(order)
        say(seconds=seconds, cpu=cpu_seconds() - before)


def main() -> None:
    """See the module's description."""
    what, directory, core = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    os.sched_setaffinity(0, {core} & os.sched_getaffinity(0) or os.sched_getaffinity(0))
    match what:
        case "sluice":
            shutil.rmtree(directory / "data", ignore_errors=True)
            asyncio.run(serve_sluice(directory))
        case "barest":
            serve_barest(directory)
        case _:
            drive(directory)


if __name__ == "__main__":
    main()
