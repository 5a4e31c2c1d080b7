"""Flight SQL with everything real: the ADBC driver and pyarrow's client, Envoy, the auth service, a session cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as flight_sql
import adbc_driver_manager
import pyarrow as pa
import pytest
from adbc_driver_flightsql import DatabaseOptions
from adbc_driver_manager.dbapi import Connection
from pyarrow import flight

from sluice.core.home import Home
from sluice.gateway.credentials.token_file import TokenStore, create_token
from sluice.gateway.flight_sql.messages import new, packed
from sluice.gateway.flight_sql.statements import MAX_SQL_BYTES
from sluice.pki.assertions.principal import TokenId
from tests.integration.cluster.conftest import LocalCluster, eventually, start_cluster

START_SECONDS = 400
SLOW = "SELECT count(*) FROM range(0, 1000000000000000, 1, 4) WHERE hash(id) % 7 = 8"
"""Takes days."""


@dataclass
class Gateway:
    """A cluster with room for a session, and clients of it."""

    cluster: LocalCluster

    @property
    def address(self) -> str:
        return str(self.cluster.json("connect")["remote"]).removeprefix("sc://").split("/")[0]

    @property
    def roots(self) -> str:
        environment = self.cluster.json("connect")["environment"]
        return Path(environment["GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"]).read_text()

    def token(self, name: str, role: str = "submitter") -> str:
        return create_token(Home.at(self.cluster.home), name=name, role=role)

    def adbc(self, token: str) -> Connection:
        """Connect with ADBC's driver, as its manual says."""
        options = {
            DatabaseOptions.AUTHORIZATION_HEADER.value: f"Bearer {token}",
            DatabaseOptions.TLS_ROOT_CERTS.value: self.roots,
        }
        return flight_sql.connect(f"grpc+tls://{self.address}", db_kwargs=options, autocommit=True)

    @contextlib.contextmanager
    def arrow(self, token: str) -> Iterator[tuple[flight.FlightClient, flight.FlightCallOptions]]:
        """Connect with Arrow's own client."""
        headers: Any = [(b"authorization", f"Bearer {token}".encode())]  # the stubs say text, which it refuses
        options = flight.FlightCallOptions(headers=headers)
        with flight.FlightClient(f"grpc+tls://{self.address}", tls_root_certs=self.roots) as client:
            yield client, options

    def running_tasks(self, owner: str) -> int:
        """Return the number of running tasks in the session of ``owner``."""
        jobs = self.cluster.get("/v1/jobs")["jobs"]
        (mine,) = (job for job in jobs if job["kind"] == "CONNECT" and job["owner"] == owner)
        return int(self.cluster.job(mine["id"])["progress"]["tasks_running"])


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    home = tmp_path_factory.mktemp("flight") / "home"
    home.mkdir()
    (home / "sluice.toml").write_text(
        "[gateway]\nflight_sql = true\n[shuffle]\nenabled = false\n[taskmanager]\ncount = 1\nslots = 2\n"
    )
    running = Gateway(start_cluster(home))
    yield running
    running.cluster.sluice("down")


@pytest.fixture(scope="module")
def ada(gateway: Gateway) -> str:
    """Provide ada's token; her session is running."""
    token = gateway.token("ada")
    with gateway.adbc(token) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT 40 + 2 AS answer")
        assert cursor.fetchall() == [(42,)]
    return token


def query(sql: str) -> flight.FlightDescriptor:
    """Return the descriptor that a client sends to run ``sql``."""
    return flight.FlightDescriptor.for_command(packed("CommandStatementQuery", query=sql.encode()))


