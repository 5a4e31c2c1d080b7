"""A JVM with the plugin on its class path, called from Python, to test rules without Spark."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway  # type: ignore[import-untyped]

from sluice.runtime.spark.jvm.command import SparkRuntime


@contextlib.contextmanager
def plugin_jvm(spark: SparkRuntime) -> Iterator[Any]:
    """Run the JVM, and yield its packages, used as in ``jvm.io.sluice.tls.Revocations``.

    The JVM exits when its standard input closes.
    """
    argv = [
        str(spark.java.executable),
        "-XX:TieredStopAtLevel=1",
        "-cp",
        f"{spark.plugin}:{spark.distribution.class_path}",
        "py4j.GatewayServer",
        "--enable-auth",
        "--die-on-broken-pipe",
        "0",
    ]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port, token = process.stdout.readline().strip(), process.stdout.readline().strip()
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=int(port), auth_token=token))
        try:
            yield gateway.jvm
        finally:
            gateway.shutdown()
            process.kill()
