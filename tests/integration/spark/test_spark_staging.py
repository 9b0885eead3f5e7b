"""Staging tables and the row of decisions on each database; no Spark, no cluster."""

import datetime as dt
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from sqlalchemy import Engine, inspect, make_url, text
from tests.support.servers import MariaDB, PostgreSQL

from tallystick.dualwrite.errors import BadStore
from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.kernel.settings import BadConfig
from tallystick.spark.decisions.database import DecisionDatabase, get_engine, resolve_database
from tallystick.spark.decisions.row import DecisionRow
from tallystick.spark.decisions.staging import RowsRejected, StagingTable
from tallystick.spark.options.sinks import StagedMoves, ToTable, to_table
from tallystick.spark.protocol.committable import Decision, JobChecksums, RowChecksum
from tallystick.spark.protocol.errors import PrefixTaken, VoteLost

UTC = dt.UTC
NOON = dt.datetime(2026, 1, 2, 12, 0, tzinfo=UTC)

PAIR = ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(1))
NEXT = ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(2))


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgresql", marks=[pytest.mark.slow, pytest.mark.server]),
        pytest.param("mariadb", marks=[pytest.mark.slow, pytest.mark.server]),
    ]
)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == "sqlite":
        (tmp_path / "rows.db").touch()
        url = f"sqlite:///{tmp_path / 'rows.db'}"
    else:
        server: PostgreSQL | MariaDB = request.getfixturevalue(request.param)
        plain = make_url(server.url(server.new_database())).set(drivername=request.param)
        url = plain.render_as_string(hide_password=False)
    engine = get_engine(resolve_database(url))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE plain (id INTEGER PRIMARY KEY, name VARCHAR(20) UNIQUE)"))
        connection.execute(text("CREATE TABLE counts (word VARCHAR(20) PRIMARY KEY, n INTEGER NOT NULL)"))
    yield engine
    engine.dispose()


def staged(engine: Engine, sink: ToTable) -> StagingTable:
    made = StagingTable(engine, "p", sink)
    made.create()
    return made


def rows(**columns: Sequence[object]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values) for values in columns.values()], names=list(columns))


def move(engine: Engine, made: StagingTable, attempts: Sequence[str], many: int) -> None:
    with engine.begin() as connection:
        made.move(connection, attempts, many)


def select(engine: Engine, statement: str) -> list[tuple[object, ...]]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(statement))]


COUNTS = to_table("counts", columns=["word", "n"], write="upsert", keys=["word"])


def test_only_what_voted_attempts_staged_is_moved(engine: Engine) -> None:
    """[SPK-41]"""
    made = staged(engine, to_table("plain", columns=["id", "name"]))
    made.stage("a", 0, rows(id=[1, 2], name=["x", None]))
    made.stage("a", 2, rows(id=[3], name=["z"]))
    made.stage("zombie", 0, rows(id=[1, 9], name=["x", "y"]))
    move(engine, made, ["a", "nothing"], 3)
    assert select(engine, "SELECT id, name FROM plain ORDER BY id") == [(1, "x"), (2, None), (3, "z")]


def test_an_upsert_replaces_by_its_keys(engine: Engine) -> None:
    made = staged(engine, COUNTS)
    for attempt, words, numbers in (("a", ["one", "two"], [1, 2]), ("b", ["two", "three"], [22, 3])):
        made.stage(attempt, 0, rows(word=words, n=numbers))
        move(engine, made, [attempt], 2)
    assert select(engine, "SELECT word, n FROM counts ORDER BY n") == [("one", 1), ("three", 3), ("two", 22)]


