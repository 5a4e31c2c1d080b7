"""The metadata commands: catalogs, schemas and tables of a principal's session, in the schemas of Flight SQL.

Source: https://github.com/apache/arrow/blob/main/format/FlightSql.proto
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import pyarrow as pa
from grpclib.const import Status

from sluice.gateway.flight_sql.messages import Message, text
from sluice.gateway.flight_sql.rows import Row, read_rows
from sluice.gateway.flight_sql.spark import SparkSql
from sluice.gateway.flight_sql.statements import StatementRefused
from sluice.pki.assertions import Assertion

MAX_STATEMENTS = 2000
"""Statements that one metadata command may run: two for each schema, one for the columns of each table."""
MAX_TABLES = 10_000
MAX_PATTERN_CHARACTERS = 256
TABLE, VIEW = "TABLE", "VIEW"
TABLE_TYPES = (TABLE, VIEW)


def _required(name: str, kind: pa.DataType) -> pa.Field[Any]:
    return pa.field(name, kind, nullable=False)


_INFO_VALUE = pa.dense_union(
    [
        pa.field("string_value", pa.string()),
        pa.field("bool_value", pa.bool_()),
        pa.field("bigint_value", pa.int64()),
        pa.field("int32_bitmask", pa.int32()),
        pa.field("string_list", pa.list_(pa.string())),
        pa.field("int32_to_int32_list_map", pa.map_(pa.int32(), pa.list_(pa.int32()))),
    ]
)
_TABLE_FIELDS = [
    pa.field("catalog_name", pa.string()),
    pa.field("db_schema_name", pa.string()),
    _required("table_name", pa.string()),
    _required("table_type", pa.string()),
]
SCHEMAS: dict[str, pa.Schema] = {
    "CommandGetSqlInfo": pa.schema([_required("info_name", pa.uint32()), _required("value", _INFO_VALUE)]),
    "CommandGetCatalogs": pa.schema([_required("catalog_name", pa.string())]),
    "CommandGetDbSchemas": pa.schema(
        [pa.field("catalog_name", pa.string()), _required("db_schema_name", pa.string())],
    ),
    "CommandGetTables": pa.schema(_TABLE_FIELDS),
    "CommandGetTableTypes": pa.schema([_required("table_type", pa.string())]),
}
"""The commands that this module answers -> the schema of the answer."""
_TABLES_WITH_SCHEMA = pa.schema([*_TABLE_FIELDS, _required("table_schema", pa.binary())])

_STRING, _BOOL, _INT32 = 0, 1, 3
_SQL_INFO: dict[int, tuple[int, str | bool | int]] = {
    0: (_STRING, "Sluice"),
    1: (_STRING, version("sluice")),
    2: (_STRING, pa.__version__),
    3: (_BOOL, False),  # read only
    4: (_BOOL, True),  # SQL
    5: (_BOOL, False),  # Substrait
    8: (_INT32, 0),  # transactions: none
    9: (_BOOL, False),  # CancelQuery: not needed, closing the stream of a result cancels its statement
    500: (_BOOL, False),  # DDL of catalogs, schemas and tables
    501: (_BOOL, True),
    502: (_BOOL, True),
    504: (_STRING, "`"),
}
"""``SqlInfo`` number -> kind and value."""


def schema_of(name: str, command: Message) -> pa.Schema:
    """The schema of the answer to a command of :data:`SCHEMAS`."""
    return _TABLES_WITH_SCHEMA if name == "CommandGetTables" and command.include_schema else SCHEMAS[name]


async def answer(spark: SparkSql, who: Assertion, name: str, command: Message) -> pa.Table:
    """Answer a command of :data:`SCHEMAS`, with statements in the session of ``who``."""
    schema = schema_of(name, command)
    browser = _Browser(spark, who)
    match name:
        case "CommandGetSqlInfo":
            return _sql_info(command.info)
        case "CommandGetTableTypes":
            return pa.table([list(TABLE_TYPES)], schema=schema)
        case "CommandGetCatalogs":
            return pa.table([await browser.catalogs()], schema=schema)
        case "CommandGetDbSchemas":
            schemas = await browser.schemas(command)
            return pa.table([[each[0] for each in schemas], [each[1] for each in schemas]], schema=schema)
        case _:
            rows = await browser.tables(command)
            return pa.table([[row[number] for row in rows] for number in range(len(schema))], schema=schema)


def _sql_info(wanted: Sequence[int]) -> pa.Table:
    known = {number: _SQL_INFO[number] for number in sorted(set(wanted) & _SQL_INFO.keys())} if wanted else _SQL_INFO
    children: list[list[str | bool | int]] = [[] for _ in range(_INFO_VALUE.num_fields)]
    offsets = []
    for kind, value in known.values():
        offsets.append(len(children[kind]))
        children[kind].append(value)
    values = pa.UnionArray.from_dense(
        pa.array([kind for kind, _ in known.values()], pa.int8()),
        pa.array(offsets, pa.int32()),
        [pa.array(child, field.type) for child, field in zip(children, _INFO_VALUE, strict=True)],
        [field.name for field in _INFO_VALUE],
    )
    schema = SCHEMAS["CommandGetSqlInfo"]
    return pa.Table.from_arrays([pa.array(list(known), pa.uint32()), values.cast(_INFO_VALUE)], schema=schema)


class _Browser:
    """Queries the session of one principal, for one command."""

    def __init__(self, spark: SparkSql, who: Assertion) -> None:
        self._spark = spark
        self._who = who
        self._left = MAX_STATEMENTS

    async def catalogs(self) -> list[str]:
        return _column(await self._rows("SHOW CATALOGS"), "catalog")

    async def schemas(self, command: Message) -> list[tuple[str, str]]:
        catalogs = await self.catalogs()
        if command.HasField("catalog"):
            catalogs = [each for each in catalogs if each == text(command.catalog)]
        wanted = _pattern(command, "db_schema_filter_pattern")
        found: list[tuple[str, str]] = []
        for catalog in catalogs:
            shown = _column(await self._rows(f"SHOW SCHEMAS IN {quoted(catalog)}"), "namespace")
            found += [(catalog, name) for name in map(unquoted, shown) if is_like(name, wanted)]
        return found

    async def tables(self, command: Message) -> list[tuple[str | bytes, ...]]:
        wanted = _pattern(command, "table_name_filter_pattern")
        kinds = {text(each) for each in command.table_types} or set(TABLE_TYPES)
        found: list[tuple[str | bytes, ...]] = []
        for catalog, schema in await self.schemas(command):
            place = f"{quoted(catalog)}.{quoted(schema)}"
            views = await self._views(place)
            for row in await self._rows(f"SHOW TABLES IN {place}"):
                name = str(row.get("tableName"))
                kind = VIEW if name in views else TABLE
                if row.get("isTemporary") is True or kind not in kinds or not is_like(name, wanted):
                    continue
                entry = (catalog, schema, name, kind)
                if command.include_schema:
                    self._spend()
                    everything = f"SELECT * FROM {place}.{quoted(name)}"  # noqa: S608  quoted
                    found.append((*entry, await self._spark.schema(self._who, everything) or _NO_COLUMNS))
                else:
                    found.append(entry)
                if len(found) > MAX_TABLES:
                    raise StatementRefused(Status.RESOURCE_EXHAUSTED, f"more than {MAX_TABLES} tables: narrow it down")
        return found

    async def _views(self, place: str) -> set[str]:
        rows = await self._rows(f"SHOW VIEWS IN {place}")
        return {str(row.get("viewName")) for row in rows if row.get("isTemporary") is not True}

    async def _rows(self, sql: str) -> list[Row]:
        self._spend()
        async with contextlib.aclosing(self._spark.results(self._who, sql)) as streams:
            return await read_rows(streams)

    def _spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise StatementRefused(Status.RESOURCE_EXHAUSTED, "too many schemas and tables: narrow it down")


_NO_COLUMNS = pa.schema([]).serialize().to_pybytes()


def quoted(name: str) -> str:
    """``name`` as an identifier of Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"


