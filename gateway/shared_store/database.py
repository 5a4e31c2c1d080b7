"""Connections to the PostgreSQL database of a shared store: TLS 1.3, timeouts, failover to the primary server."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pg8000.exceptions import DatabaseError, InterfaceError
from pg8000.native import Connection

from sluice.core import StoreError, read_deployed_secret
from sluice.gateway.config import SharedStoreConfig
from sluice.gateway.errors import SharedStoreError

ANSWER_SECONDS = 5.0
"""Timeout for a response of the database, and for a lock."""
_MAX_PASSWORD_BYTES = 1024
_SCHEMA_LOCK = 0x536C75696365
"""The key of the advisory lock (``pg_advisory_xact_lock``) under which a process creates the tables."""

_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS sluice_head (
        one boolean PRIMARY KEY DEFAULT true CHECK (one), version integer NOT NULL,
        store text NOT NULL, revision bigint NOT NULL, manifest bytea)""",
    """CREATE TABLE IF NOT EXISTS sluice_files (
        name text PRIMARY KEY, revision bigint NOT NULL, content bytea NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS sluice_entries (
        space text NOT NULL, key bytea NOT NULL, value bytea NOT NULL, since double precision NOT NULL,
        until double precision NOT NULL, grouping bytea NOT NULL, PRIMARY KEY (space, key))""",
    "CREATE INDEX IF NOT EXISTS sluice_entries_by_end ON sluice_entries (space, until)",
    "CREATE INDEX IF NOT EXISTS sluice_entries_by_group ON sluice_entries (space, grouping, since)",
    "INSERT INTO sluice_head (version, store, revision) VALUES (1, gen_random_uuid()::text, 0) ON CONFLICT DO NOTHING",
)
_VERSION = 1


class _Connection(Connection):  # type: ignore[misc]  # the driver has no types
    """Closes its socket when connecting fails, which the driver leaves to the garbage collector."""

    def __init__(self, *arguments: object, **settings: object) -> None:
        self._usock: socket.socket | None = None
        try:
            super().__init__(*arguments, **settings)
        except BaseException:
            if self._usock is not None:
                self._usock.close()
            raise


class Database:
    """One connection, opened on demand and reopened after an error. Thread-safe, one transaction at a time."""

    def __init__(self, config: SharedStoreConfig) -> None:
        self._config = config
        self._mutex = threading.Lock()
        self._connection: Connection | None = None
        self._failed = False

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Statements]:
        """A transaction, committed durably when the block ends without an error.

        Raises:
            SharedStoreError: the database is unavailable. If the connection broke during the commit, the transaction
                may be committed nevertheless.
        """
        if not self._mutex.acquire(timeout=2 * ANSWER_SECONDS):
            raise SharedStoreError("other requests use the connection to the database", "try again")
        try:
            with self._failing():
                connection = self._begin()
            try:
                yield Statements(self, connection)
                with self._failing():
                    self._commit(connection)
            except BaseException:
                self._roll_back()
                raise
        finally:
            self._mutex.release()

    def close(self) -> None:
        """Close the connection."""
        with self._mutex:
            self._drop()

    def run(self, connection: Connection, statement: str, values: dict[str, object]) -> list[list[Any]]:
        """Run one statement of a transaction."""
        with self._failing():
            return connection.run(statement, **values) or []

    def _begin(self) -> Connection:
        """A connection with an open transaction. Reconnects once if the server has closed the connection."""
        self._failed = False
        if self._connection is not None:
            with contextlib.suppress(DatabaseError, InterfaceError, OSError):
                self._connection.run("BEGIN")
                return self._connection
            self._drop()
        self._connection = connection = self._connected()
        connection.run("BEGIN")
        return connection

    def _commit(self, connection: Connection) -> None:
        """Commit, unless a statement failed: PostgreSQL would silently treat the COMMIT as a ROLLBACK."""
        if self._failed:
            raise SharedStoreError("a statement of the transaction failed: nothing was changed", "try again")
        connection.run("COMMIT")

    def _roll_back(self) -> None:
        try:
            if self._connection is not None:
                self._connection.run("ROLLBACK")
        except (DatabaseError, InterfaceError, OSError):
            self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            _close(self._connection)
            self._connection = None

    def _connected(self) -> Connection:
        refused: list[str] = []
        for host, port in self._config.addresses:
            try:
                connection = self._connected_to(host, port)
            except (DatabaseError, InterfaceError, OSError) as error:
                refused.append(f"{host}:{port}: {explained(error)}")
                continue
            with contextlib.ExitStack() as closing:
                closing.callback(_close, connection)
                try:
                    [[replica]] = connection.run("SELECT pg_is_in_recovery()")
                    if not replica:
                        _prepare(connection)
                        closing.pop_all()
                        return connection
                    refused.append(f"{host}:{port}: it is a read-only replica")
                except (DatabaseError, InterfaceError, OSError) as error:
                    refused.append(f"{host}:{port}: {explained(error)}")
        raise SharedStoreError(f"no database server can be used ({'; '.join(refused)})", "see gateway.shared_store")

    def _connected_to(self, host: str, port: int) -> Connection:
        config = self._config
        milliseconds = str(int(ANSWER_SECONDS * 1000))
        context, password = _context(config), _password(config.password_file)
        plain = socket.create_connection((host, port), ANSWER_SECONDS + 1.0)
        try:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            return _Connection(
                config.user,
                sock=plain,
                host=host,  # for the check of the server's certificate
                database=config.database,
                password=password,
                ssl_context=context,
                application_name="sluice-auth",
                startup_params={
                    "lock_timeout": milliseconds,
                    "statement_timeout": milliseconds,
                    "idle_in_transaction_session_timeout": milliseconds,
                    # A confirmed commit is on disk, whatever the server's default.
                    "synchronous_commit": "on",
                },
            )
        except BaseException:
            plain.close()
            raise

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except DatabaseError as error:
            self._failed = True
            raise SharedStoreError(f"the database refused: {explained(error)}", "see the database's log") from error
        except (InterfaceError, OSError) as error:
            self._drop()
            raise SharedStoreError(
                f"the database does not answer: {explained(error)}", "check that it is running"
            ) from error


