"""The line between the driver's JVM and its agent."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sluice.runtime.messages import (
    ExecutorExit,
    ExecutorTarget,
    ExecutorTargets,
    JobProgress,
    OutputLocation,
    ShuffleAllocation,
    SparkRegistration,
    WorkerAddress,
)
from sluice.runtime.spark.driver.bridge import (
    MAX_LINE_BYTES,
    MAX_UNREAD_BYTES,
    Bridge,
    BridgeEvent,
    KillExecutors,
    LocateShuffle,
    RegisterShuffle,
    ShuffleWorkersLost,
    SparkStopped,
    UnregisterShuffle,
    decode_event,
)
from sluice.runtime.spark.errors import BridgeProtocolError, SparkError
from sluice.runtime.spark.jvm.tempdir import make_temp_dir, remove_temp_dir

STARTED = {
    "type": "started", "app_id": "a-1", "driver_url": "spark://d", "startup_conf": {"spark.rpc.x": "1"},
    "java_options": ["-Xss1m"], "executor_memory_mb": 512, "executor_cores": 1, "live_executors": [],
}  # fmt: skip


@pytest.mark.parametrize(
    ("message", "event"),
    [
        (
            STARTED,
            SparkRegistration(
                app_id="a-1",
                driver_url="spark://d",
                startup_conf={"spark.rpc.x": "1"},
                java_options=("-Xss1m",),
                executor_memory_mb=512,
                executor_cores=1,
            ),
        ),
        (
            {"type": "targets", "version": 3, "targets": [
                {"resource_profile_id": 0, "total": 2, "cores": 1, "memory_mb": 512}]},
            ExecutorTargets(
                version=3, targets=(ExecutorTarget(resource_profile_id=0, total=2, cores=1, memory_mb=512),)
            ),
        ),
        ({"type": "targets", "version": 4, "targets": []}, ExecutorTargets(version=4, targets=())),
        ({"type": "kill", "executor_ids": [1, 5]}, KillExecutors((1, 5))),
        ({"type": "progress", "tasks_total": 7, "first_task_at": 1.5}, JobProgress(tasks_total=7, first_task_at=1.5)),
        ({"type": "shuffle_register", "id": 7, "shuffle_id": 3, "partitions": 200}, RegisterShuffle(7, 3, 200)),
        ({"type": "shuffle_unregister", "shuffle_id": 3}, UnregisterShuffle(3)),
        ({"type": "shuffle_lost", "shuffle_id": 3, "workers": ["w-1"]}, ShuffleWorkersLost(3, ("w-1",))),
        ({"type": "stopped"}, SparkStopped()),
    ],
    ids=[
        "started", "targets", "no targets", "kill", "progress", "shuffle_register", "shuffle_unregister",
        "shuffle_lost", "stopped",
    ],
)  # fmt: skip
def test_a_jvm_message_is_decoded_into_its_declared_type(message: dict[str, object], event: BridgeEvent) -> None:
    assert decode_event(json.dumps(message).encode()) == event


@pytest.mark.parametrize(
    "line",
    [
        b"", b"null", b"[]", b'"x"', b"{", b"{}", b'{"type": 7}', b'{"type": "exec"}', b'{"type": ["kill"]}',
        b'{"type": "kill"}', b'{"type": "kill", "executor_ids": ["1"]}',
        b'{"type": "shuffle_register", "id": 1, "shuffle_id": 1}', b'{"type": "shuffle_lost", "workers": "w-1"}',
        b'{"type": "kill", "executor_ids": [], "more": 1}', b'{"type": "progress", "tasks_total": "7"}', b"\xff\xfe",
    ],
)  # fmt: skip
def test_a_malformed_jvm_message_is_refused(line: bytes) -> None:
    with pytest.raises(BridgeProtocolError):
        decode_event(line)


class Jvm:
    """A fake JVM that speaks the plugin's protocol."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, bridge: Bridge) -> Jvm:
        return cls(*await asyncio.open_unix_connection(bridge.path))

    def send(self, *messages: dict[str, object]) -> None:
        for message in messages:
            self.writer.write(json.dumps(message).encode() + b"\n")

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


