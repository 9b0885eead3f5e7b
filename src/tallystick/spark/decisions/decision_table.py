"""The table of decisions in a database: its columns, and how its rows are read.

It needs SQLAlchemy alone: the console reads decisions where nothing of Spark is installed.
"""

from collections.abc import Mapping
from typing import Final, cast

from sqlalchemy import (
    Column,
    Connection,
    Inspector,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    select,
)
from sqlalchemy.dialects import mysql

from tallystick.dualwrite.errors import BadStore
from tallystick.dualwrite.stores.sql_table import MYSQL, ExactText
from tallystick.kernel.value import Value
from tallystick.spark.protocol.committable import decode_decision
from tallystick.spark.protocol.decision_fold import DecisionState
from tallystick.spark.protocol.errors import BadCommittable

TABLE: Final = "tallystick_decisions"
SCHEMA_VERSION: Final = 1
DATABASE_NAME_KEY: Final = "#place"  # no prefix has this character

DECISIONS: Final = Table(
    TABLE,
    MetaData(),
    Column("prefix", ExactText, primary_key=True),
    Column("owner", String(64), nullable=False),
    Column("nonce", String(64)),
    Column("done", SmallInteger, nullable=False),
    Column("decision", Text().with_variant(mysql.LONGTEXT(charset="utf8mb4"), *MYSQL)),
    Column("schema_version", Integer, nullable=False),
    mysql_engine="InnoDB",
)


class StoredDecisions(Value, kw_only=True):
    """The decisions of all prefixes in a database; those that cannot be read are in `failures`."""

    states: Mapping[str, DecisionState]
    failures: Mapping[str, str]


def check_columns(inspector: Inspector) -> None:
    """Raise BadStore for a table of another version."""
    names = {each["name"] for each in inspector.get_columns(TABLE)}
    if missing_names := [each.name for each in DECISIONS.columns if each.name not in names]:
        raise BadStore(f"table {TABLE} is of another version: it has no {', '.join(missing_names)}")


def read_decision(row: Mapping[str, object]) -> DecisionState:
    """Decode a row. Raises: BadStore for one of another version; BadCommittable."""
    if row["schema_version"] != SCHEMA_VERSION:
        raise BadStore(f"{TABLE}: the row of {row['prefix']!r} has version {row['schema_version']}")
    if row["decision"] is None:
        return DecisionState()
    return DecisionState(
        decision=decode_decision(str(row["decision"]).encode()), is_complete=bool(row["done"])
    )


def read_all(connection: Connection) -> StoredDecisions:
    """Read the last decisions of all prefixes that have a row."""
    states: dict[str, DecisionState] = {}
    failures: dict[str, str] = {}
    for row in connection.execute(select(DECISIONS).order_by(DECISIONS.c.prefix)).mappings():
        prefix = str(row["prefix"])
        if prefix == DATABASE_NAME_KEY:
            continue
        try:
            states[prefix] = read_decision(cast(Mapping[str, object], row))
        except (BadStore, BadCommittable) as exc:
            failures[prefix] = str(exc)
    return StoredDecisions(states=states, failures=failures)
