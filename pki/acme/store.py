"""The state of the ACME server: ``<pki>/ca/acme.sqlite``, mode 0600.

Each change is on disk when its block ends. SQLite's locks separate the authority and ``sluice pki acme``. External
account keys are secret: they create accounts, not certificates. Everything else here is public.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from sluice.core import DatabaseKind, StoreError, check_database, make_database, make_private_directory
from sluice.pki.acme.objects import Account, Certificate, ExternalKey, Order, Status
from sluice.pki.ledger import ledger_path
from sluice.pki.x509 import DAMAGED_JSON

LOCK_SECONDS = 10.0
"""How long a second writer waits for the first."""
MAX_ACCOUNTS = 10_000
MAX_EXTERNAL_KEYS = 10_000
MAX_ORDERS = 20_000
"""Most orders, ended ones included."""
MAX_CERTIFICATES = 100_000
"""Most unexpired certificates."""
MAX_COMPROMISED = 100_000
ENDED_SECONDS = 24 * 3600.0
"""How long an order is kept after it has expired."""

_SCHEMA = (
    "CREATE TABLE external (id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, document BLOB NOT NULL)",
    "CREATE TABLE account (id TEXT PRIMARY KEY, thumbprint TEXT NOT NULL UNIQUE, document BLOB NOT NULL)",
    """CREATE TABLE orders (id TEXT PRIMARY KEY, account TEXT NOT NULL, expires REAL NOT NULL, status TEXT NOT NULL,
        document BLOB NOT NULL)""",
    "CREATE INDEX orders_of_account ON orders (account, status)",
    """CREATE TABLE certificate (serial TEXT PRIMARY KEY, account TEXT NOT NULL, not_after REAL NOT NULL,
        document BLOB NOT NULL)""",
    "CREATE TABLE compromised (key TEXT PRIMARY KEY)",
)
_KIND = DatabaseKind(
    "what an ACME server keeps",
    application_id=0x534C4143,  # "SLAC"
    format=1,
    schema=_SCHEMA,
    when_foreign="set it aside",
    when_damaged="remove it: accounts are made again",
)
_UNFINISHED = (Status.PENDING, Status.READY, Status.PROCESSING)

_T = TypeVar("_T", bound=msgspec.Struct)


def acme_path(pki: Path) -> Path:
    """The store of the ACME server of the authorities below ``pki``."""
    return ledger_path(pki).parent / "acme.sqlite"


class AcmeStore:
    """One open store; not for several threads at once.

    Raises:
        StoreError: from every method: damaged, readable by others, in use for too long, full, or the disk is full.
    """

    def __init__(self, path: Path, *, lock_seconds: float = LOCK_SECONDS) -> None:
        self._path = path
        make_private_directory(path.parent)
        make_database(path)
        check_database(path)
        with self._reporting():
            # The server creates it in one thread and uses it in another.
            self._database = sqlite3.connect(path, timeout=lock_seconds, isolation_level=None, check_same_thread=False)
        try:
            self._open()
        except BaseException:
            self._database.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    @contextlib.contextmanager
    def change(self) -> Iterator[None]:
        """All changes of a block together, or none: on the disk when it ends, undone when it raises."""
        with self._reporting():
            self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            with self._reporting():
                self._database.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")
            raise

    def external(self, identifier: str) -> ExternalKey | None:
        """The key of an external account with this id."""
        return self._one(ExternalKey, "SELECT document FROM external WHERE id = ?", identifier)

    def external_named(self, name: str) -> ExternalKey | None:
        """The key with this name."""
        return self._one(ExternalKey, "SELECT document FROM external WHERE name = ?", name)

    def externals(self) -> list[ExternalKey]:
        """All of them, by name."""
        return self._all(ExternalKey, "SELECT document FROM external ORDER BY name")

    def put_external(self, key: ExternalKey) -> None:
        """Keep a new or changed one."""
        self._check_room("external", key.id, MAX_EXTERNAL_KEYS)
        self._put("INSERT OR REPLACE INTO external VALUES (?, ?, ?)", key.id, key.name, key)

    def drop_external(self, identifier: str) -> None:
        """Forget one."""
        self._run("DELETE FROM external WHERE id = ?", identifier)

    def account(self, identifier: str) -> Account | None:
        """The account with this id."""
        return self._one(Account, "SELECT document FROM account WHERE id = ?", identifier)

    def account_with_key(self, thumbprint: str) -> Account | None:
        """The account with this key."""
        return self._one(Account, "SELECT document FROM account WHERE thumbprint = ?", thumbprint)

    def accounts(self) -> list[Account]:
        """All accounts."""
        return self._all(Account, "SELECT document FROM account ORDER BY id")

    def put_account(self, account: Account) -> None:
        """Keep a new or changed one."""
        self._check_room("account", account.id, MAX_ACCOUNTS)
        self._put("INSERT OR REPLACE INTO account VALUES (?, ?, ?)", account.id, account.thumbprint, account)

    def order(self, identifier: str) -> Order | None:
        """The order with this id."""
        return self._one(Order, "SELECT document FROM orders WHERE id = ?", identifier)

    def orders_of(self, account: str, limit: int) -> list[Order]:
        """The orders of an account, the latest first."""
        return self._all(
            Order, "SELECT document FROM orders WHERE account = ? ORDER BY expires DESC LIMIT ?", account, limit
        )

    def unfinished(self, account: str, now: float) -> int:
        """How many orders of an account are neither valid nor invalid nor expired."""
        rows = self._run(
            "SELECT count(*) FROM orders WHERE account = ? AND status IN (?, ?, ?) AND expires > ?",
            account,
            *_UNFINISHED,
            now,
        )
        return int(rows[0][0])

    def all_unfinished(self) -> list[Order]:
        """All such orders."""
        return self._all(Order, "SELECT document FROM orders WHERE status IN (?, ?, ?)", *_UNFINISHED)

    def put_order(self, order: Order) -> None:
        """Keep a new or changed one."""
        self._check_room("orders", order.id, MAX_ORDERS)
        self._put(
            "INSERT OR REPLACE INTO orders VALUES (?, ?, ?, ?, ?)",
            order.id,
            order.account,
            order.expires,
            order.status,
            order,
        )

    def certificate(self, serial: str) -> Certificate | None:
        """The certificate with this number, hexadecimal."""
        return self._one(Certificate, "SELECT document FROM certificate WHERE serial = ?", serial)

    def certificates_of(self, account: str) -> list[Certificate]:
        """Those of an account that have not expired."""
        return self._all(Certificate, "SELECT document FROM certificate WHERE account = ?", account)

    def put_certificate(self, certificate: Certificate) -> None:
        """Keep a new one."""
        self._check_room("certificate", certificate.serial, MAX_CERTIFICATES)
        self._put(
            "INSERT INTO certificate VALUES (?, ?, ?, ?)",
            certificate.serial,
            certificate.account,
            certificate.not_after,
            certificate,
        )

    def is_compromised(self, key: str) -> bool:
        """Whether a key, by its thumbprint, was revoked as compromised."""
        return bool(self._run("SELECT 1 FROM compromised WHERE key = ?", key))

    def put_compromised(self, key: str) -> None:
        """Remember a key that was revoked as compromised."""
        self._check_room("compromised", key, MAX_COMPROMISED)
        self._run("INSERT OR IGNORE INTO compromised VALUES (?)", key)

    def forget(self, now: float) -> None:
        """Drop orders that ended long ago and certificates that have expired."""
        self._run("DELETE FROM orders WHERE expires < ?", now - ENDED_SECONDS)
        self._run("DELETE FROM certificate WHERE not_after < ?", now)

    def _check_room(self, table: str, key: str, limit: int) -> None:
        column = {"certificate": "serial", "compromised": "key"}.get(table, "id")
        # `table` and `column` are constants of this module.
        found = self._run(
            f"SELECT count(*), EXISTS (SELECT 1 FROM {table} WHERE {column} = ?) FROM {table}",  # noqa: S608
            key,
        )
        count, exists = found[0]
        if count >= limit and not exists:
            raise StoreError(f"{self._path} has {limit} rows of {table}", "it accepts no more until some have expired")

    def _one(self, kind: type[_T], statement: str, *values: object) -> _T | None:
        found = self._all(kind, statement, *values)
        return found[0] if found else None

    def _all(self, kind: type[_T], statement: str, *values: object) -> list[_T]:
        try:
            return [msgspec.json.decode(row[0], type=kind) for row in self._run(statement, *values)]
        except DAMAGED_JSON as error:
            # The message names fields, never values, so it contains no secret.
            raise StoreError(f"{self._path} is damaged: {error}", _KIND.when_damaged) from None

    def _put(self, statement: str, *values: object) -> None:
        *columns, document = values
        self._run(statement, *columns, msgspec.json.encode(document))

    def _run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with self._reporting():
            return self._database.execute(statement, values).fetchall()

    def _open(self) -> None:
        with self._reporting():
            for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "secure_delete = ON", "synchronous = FULL"):
                self._database.execute(f"PRAGMA {pragma}")
        with self.change():
            _KIND.prepare(self._database, self._path, create=True)

    def _reporting(self) -> AbstractContextManager[None]:
        return _KIND.reporting(self._path)
