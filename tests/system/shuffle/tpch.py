"""TPC-H tables and queries from DuckDB, and its answers to them."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_tpch  # type: ignore[import-untyped]

TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")
QUERIES = tuple(range(1, 23))


@dataclass(frozen=True, slots=True)
class Answers:
    """The text of each query, and the rows that an engine other than Spark returns for it."""

    queries: dict[int, str]
    rows: dict[int, list[list[Any]]]


def generate(folder: Path, scale: float) -> Answers:
    """Write the tables at ``scale`` (1 is a gigabyte) to Parquet files in ``folder``, and answer all queries."""
    (extension,) = Path(duckdb_extension_tpch.__file__).parent.glob(
        f"extensions/v{duckdb.__version__}/tpch.duckdb_extension"
    )
    with duckdb.connect() as database:
        database.execute(f"load '{extension}'")  # signed by DuckDB; it loads no other
        database.execute(f"call dbgen(sf={scale})")
        for table in TABLES:
            database.execute(f"copy {table} to '{folder / table}.parquet' (format parquet, row_group_size 60000)")
        queries: dict[int, str] = {
            number: text.strip().rstrip(";")
            for number, text in database.execute("select query_nr, query from tpch_queries()").fetchall()
        }
        rows = {
            number: [[plain(value) for value in row] for row in database.execute(text).fetchall()]
            for number, text in queries.items()
        }
    return Answers(queries, rows)


def plain(value: Any) -> Any:
    """Convert a value to the form in which the Spark program returns it."""
    if isinstance(value, decimal.Decimal):
        return float(value)
    return str(value) if isinstance(value, dt.date) else value


def same(first: list[list[Any]], second: list[list[Any]]) -> bool:
    """Whether two answers agree, with rows in any order.

    Spark returns means and quotients of decimals with six digits, DuckDB as floating-point numbers.
    """
    if len(first) != len(second):
        return False
    pairs = zip(sorted(first, key=_key), sorted(second, key=_key), strict=True)
    return all(_agree(left, right) for ours, theirs in pairs for left, right in zip(ours, theirs, strict=True))


def _key(row: list[Any]) -> tuple[list[str], list[str]]:
    """A sort key: texts first, then numbers with only as many digits as both engines return."""
    texts = [str(value) for value in row if not isinstance(value, int | float)]
    return texts, [f"{value:024.3f}" for value in row if isinstance(value, int | float)]


def _agree(left: Any, right: Any) -> bool:
    if isinstance(left, int | float) and isinstance(right, int | float):
        return math.isclose(left, right, rel_tol=1e-6, abs_tol=1e-5)
    return bool(left == right)
