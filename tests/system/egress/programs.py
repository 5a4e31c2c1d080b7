"""Real programs in a job, unchanged: each connects by name, and says what it got. Arguments: a JSON document."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import requests
from pyspark.sql import SparkSession

SECONDS = 30


def by_urllib(told: dict[str, Any]) -> str:
    with urllib.request.urlopen(  # noqa: S310  its scheme is https
        f"{told['api']}/hello", timeout=SECONDS, context=ssl.create_default_context(cafile=told["ca"])
    ) as reply:
        return str(reply.read().decode())


def by_requests(told: dict[str, Any]) -> str:
    return requests.get(f"{told['api']}/hello", timeout=SECONDS, verify=told["ca"]).text


def by_requests_in_udf(told: dict[str, Any]) -> str:
    def fetch(_: int) -> str:
        return requests.get(f"{told['api']}/hello", timeout=SECONDS, verify=told["ca"]).text

    texts = SparkSession.builder.getOrCreate().sparkContext.parallelize(range(2), 2).map(fetch).collect()
    return str(set(texts).pop())


def by_pip(told: dict[str, Any]) -> str:
    target = Path.cwd() / "wheels"
    options = ("--quiet", "--disable-pip-version-check", "--no-cache-dir", "--no-deps", "--retries", "0")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, "--index-url", f"{told['index']}/simple/",
         "--cert", told["ca"], "--dest", str(target), "sluice-egress-example"],
        capture_output=True, text=True, timeout=4 * SECONDS, check=False,
    )  # fmt: skip
    return ",".join(each.name for each in target.glob("*.whl")) or done.stderr[-300:]


def by_psql(told: dict[str, Any]) -> str:
    host, port = told["database"]
    settings = f"host={host} port={port} dbname=postgres user=job sslmode=verify-full sslrootcert={told['ca']}"
    question = "select version || ' ' || ssl from pg_stat_ssl where pid = pg_backend_pid()"
    done = subprocess.run(
        [told["psql"], "--no-psqlrc", "-Atc", question, settings],
        env=os.environ | {"LD_LIBRARY_PATH": told["libraries"]},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return done.stdout.strip() or done.stderr[-300:]


def by_jdbc(told: dict[str, Any]) -> str:
    """Query the database from the driver's JVM, with a JDBC driver from the job's own jar."""
    host, port = told["database"]
    spark = SparkSession.builder.getOrCreate()
    jvm, gateway = spark._jvm, spark.sparkContext._gateway
    assert jvm is not None
    assert gateway is not None
    urls = gateway.new_array(jvm.java.net.URL, 1)
    urls[0] = jvm.java.net.URL(f"file:{told['jar']}")
    loader = jvm.java.net.URLClassLoader(urls)
    driver = jvm.java.lang.Class.forName("org.postgresql.Driver", True, loader).getDeclaredConstructor(
        gateway.new_array(jvm.java.lang.Class, 0)
    )
    settings = jvm.java.util.Properties()
    for name, value in {"user": "job", "sslmode": "verify-full", "sslrootcert": told["ca"]}.items():
        settings.setProperty(name, value)
    made = driver.newInstance(gateway.new_array(jvm.java.lang.Object, 0))
    connection = made.connect(f"jdbc:postgresql://{host}:{port}/postgres", settings)
    rows = connection.createStatement().executeQuery("select ssl from pg_stat_ssl where pid = pg_backend_pid()")
    rows.next()
    text = rows.getString(1)
    connection.close()
    return str(text)


def by_psycopg(told: dict[str, Any]) -> str:
    host, port = told["database"]
    psycopg: Any = importlib.import_module("psycopg")
    with psycopg.connect(
        f"host={host} port={port} dbname=postgres user=job", sslmode="verify-full", sslrootcert=told["ca"]
    ) as connection:
        sent = [{"n": n} for n in range(1000)]
        connection.execute("create temporary table rows (n integer)")
        connection.cursor().executemany("insert into rows values (%(n)s)", sent)
        (total,) = connection.execute("select sum(n) from rows").fetchone()
        (encrypted,) = connection.execute("select ssl from pg_stat_ssl where pid = pg_backend_pid()").fetchone()
    return f"{total} {encrypted}"


def by_nats(told: dict[str, Any]) -> str:
    """A request from one client to another, over the server."""
    client: Any = importlib.import_module("nats")

    async def connect() -> Any:
        context = ssl.create_default_context(cafile=told["ca"])
        return await client.connect(
            told["messages"], tls=context, connect_timeout=SECONDS, allow_reconnect=False, max_reconnect_attempts=0
        )

    async def ask() -> str:
        one, other = await connect(), await connect()

        async def answer(message: Any) -> None:
            await message.respond(message.data.upper())

        await other.subscribe("questions", cb=answer)
        await other.flush()
        reply = await one.request("questions", b"hello", timeout=SECONDS)
        await one.close()
        await other.close()
        return str(reply.data.decode())

    return asyncio.run(ask())


def not_allowed(told: dict[str, Any]) -> str:
    return requests.get(told["denied"], timeout=SECONDS, verify=told["ca"]).text


PROGRAMS = (
    by_urllib,
    by_requests,
    by_requests_in_udf,
    by_pip,
    by_psql,
    by_psycopg,
    by_jdbc,
    by_nats,
    not_allowed,
)


def main() -> None:
    """Run all programs; print one line of JSON for each."""
    told = json.loads(sys.argv[1])
    authority = Path(told["shared"]) / "ca.pem"
    told["ca"] = str(authority)
    sys.path.append(told["packages"])
    for program in PROGRAMS:
        try:
            result, error = program(told), ""
        except Exception as raised:  # noqa: BLE001  whatever the library makes of it is what is looked at
            result, error = "", f"{type(raised).__name__}: {raised}"[:600]
        print("PROGRAM", json.dumps([program.__name__, result, error]), flush=True)  # noqa: T201  a pipeline prints


if __name__ == "__main__":
    main()
