"""Values of each type in tables of a database: its driver reads them as they were, or they are refused."""

import datetime as dt
import sqlite3
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import psycopg
import pyarrow as pa
import pymysql
import pytest
from sqlalchemy import Engine, make_url, text
from sqlalchemy.exc import SQLAlchemyError
from tests.support.servers import MariaDB, PostgreSQL

from tallystick.spark.decisions.database import get_engine, resolve_database
from tallystick.spark.decisions.staging import RowsRejected, StagingTable
from tallystick.spark.options.sinks import to_table

UTC: Final = pa.timestamp("us", "UTC")
LOCAL: Final = pa.timestamp("us")
# In New York, the second one is in the hour that comes twice, the third in the one that does not come.
MOMENTS: Final = (
    dt.datetime(1970, 1, 2, tzinfo=dt.UTC),
    dt.datetime(2024, 11, 3, 6, 30, tzinfo=dt.UTC),
    dt.datetime(2024, 3, 10, 2, 30, 0, 123_456, tzinfo=dt.UTC),
)
NAIVE: Final = tuple(each.replace(tzinfo=None) for each in MOMENTS)
SECONDS: Final = [Decimal(f"{each.timestamp():.6f}") for each in MOMENTS]
DAYS: Final = ["0001-01-01", "9999-12-31"]
NAN: Final = float("nan")
REFUSED: Final = "refused"