class Listening:
    """A bridge, and the events it has received."""

    def __init__(self, folder: Path) -> None:
        self.events: asyncio.Queue[BridgeEvent] = asyncio.Queue()
        self.bridge = Bridge(folder / "bridge", self.events.put_nowait)

    async def next(self) -> BridgeEvent:
        return await asyncio.wait_for(self.events.get(), 10)


@pytest_asyncio.fixture
async def listening() -> AsyncIterator[Listening]:
    folder = make_temp_dir()
    listening = Listening(folder)
    await listening.bridge.start()
    yield listening
    await listening.bridge.close()
    remove_temp_dir(folder)


async def test_messages_arrive_in_order_and_end_with_spark_stopped(listening: Listening) -> None:
    jvm = await Jvm.connect(listening.bridge)
    jvm.send(
        {"type": "targets", "version": 1, "targets": []}, {"type": "kill", "executor_ids": [1]}, {"type": "stopped"}
    )
    assert await listening.next() == ExecutorTargets(version=1, targets=())
    assert await listening.next() == KillExecutors((1,))
    assert await listening.next() == SparkStopped(in_order=True)
    await jvm.close()


async def test_a_broken_connection_is_reported_as_spark_stopped_out_of_order(listening: Listening) -> None:
    jvm = await Jvm.connect(listening.bridge)
    jvm.writer.write(b'{"type": "stop')
    await jvm.close()
    assert await listening.next() == SparkStopped(in_order=False)


@pytest.mark.parametrize("line", [b"nonsense\n", b"x" * (MAX_LINE_BYTES + 2) + b"\n"], ids=["nonsense", "too long"])
async def test_protocol_error_ends_the_connection(listening: Listening, line: bytes) -> None:
    jvm = await Jvm.connect(listening.bridge)
    jvm.writer.write(line)
    assert await listening.next() == SparkStopped(in_order=False)
    assert not listening.bridge.connected
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await jvm.reader.readexactly(1)
    jvm.writer.transport.abort()


async def test_executor_exits_and_cancellation_are_sent_to_the_jvm(listening: Listening) -> None:
    jvm = await Jvm.connect(listening.bridge)
    jvm.send(STARTED)
    await listening.next()
    listening.bridge.executor_exited(
        ExecutorExit(executor_id=3, exit_code=-9, by_application=False, reason="killed", host="h")
    )
    listening.bridge.cancel()
    told = json.loads(await jvm.reader.readline())
    assert told["type"] == "executor_exited"
    assert (told["executor_id"], told["exit_code"], told["by_application"], told["reason"]) == (3, -9, False, "killed")
    assert json.loads(await jvm.reader.readline()) == {"type": "cancel"}
    await jvm.close()
    await listening.next()


async def test_cancel_without_a_spark_context_does_nothing(listening: Listening) -> None:
    listening.bridge.cancel()
    assert listening.events.empty()


async def test_second_spark_context_at_the_same_time_is_turned_away(listening: Listening) -> None:
    first = await Jvm.connect(listening.bridge)
    first.send(STARTED)
    await listening.next()
    second = await Jvm.connect(listening.bridge)
    assert await second.reader.read() == b""
    await second.close()
    assert listening.bridge.connected
    await first.close()
    await listening.next()


async def test_a_spark_context_after_another_has_stopped_is_accepted(listening: Listening) -> None:
    for _ in range(2):
        jvm = await Jvm.connect(listening.bridge)
        jvm.send(STARTED, {"type": "stopped"})
        assert isinstance(await listening.next(), SparkRegistration)
        assert await listening.next() == SparkStopped()
        await jvm.close()


