"""The options of every Spark JVM."""

from __future__ import annotations

from collections.abc import Iterable

SCALA_BINARY_VERSION = "2.13"

# Spark itself adds these to every JVM (org.apache.spark.launcher.JavaModuleOptions). Arrow needs them.
_OPENED = (
    *("java.base/" + package for package in (
        "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util",
        "java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref", "sun.nio.ch", "sun.nio.cs",
        "sun.security.action", "sun.util.calendar",
    )),
    "java.security.jgss/sun.security.krb5",
)  # fmt: skip
VECTOR_MODULE_OPTION = "--add-modules=jdk.incubator.vector"
"""Also an option of Spark: MLlib's linear algebra uses the module if it is present.

A JVM with an incubating module cannot use the linked classes and method profiles in an AOT cache (JEP 483).
"""
MODULE_OPTIONS: tuple[str, ...] = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
    "-Djava.net.preferIPv6Addresses=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
)


def argument_file(options: Iterable[str]) -> bytes:
    """The content of an argument file for the ``java`` command: one quoted argument per line."""
    quoted = ('"' + option.replace("\\", "\\\\").replace('"', '\\"') + '"' for option in options)
    return ("\n".join(quoted) + "\n").encode()