# The column in the table, its type in the batch, values, how they are read, and what is read if not the same.
Cell = tuple[str, pa.DataType, Sequence[Any], str, Any]
EVERYWHERE: Final[list[Cell]] = [
    ("BIGINT", pa.int64(), [-(2**63), 2**63 - 1, None], "c", None),
    ("DOUBLE PRECISION", pa.float64(), [0.1 + 0.2, -1.7976931348623157e308, 5e-324, None], "c", None),
    ("DOUBLE PRECISION", pa.int64(), [2**53 + 1], "c", REFUSED),
    ("DOUBLE PRECISION", pa.int64(), [2**53], "c", [2.0**53]),
    ("DOUBLE PRECISION", pa.decimal128(20, 4), [Decimal("1234567890123456.7891")], "c", REFUSED),
    ("VARCHAR(20)", pa.string(), ["", "a ", "\U0001f600", None], "c", None),
    ("DATE", pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)], "CAST(c AS CHAR(10))", DAYS),
    ("DATE", LOCAL, [NAIVE[2]], "c", REFUSED),
]  # fmt: skip
SERVERS: Final[list[Cell]] = [
    ("SMALLINT", pa.int32(), [2**15], "c", REFUSED),
    ("INTEGER", pa.float64(), [2.0, None], "c", [2, None]),
    ("INTEGER", pa.float64(), [1.5], "c", REFUSED),
    ("INTEGER", pa.float64(), [NAN], "c", REFUSED),
    ("INTEGER", pa.decimal128(4, 1), [Decimal("1.5")], "c", REFUSED),
    ("INTEGER", pa.decimal128(4, 1), [Decimal("2.0")], "c", [2]),
    ("NUMERIC(10,2)", pa.decimal128(10, 4), [Decimal("1.2300"), None], "c", [Decimal("1.23"), None]),
    ("NUMERIC(10,2)", pa.decimal128(10, 4), [Decimal("1.2355")], "c", REFUSED),
    ("NUMERIC(4,2)", pa.decimal128(10, 2), [Decimal("123.00")], "c", REFUSED),
    ("NUMERIC(10,2)", pa.float64(), [0.1, 12345.67], "c", [Decimal("0.10"), Decimal("12345.67")]),
    ("NUMERIC(10,2)", pa.float64(), [0.125], "c", REFUSED),
    (
        "NUMERIC(38,10)",
        pa.decimal128(38, 10),
        [Decimal("1234567890123456789012345678.0123456789")],
        "c",
        None,
    ),
    ("VARCHAR(3)", pa.string(), ["abcd"], "c", REFUSED),
]
MARIADB: Final[list[Cell]] = [
    ("TIMESTAMP(6) NULL", UTC, MOMENTS, "UNIX_TIMESTAMP(c)", SECONDS),
    ("TIMESTAMP NULL", UTC, [MOMENTS[2]], "c", REFUSED),
    ("TIMESTAMP(6) NULL", LOCAL, NAIVE, "c", REFUSED),
    ("DATETIME(6)", UTC, MOMENTS, "c", list(NAIVE)),
    ("DATETIME(6)", LOCAL, NAIVE, "c", None),
    ("DATETIME(3)", LOCAL, [NAIVE[2]], "c", REFUSED),
    ("DATETIME", UTC, [dt.datetime(2024, 12, 31, 23, 59, 59, 600_000, tzinfo=dt.UTC)], "c", REFUSED),
    ("DATETIME", UTC, [MOMENTS[0]], "c", [NAIVE[0]]),
    ("FLOAT", pa.float64(), [0.1], "c", REFUSED),
    ("FLOAT", pa.float32(), [0.10000000149011612], "CAST(c AS DOUBLE)", None),
    ("DOUBLE", pa.float64(), [NAN], "c", REFUSED),
    ("BOOLEAN", pa.bool_(), [True, False], "c", [1, 0]),
    ("VARBINARY(4)", pa.binary(), [b"a\0", b""], "c", None),
    ("BIGINT UNSIGNED", pa.int64(), [-1], "c", REFUSED),
]
POSTGRESQL: Final[list[Cell]] = [
    ("TIMESTAMPTZ", UTC, MOMENTS, "extract(epoch FROM c)", SECONDS),
    ("TIMESTAMPTZ", LOCAL, NAIVE, "c", REFUSED),
    ("TIMESTAMP", UTC, MOMENTS, "c", list(NAIVE)),
    ("TIMESTAMP(0)", UTC, [MOMENTS[2]], "c", REFUSED),
    ("REAL", pa.float64(), [0.1], "c", REFUSED),
    ("REAL", pa.float32(), [0.10000000149011612], "CAST(c AS double precision)", None),
    ("NUMERIC", pa.decimal128(10, 4), [Decimal("1.2355")], "c", None),
    ("NUMERIC", pa.float64(), [NAN], "CAST(c AS text)", ["NaN"]),
    ("DOUBLE PRECISION", pa.float64(), [NAN, float("inf")], "c", None),
    ("BOOLEAN", pa.bool_(), [True, None], "c", None),
    ("BYTEA", pa.binary(), [b"\\x00\xff", b""], "c", None),
    ("TEXT", pa.string(), ["a\0b"], "c", REFUSED),
]
SQLITE: Final[list[Cell]] = [
    ("REAL", pa.float64(), [NAN], "c", REFUSED),
    ("NUMERIC(20,4)", pa.decimal128(20, 4), [Decimal("1234567890123456.7891")], "c", REFUSED),
    ("NUMERIC(20,4)", pa.decimal128(20, 4), [Decimal("0.1000")], "c", [0.1]),
    ("INTEGER", pa.float64(), [1.5], "c", None),
    ("TIMESTAMP", UTC, [MOMENTS[2]], "c", ["2024-03-10 02:30:00.123456"]),
    ("BLOB", pa.binary(), [b"a\0"], "c", None),
]
SERVER = (pytest.mark.slow, pytest.mark.server)
CELLS = [
    *(pytest.param("sqlite", cell) for cell in (*EVERYWHERE, *SQLITE)),
    *(pytest.param("mariadb", cell, marks=SERVER) for cell in (*EVERYWHERE, *SERVERS, *MARIADB)),
    *(pytest.param("postgresql", cell, marks=SERVER) for cell in (*EVERYWHERE, *SERVERS, *POSTGRESQL)),
]