@pytest.mark.timeout(START_SECONDS)
def test_adbc_runs_queries_and_updates(gateway: Gateway, ada: str) -> None:
    with gateway.adbc(ada) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE OR REPLACE TEMPORARY VIEW words AS SELECT id, concat('w', id) AS word FROM range(5)")
        cursor.execute("SELECT id, word FROM words ORDER BY id")
        assert cursor.fetchall() == [(number, f"w{number}") for number in range(5)]
        cursor.execute("SELECT id FROM range(250000)")
        table = cursor.fetch_arrow_table()
        assert (table.num_rows, table.column("id")[249_999].as_py()) == (250_000, 249_999)
        cursor.execute("SELECT id FROM words WHERE id > 100")
        assert cursor.fetch_arrow_table().schema == pa.schema([pa.field("id", pa.int64(), nullable=False)])
        cursor.executescript("CREATE DATABASE IF NOT EXISTS shop")
        cursor.execute("SHOW DATABASES")
        assert ("shop",) in cursor.fetchall()


@pytest.mark.timeout(START_SECONDS)
def test_a_statement_runs_once(gateway: Gateway, ada: str) -> None:
    with gateway.adbc(ada) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE once")
        with pytest.raises(adbc_driver_manager.Error, match="SCHEMA_ALREADY_EXISTS"):
            cursor.execute("CREATE DATABASE once")
        cursor.execute("DROP DATABASE once")
        cursor.execute(f"CREATE TABLE counted (n INT) USING parquet LOCATION '{gateway.cluster.shared}/counted'")
        cursor.execute("INSERT INTO counted VALUES (1)")
        cursor.executescript("INSERT INTO counted VALUES (2)")
        cursor.execute("SELECT n FROM counted ORDER BY n")
        assert cursor.fetchall() == [(1,), (2,)]
        cursor.execute("DROP TABLE counted")


@pytest.mark.timeout(START_SECONDS)
def test_adbc_lists_metadata_of_the_database(gateway: Gateway, ada: str) -> None:
    with gateway.adbc(ada) as connection, connection.cursor() as cursor:
        assert connection.adbc_get_info()["vendor_name"] == "Sluice"
        assert set(connection.adbc_get_table_types()) == {"TABLE", "VIEW"}
        cursor.execute("CREATE TABLE things (n INT, name STRING) USING parquet")
        (spark_catalog,) = (
            each
            for each in connection.adbc_get_objects(depth="columns", table_name_filter="thi%").read_all().to_pylist()
            if each["catalog_name"] == "spark_catalog"
        )
        tables = {
            table["table_name"]: [column["column_name"] for column in table["table_columns"]]
            for schema in spark_catalog["catalog_db_schemas"]
            for table in schema["db_schema_tables"]
        }
        assert tables == {"things": ["n", "name"]}
        schema = connection.adbc_get_table_schema("things", db_schema_filter="default")
        assert schema.names == ["n", "name"]
        cursor.execute("DROP TABLE things")


@pytest.mark.timeout(START_SECONDS)
def test_errors_of_statements_are_reported_and_parameters_refused(gateway: Gateway, ada: str) -> None:
    with gateway.adbc(ada) as connection, connection.cursor() as cursor:
        with pytest.raises(adbc_driver_manager.Error, match="TABLE_OR_VIEW_NOT_FOUND"):
            cursor.execute("SELECT * FROM nothing")
        with pytest.raises(adbc_driver_manager.Error):
            cursor.execute("SELECT ? AS n", (1,))
        cursor.execute("SELECT 1 AS still_here")
        assert cursor.fetchall() == [(1,)]


@pytest.mark.timeout(START_SECONDS)
def test_arrows_client_reads_results_and_a_ticket_is_valid_only_once(gateway: Gateway, ada: str) -> None:
    with gateway.arrow(ada) as (client, options):
        info = client.get_flight_info(query("SELECT id FROM range(10)"), options)
        (endpoint,) = info.endpoints
        assert client.do_get(endpoint.ticket, options).read_all().column("id").to_pylist() == list(range(10))
        with pytest.raises(pa.ArrowException, match="no such ticket"):
            client.do_get(endpoint.ticket, options).read_all()
        result: Any = client.get_schema(query("SELECT 1 AS n, 'x' AS s"), options)  # the stubs say it is a schema
        assert result.schema.names == ["n", "s"]


