"""A test pipeline: the driver's JVM dials the ports in ``targets``, until ``stop`` appears.

It dials as Spark does. Each connection is a new one and must get an answer from Spark at the other end.
``tally`` records the results: the present targets, the number of connections made to them, every failure
so far, and the number of Spark channels that are open now. The pipeline also does one round of work (a
shuffle) for every file ``go-N``, and writes its result to ``result-N``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext

HOST = "127.0.0.1"
TIMEOUT_MILLIS = 30_000


def write(path: Path, content: object) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(content))
    part.rename(path)


def dial(jvm: Any, clients: Any, port: int) -> None:
    """Connect and send a message; raises if there is no connection, or no answer on it."""
    client = clients.createUnmanagedClient(HOST, port)
    try:
        client.sendRpcSync(jvm.java.nio.ByteBuffer.wrap(b"not a message of Spark's"), TIMEOUT_MILLIS)
    except Py4JJavaError as error:
        # What the other end says to such a message; a connection that is lost is an IOException.
        if "java.io.IOException" in str(error) or "RpcHandler" not in str(error):
            raise
    finally:
        client.close()


def shuffled(jvm: Any, context: Any) -> int:
    """Run a shuffle and count its rows, without SQL and Python workers, which take seconds to start."""
    rows: int = context.parallelize(jvm.java.util.Collections.nCopies(10_000, 1), 4).repartition(4).count()
    return rows


context = SparkContext.getOrCreate()
folder = Path(sys.argv[1])
jvm: Any = context._jvm
network = jvm.org.apache.spark.network
settings = network.util.TransportConf("rpc", network.util.MapConfigProvider(jvm.java.util.HashMap()))
clients = network.TransportContext(settings, network.server.NoOpRpcHandler()).createClientFactory()
tally: dict[str, Any] = {"targets": [], "dialed": 0, "failures": []}
number = 1
while not (folder / "stop").exists():
    targets = json.loads((folder / "targets").read_text()) if (folder / "targets").exists() else []
    if targets != tally["targets"]:
        tally |= {"targets": targets, "dialed": 0}
    for port in targets:
        try:
            dial(jvm, clients, port)
        except Py4JJavaError as error:
            tally["failures"].append(str(error))
        tally["dialed"] += 1
    write(folder / "tally", tally | {"open": jvm.io.sluice.tls.Connections.size()})
    if (folder / f"go-{number}").exists():
        write(folder / f"result-{number}", {"rows": shuffled(jvm, context._jsc)})
        number += 1
    time.sleep(0.1)