class Database:
    """A database whose sessions are five hours behind UTC, and its plain driver."""

    def __init__(self, name: str, url: str) -> None:
        self.name, self.url = name, url
        self.engine: Engine = get_engine(resolve_database(url))

    def ask(self, query: str) -> list[Any]:
        address = make_url(self.url)
        if self.name == "sqlite":
            connection: Any = sqlite3.connect(address.database or "")
        elif self.name == "mariadb":
            place: Any = {"host": address.host, "port": address.port, "user": address.username}
            connection = pymysql.connect(database=address.database, **place)
        else:
            place = f"host={address.host} port={address.port} user={address.username}"
            connection = psycopg.connect(f"{place} dbname={address.database}")
        try:
            cursor = connection.cursor()
            cursor.execute(query)
            return [row[0] for row in cursor.fetchall()]
        finally:
            connection.close()


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    name = request.param
    if name == "sqlite":
        (tmp_path / "rows.db").touch()
        made = Database(name, f"sqlite:///{tmp_path / 'rows.db'}")
    else:
        server: PostgreSQL | MariaDB = request.getfixturevalue(name)
        url = make_url(server.url(server.new_database())).set(drivername=name)
        behind = (
            {"init_command": "SET time_zone = '-05:00'"}
            if name == "mariadb"
            else {"options": "-c timezone=-05"}
        )
        made = Database(name, url.set(query=behind).render_as_string(hide_password=False))
    yield made
    made.engine.dispose()


def write(database: Database, ddl: str, rows: pa.RecordBatch, **options: Any) -> None:
    with database.engine.begin() as connection:
        connection.execute(text(ddl))
    made = StagingTable(database.engine, "p", to_table("t", columns=rows.schema.names, **options))
    made.create()
    made.stage("a", 0, rows)
    with database.engine.begin() as connection:
        made.move(connection, ["a"], rows.num_rows)


@pytest.mark.gate(4)
@pytest.mark.parametrize(("database", "cell"), CELLS, indirect=["database"])
def test_values_are_the_same_for_the_driver_or_refused(database: Database, cell: Cell) -> None:
    column, kind, values, read, expected = cell
    rows = pa.record_batch({"id": list(range(len(values))), "c": pa.array(values, kind)})
    if expected == REFUSED:
        # By the sink or by the database; always by name.
        with pytest.raises((RowsRejected, SQLAlchemyError, psycopg.Error, ValueError), match=r"\bc\b"):
            write(database, f"CREATE TABLE t (id INTEGER, c {column})", rows)
        return
    write(database, f"CREATE TABLE t (id INTEGER, c {column})", rows)
    found = database.ask(f"SELECT {read} FROM t ORDER BY id")
    assert repr([_plain(each) for each in found]) == repr(list(values if expected is None else expected))


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else value


@pytest.mark.parametrize("database", [pytest.param("mariadb", marks=SERVER)], indirect=True)
def test_a_session_keeps_its_time_zone(database: Database) -> None:
    rows = pa.record_batch({"c": pa.array(MOMENTS, UTC)})
    write(database, "CREATE TABLE t (c TIMESTAMP(6) NULL)", rows)
    with database.engine.connect() as connection:
        assert connection.execute(text("SELECT @@session.time_zone")).scalar_one() == "-05:00"


DATABASES = ["sqlite", pytest.param("mariadb", marks=SERVER), pytest.param("postgresql", marks=SERVER)]


@pytest.mark.parametrize("database", DATABASES, indirect=True)
def test_an_upsert_without_a_key_is_refused(database: Database) -> None:
    rows = pa.record_batch({"k": pa.array([1, None], pa.int64()), "v": ["a", "b"]})
    with pytest.raises(RowsRejected, match="have no k, which is a key"):
        write(database, "CREATE TABLE t (k INTEGER UNIQUE, v VARCHAR(9))", rows, write="upsert", keys=["k"])