def unquoted(name: str) -> str:
    """The name of an identifier as Spark shows it, in backticks only where necessary."""
    return name[1:-1].replace("``", "`") if len(name) > 1 and name[0] == name[-1] == "`" else name


def is_like(name: str, pattern: str) -> bool:
    """Whether ``name`` matches a Flight SQL pattern: ``%`` is any text, ``_`` any character. Needs no recursion."""
    at, position, star, tried = 0, 0, -1, 0
    while at < len(name):
        if position < len(pattern) and pattern[position] == "%":
            star, tried, position = position, at, position + 1
        elif position < len(pattern) and pattern[position] in {"_", name[at]}:
            at, position = at + 1, position + 1
        elif star >= 0:
            tried += 1
            at, position = tried, star + 1
        else:
            return False
    return not pattern[position:].strip("%")


def _pattern(command: Message, field: str) -> str:
    """The pattern in ``field`` of a command; ``%`` when the field is absent."""
    pattern = text(getattr(command, field)) if command.HasField(field) else "%"
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise StatementRefused(Status.INVALID_ARGUMENT, f"a pattern of more than {MAX_PATTERN_CHARACTERS} characters")
    return pattern


def _column(rows: list[Row], name: str) -> list[str]:
    return [str(row[name]) for row in rows if name in row]