async def test_wait_idle_returns_after_the_spark_context_stopped_and_all_events_were_delivered(
    listening: Listening,
) -> None:
    await listening.bridge.wait_idle()
    jvm = await Jvm.connect(listening.bridge)
    jvm.send(STARTED)
    await listening.next()
    waiting = asyncio.create_task(listening.bridge.wait_idle())
    await asyncio.sleep(0)
    assert not waiting.done()
    jvm.send({"type": "stopped"})
    await asyncio.wait_for(waiting, 10)
    assert listening.events.get_nowait() == SparkStopped()
    await jvm.close()


async def test_a_jvm_is_not_read_while_there_is_no_room(listening: Listening) -> None:
    room = asyncio.Event()

    async def wait() -> None:
        await room.wait()

    listening.bridge.room = wait
    jvm = await Jvm.connect(listening.bridge)
    jvm.send(STARTED, {"type": "targets", "version": 1, "targets": []})
    assert isinstance(await listening.next(), SparkRegistration)
    await jvm.writer.drain()
    assert listening.events.empty()
    room.set()
    assert isinstance(await listening.next(), ExecutorTargets)
    await jvm.close()


async def test_a_jvm_that_does_not_read_is_cut_off(listening: Listening) -> None:
    jvm = await Jvm.connect(listening.bridge)
    jvm.send(STARTED)
    await listening.next()
    for _ in range(2 * MAX_UNREAD_BYTES // (1 << 20)):
        listening.bridge.answer_shuffle(1, 1, "x" * (1 << 20))
    assert await listening.next() == SparkStopped(in_order=False)
    await jvm.close()


async def test_socket_is_for_the_owner_alone(listening: Listening) -> None:
    assert stat.S_IMODE(listening.bridge.path.stat().st_mode) == 0o600


def test_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SparkError, match="too long"):
        Bridge(tmp_path / ("x" * 108), lambda _: None)


async def test_a_shuffle_allocation_is_sent_to_the_spark_context_that_asked(listening: Listening) -> None:
    jvm = await Jvm.connect(listening.bridge)
    jvm.send({"type": "shuffle_register", "id": 7, "shuffle_id": 3, "partitions": 200})
    assert await listening.next() == RegisterShuffle(7, 3, 200)
    context = listening.bridge.contexts
    jvm.send({"type": "shuffle_locate", "id": 8, "shuffle_id": 3})
    assert await listening.next() == LocateShuffle(8, 3)
    worker = WorkerAddress(name="w-1", host="127.0.0.1", port=40001)
    allocation = ShuffleAllocation(shuffle_number=1048579, workers=(worker,), replicas=1, integrity_key=bytes(range(8)))
    listening.bridge.answer_shuffle(context, 7, allocation)
    assert json.loads(await jvm.reader.readline()) == {
        "type": "shuffle_registered", "id": 7, "shuffle_number": 1048579, "replicas": 1,
        "integrity_key": "0001020304050607",
        "workers": [{"name": "w-1", "host": "127.0.0.1", "port": 40001}],
    }  # fmt: skip
    listening.bridge.answer_shuffle(context, 8, (OutputLocation(pushed_to="w-2", address=worker),))
    assert json.loads(await jvm.reader.readline()) == {
        "type": "shuffle_located", "id": 8,
        "outputs": [{"pushed_to": "w-2", "address": {"name": "w-1", "host": "127.0.0.1", "port": 40001}}],
    }  # fmt: skip
    listening.bridge.answer_shuffle(context, 8, "no ShuffleManager answers")
    refused = json.loads(await jvm.reader.readline())
    assert refused == {"type": "shuffle_refused", "id": 8, "error": "no ShuffleManager answers"}
    await jvm.close()
    assert await listening.next() == SparkStopped(in_order=False)
    later = await Jvm.connect(listening.bridge)
    later.send({"type": "shuffle_unregister", "shuffle_id": 3})
    assert await listening.next() == UnregisterShuffle(3)
    listening.bridge.answer_shuffle(context, 9, allocation)
    listening.bridge.cancel()
    assert json.loads(await later.reader.readline()) == {"type": "cancel"}
    await later.close()