class Statements:
    """The statements of one transaction."""

    def __init__(self, database: Database, connection: Connection) -> None:
        self._database = database
        self._connection = connection

    def run(self, statement: str, **values: object) -> list[list[Any]]:
        """Run a statement with ``values`` for its ``:name`` placeholders. Returns the rows."""
        return self._database.run(self._connection, statement, values)


def explained(error: Exception) -> str:
    """The message of the server or the network on one line, without the statement."""
    if isinstance(error, DatabaseError) and error.args and isinstance(error.args[0], dict):
        return str(error.args[0].get("M", "no reason"))[:300]
    return (str(error) or type(error).__name__)[:300]


def _close(connection: Connection) -> None:
    with contextlib.suppress(DatabaseError, InterfaceError, OSError):
        connection.close()


def _prepare(connection: Connection) -> None:
    """Create the tables if they are missing; refuse tables of another version."""
    [[found]] = connection.run("SELECT to_regclass('sluice_head') IS NOT NULL")
    if not found:
        connection.run("BEGIN")
        connection.run("SELECT pg_advisory_xact_lock(:lock)", lock=_SCHEMA_LOCK)
        for statement in _SCHEMA:
            connection.run(statement)
        connection.run("COMMIT")
    [[version]] = connection.run("SELECT version FROM sluice_head")
    if version != _VERSION:
        raise SharedStoreError(
            f"the tables of the database have version {version}, which this program does not support",
            "use the release that created them",
        )


def _password(path: str) -> str | None:
    if not path:
        return None
    try:
        return read_deployed_secret(Path(path), _MAX_PASSWORD_BYTES).decode().rstrip("\n")
    except (StoreError, UnicodeDecodeError) as error:
        raise SharedStoreError(f"cannot read the password of the database in {path}", "check the file") from error


def _context(config: SharedStoreConfig) -> ssl.SSLContext:
    """The TLS context. Its files are read again for each connection, to use renewed certificates."""
    try:
        context = ssl.create_default_context(cafile=config.ca_file or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if config.certificate_file:
            read_deployed_secret(Path(config.key_file))
            context.load_cert_chain(config.certificate_file, config.key_file)
    except (OSError, StoreError) as error:
        raise SharedStoreError(
            f"cannot use the certificates of gateway.shared_store: {error}", "check the configured files"
        ) from error
    return context