def test_an_upsert_of_keys_alone(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE seen (id INTEGER PRIMARY KEY)"))
    made = staged(engine, to_table("seen", columns=["id"], write="upsert", keys=["id"]))
    made.stage("a", 0, rows(id=[1, 2]))
    for _ in range(2):
        move(engine, made, ["a"], 2)
    assert select(engine, "SELECT id FROM seen ORDER BY id") == [(1,), (2,)]


def test_two_rows_with_the_same_keys_are_refused(engine: Engine) -> None:
    """Which one is the later? PostgreSQL would refuse, the others would take either."""
    made = staged(engine, COUNTS)
    made.stage("a", 0, rows(word=["one"], n=[1]))
    made.stage("b", 0, rows(word=["one"], n=[2]))
    with pytest.raises(RowsRejected, match="several rows of this batch have word='one'"):
        move(engine, made, ["a", "b"], 2)
    assert select(engine, "SELECT word FROM counts") == []


def test_a_constraint_refuses_the_batch(engine: Engine) -> None:
    """[SPK-40] The staging table has none of them, so it is the deciding transaction that fails."""
    made = staged(engine, COUNTS)
    made.stage("a", 0, rows(word=["one", "two"], n=pa.array([1, None], pa.int32())))
    with pytest.raises(RowsRejected, match=r"counts does not take the rows .*Nothing was decided"):
        move(engine, made, ["a"], 2)
    assert select(engine, "SELECT word FROM counts") == []


def test_fewer_rows_than_were_voted_for(engine: Engine) -> None:
    """[SPK-41]"""
    made = staged(engine, COUNTS)
    made.stage("a", 0, rows(word=["one"], n=[1]))
    with pytest.raises(VoteLost, match="2 rows were staged, but 1 are there"):
        move(engine, made, ["a"], 2)


def test_values_of_every_kind(engine: Engine) -> None:
    """Instants as UTC where a column has no zone; JSON and UUIDs from text."""
    postgresql = engine.dialect.name == "postgresql"
    common = "id BIGINT, price FLOAT, at_noon TIMESTAMP NULL, day DATE, flag BOOLEAN"
    own = (
        "moment TIMESTAMPTZ, doc JSONB, ident UUID" if postgresql else "moment DATETIME, doc JSON, ident TEXT"
    )
    with engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE kinds ({common}, {own})"))
    names = ["id", "price", "at_noon", "day", "flag", "moment", "doc", "ident"]
    made = staged(engine, to_table("kinds", columns=names))
    zoned = pa.array([NOON, None], pa.timestamp("us", "America/New_York"))
    ident = "6f1c2a34-1111-4222-8333-444455556666"
    made.stage(
        "a",
        0,
        rows(
            id=[2**40, None],
            price=[1.5, None],
            at_noon=zoned,
            day=[dt.date(2026, 1, 2), None],
            flag=[True, None],
            moment=zoned,
            doc=['{"a": [1, null]}', None],
            ident=[ident, None],
        ),
    )
    move(engine, made, ["a"], 2)
    (found,) = select(engine, "SELECT id, price, flag FROM kinds WHERE id IS NOT NULL")
    assert found == (2**40, 1.5, True)
    made_at = {str(row[0])[:16] for row in select(engine, "SELECT at_noon FROM kinds WHERE id IS NOT NULL")}
    assert made_at == {"2026-01-02 12:00"}
    assert select(
        engine, "SELECT count(*) FROM kinds WHERE doc IS NULL AND moment IS NULL AND ident IS NULL"
    ) == [(1,)]
    if postgresql:
        assert select(engine, "SELECT doc->'a'->>0, cast(ident AS text) FROM kinds WHERE id IS NOT NULL") == [
            ("1", ident)
        ]
        assert select(engine, "SELECT extract(epoch FROM moment) FROM kinds WHERE id IS NOT NULL") == [
            (Decimal(int(NOON.timestamp())),)
        ]


def test_texts_that_a_copy_has_marks_for(engine: Engine) -> None:
    """PostgreSQL, COPY, "Text Format": tab, newline, backslash, \\N and \\. mean something."""
    texts = ["a\tb", "new\nline", "\r", "\\", "\\N", "\\.", "", "'\"%s%", "\u00e9", None]
    made = staged(engine, to_table("plain", columns=["id", "name"]))
    made.stage("a", 0, rows(id=range(len(texts)), name=texts))
    move(engine, made, ["a"], len(texts))
    assert [row[0] for row in select(engine, "SELECT name FROM plain ORDER BY id")] == texts


def test_values_that_are_cast_on_their_way(engine: Engine) -> None:
    """A whole number that Spark has as a double; COPY would not read it."""
    made = staged(engine, COUNTS)
    made.stage("a", 0, rows(word=["one"], n=[7.0]))
    made.stage("a", 1, rows(word=["two"], n=[8]))
    move(engine, made, ["a"], 2)
    assert select(engine, "SELECT word, n FROM counts ORDER BY n") == [("one", 7), ("two", 8)]


def test_a_sweep_passes_by_a_zombie_in_the_middle_of_its_insert(engine: Engine) -> None:
    """[SPK-42] What it leaves has no vote, so there is no need to wait for it."""
    if engine.dialect.name != "postgresql":
        pytest.skip("SQLite has one writer at a time, and InnoDB waits for its lock")
    made = staged(engine, COUNTS)
    made.stage("a", 0, rows(word=["one"], n=[1]))
    with engine.begin() as zombie:
        zombie.execute(text(f"INSERT INTO {made.table.name} VALUES ('z', 0, 'late', 1)"))
        with engine.begin() as connection:
            made.sweep(connection)
    assert select(engine, f"SELECT word FROM {made.table.name}") == [("late",)]
    with engine.begin() as connection:
        made.sweep(connection)
    assert select(engine, f"SELECT word FROM {made.table.name}") == []


def test_a_staging_table_follows_its_target(engine: Engine) -> None:
    sink = to_table("counts", columns=["word", "n"])
    made = staged(engine, sink)
    made.stage("a", 0, rows(word=["one"], n=[1]))
    assert select(engine, f"SELECT count(*) FROM {staged(engine, sink).table.name}") == [(1,)]
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE counts"))
        connection.execute(text("CREATE TABLE counts (word VARCHAR(20), n INTEGER, more INTEGER)"))
    again = staged(engine, to_table("counts", columns=["word", "n", "more"]))
    assert again.table.name == made.table.name
    assert "more" in {each["name"] for each in inspect(engine).get_columns(again.table.name)}


# ------------------------------------------------------------------------------ what is refused at the start


@pytest.mark.gate(6)
@pytest.mark.parametrize(
    ("sink", "problem"),
    [
        (to_table("nowhere", columns=["a"]), "table nowhere: does not exist in the database"),
        (to_table("counts", columns=["word", "m"]), "table counts: has no column m; it has word, n"),
        (
            to_table("counts", columns=["word"]),
            "column n may not be null, has no default, and is not written",
        ),
        (
            to_table("counts", columns=["word", "n"], write="upsert", keys=["n"]),
            "table counts: keys n: what it keeps unique is word",
        ),
    ],
)
def test_tables_that_do_not_fit(engine: Engine, sink: ToTable, problem: str) -> None:
    with pytest.raises(BadConfig, match=problem):
        StagingTable(engine, "p", sink)


def test_mariadb_is_not_asked_to_choose_a_key(engine: Engine) -> None:
    sink = to_table("plain", columns=["id", "name"], write="upsert", keys=["id"])
    if engine.dialect.name in ("mysql", "mariadb"):
        with pytest.raises(BadConfig, match="several unique keys"):
            StagingTable(engine, "p", sink)
    else:
        assert StagingTable(engine, "p", sink).sink == sink


# -------------------------------------------------------------------------------------- the row


def decision(nonce: str) -> Decision:
    batches = (JobChecksums(0, (RowChecksum(1, 2**64 - 1),)),)
    return Decision(
        nonce=nonce,
        participants=(),
        transaction_version=2,
        decided_ms=1,
        query_id="ü",
        batches=batches,
        offsets='{"t":{"0":1}}',
    )


def test_a_row_is_decided_by_its_owner_alone(engine: Engine) -> None:
    """[SPK-40] [SPK-43]"""
    made = staged(engine, COUNTS)
    row = DecisionRow(engine, "p", [made])
    assert row.claim(PAIR, lambda: True)
    assert row.read().decision is None
    made.stage("a", 0, rows(word=["one"], n=[1]))
    moves = StagedMoves(attempts=("a",), rows=(1,))
    with pytest.raises(PrefixTaken):
        row.decide(decision("x"), NEXT, moves)
    assert not row.claim(NEXT, lambda: False)
    row.decide(decision("x"), PAIR, moves)
    assert (row.read().decision, row.read().is_complete) == (decision("x"), False)
    row.mark_done("an older one")
    assert not row.read().is_complete
    row.mark_done("x")
    assert row.read().is_complete
    assert row.claim(NEXT, lambda: True)
    assert select(engine, "SELECT word, n FROM counts") == [("one", 1)]
    assert select(engine, f"SELECT * FROM {made.table.name}") == []
    assert row.read().decision == decision("x")
    row.forget(NEXT)
    assert row.read().decision is None


def test_a_failed_move_takes_the_decision_back(engine: Engine) -> None:
    """[SPK-40]"""
    made = staged(engine, COUNTS)
    row = DecisionRow(engine, "p", [made])
    row.claim(PAIR, lambda: True)
    with pytest.raises(VoteLost):
        row.decide(decision("x"), PAIR, StagedMoves(attempts=("a",), rows=(1,)))
    assert row.read().decision is None


def test_a_table_of_another_version_is_refused(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE tallystick_decisions (prefix VARCHAR(20) PRIMARY KEY)"))
    with pytest.raises(BadStore, match="it has no owner, nonce, done, decision"):
        DecisionRow(engine, "p").read()


# ------------------------------------------------------------------------------------- where it is


def test_sqlite_is_for_the_drivers_host_alone(tmp_path: Path) -> None:
    """A task elsewhere would write into a file of its own, and vote for it."""
    path = tmp_path / "rows.db"
    with pytest.raises(BadConfig, match="is not a file on this host"):
        resolve_database(f"sqlite:///{path}")
    with pytest.raises(BadConfig, match=":memory:"):
        resolve_database("sqlite://")
    path.touch()
    elsewhere = DecisionDatabase(url=f"sqlite:///{path}", sqlite_location="another host")
    with pytest.raises(BadConfig, match=r"does not have the driver's file.*use a database server"):
        get_engine(elsewhere)
    assert get_engine(resolve_database(f"sqlite:///{path}")).dialect.name == "sqlite"


def test_an_unsupported_database_is_refused() -> None:
    with pytest.raises(BadConfig, match="oracle is not PostgreSQL, MySQL, MariaDB or SQLite"):
        resolve_database("oracle://localhost/x")