@pytest.mark.timeout(START_SECONDS)
def test_a_ticket_of_another_user_and_a_token_without_a_grant_are_refused(gateway: Gateway, ada: str) -> None:
    with gateway.arrow(ada) as (client, options):
        ticket = client.get_flight_info(query("SELECT 'secret of ada'"), options).endpoints[0].ticket
    with gateway.arrow(gateway.token("bob")) as (client, options), pytest.raises(pa.ArrowException, match="no such"):
        client.do_get(ticket, options).read_all()
    with gateway.arrow(gateway.token("vic", "viewer")) as (client, options):
        with pytest.raises(pa.ArrowException, match=r"PERMISSION_DENIED|[Pp]ermission|403"):
            client.get_flight_info(query("SELECT 1"), options)
        with pytest.raises(pa.ArrowException, match=r"PERMISSION_DENIED|[Pp]ermission|403"):
            client.do_get(ticket, options).read_all()
    for token in ("", "slc_nobody"):
        with gateway.arrow(token) as (client, options), pytest.raises(flight.FlightUnauthenticatedError):
            client.get_flight_info(query("SELECT 1"), options)
    with gateway.arrow(ada) as (client, options):
        assert client.do_get(ticket, options).read_all().num_rows == 1


@pytest.mark.timeout(START_SECONDS)
@pytest.mark.parametrize("size", [MAX_SQL_BYTES + 1, 4 * MAX_SQL_BYTES])
def test_sql_that_is_too_long_is_refused(gateway: Gateway, ada: str, size: int) -> None:
    with gateway.arrow(ada) as (client, options), pytest.raises(pa.ArrowException, match="more than"):
        client.get_flight_info(query("SELECT 1".ljust(size)), options)


@pytest.mark.timeout(START_SECONDS)
def test_cancelling_ends_the_statement_in_spark(gateway: Gateway, ada: str) -> None:
    with gateway.adbc(ada) as connection, connection.cursor() as cursor, ThreadPoolExecutor(1) as threads:
        running = threads.submit(lambda: cursor.execute(SLOW).fetchall())
        eventually(lambda: gateway.running_tasks("ada"), "the query runs")
        cursor.adbc_cancel()
        with pytest.raises(adbc_driver_manager.Error, match=r"(?i)cancel"):
            running.result()
    eventually(lambda: not gateway.running_tasks("ada"), "Spark ends the query")
    with gateway.adbc(ada) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT 1 AS n")
        assert cursor.fetchall() == [(1,)]


@pytest.mark.timeout(START_SECONDS)
def test_a_revocation_ends_the_statement_of_its_token(gateway: Gateway, ada: str) -> None:  # noqa: ARG001
    token = gateway.token("ada")
    with gateway.arrow(token) as (client, options), ThreadPoolExecutor(1) as threads:
        ticket = client.get_flight_info(query(SLOW), options).endpoints[0].ticket
        running = threads.submit(lambda: client.do_get(ticket, options).read_all())
        eventually(lambda: gateway.running_tasks("ada"), "the query runs")
        TokenStore(Home.at(gateway.cluster.home)).revoke(TokenId(token.split("_")[1]))
        with pytest.raises(flight.FlightUnauthenticatedError):
            running.result()
    eventually(lambda: not gateway.running_tasks("ada"), "Spark ends the query")


@pytest.mark.timeout(START_SECONDS)
def test_an_update_by_arrows_client_is_executed_and_answered(gateway: Gateway, ada: str) -> None:
    command = packed("CommandStatementUpdate", query=b"CREATE OR REPLACE TEMPORARY VIEW one AS SELECT 1 AS n")
    with gateway.arrow(ada) as (client, options):
        results: Any  # the stubs say they are rows
        writer, results = client.do_put(flight.FlightDescriptor.for_command(command), pa.schema([]), options)
        writer.done_writing()
        assert results.read().to_pybytes() == new("DoPutUpdateResult", record_count=-1).SerializeToString()
        writer.close()
