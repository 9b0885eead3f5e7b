"""Every cell of the table of Spark versions in docs/spark.md, with that version's PySpark.

`make spark-versions` takes the versions and runs this; a version that has not been taken is skipped.
"""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from deltalake import DeltaTable
from tests.support.reading import committed_records
from tests.support.spark_versions_child import ROWS, ROWS_A_BATCH
from tools.servers import delta_spark
from tools.servers.maven import Unavailable
from tools.servers.pyspark_versions import VERSIONS, find_folder

import tallystick
from tallystick import Admin, Producer
from tallystick.admin import NewTopic
from tallystick.spark.runtime.versions import SparkFeature, has_feature
from tallystick.testing import EmbeddedBroker, SchemaRegistry, eventually

pytestmark = [pytest.mark.gate(0), pytest.mark.server, pytest.mark.timeout(600)]

ALL = (*VERSIONS, pyspark.__version__)
PARTITIONS = 2
WRITERS = [
    "FOREACH_BATCH",
    "FOREACH_BATCH_WITH_TABLE",
    "FOREACH_BATCH_WITH_LAKE",
    "STREAM_WRITE",
    "STREAM_WRITE_WITH_LAKE",
]


class Driver:
    """A process that uses one version of PySpark."""

    def __init__(self, version: str, folder: Path, broker: EmbeddedBroker) -> None:
        place = find_folder(version)
        if place is None and version != pyspark.__version__:
            pytest.skip(f"PySpark {version} has not been taken: make spark-versions")
        with Admin({"bootstrap.servers": broker.bootstrap_servers}) as admin:
            admin.create_topics([NewTopic(name=name, partitions=PARTITIONS) for name in ("in", "out")])
        self._folder = folder
        self._bootstrap = broker.bootstrap_servers
        ours = (Path(__file__).parents[3], Path(tallystick.__file__).parents[1])
        path = [str(each) for each in (place, *ours) if each is not None]
        self._environment = {
            **{name: text for name, text in os.environ.items() if name not in ("SPARK_HOME", "PYTHONPATH")},
            "PYTHONPATH": os.pathsep.join(path),
        }

    def start(self, use: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.support.spark_versions_child"]
        with (self._folder / "log").open("a") as log:
            return subprocess.Popen(
                [*command, self._bootstrap, use, str(self._folder)],
                env=self._environment,
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,  # so that Java can be killed with it
            )

    def run(self, use: str) -> int:
        return self.start(use).wait(400)

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text()


def _read_topic(broker: EmbeddedBroker) -> list[str]:
    client = {"bootstrap.servers": broker.bootstrap_servers}
    return [(record.value or b"").decode() for record in committed_records(client, "out", PARTITIONS)]


@pytest.mark.parametrize("version", ALL)
@pytest.mark.parametrize("use", WRITERS)
def test_a_killed_driver_writes_every_row_once(version: str, use: str, tmp_path: Path) -> None:
    feature = SparkFeature[use.partition("_WITH_")[0]]
    if not has_feature(feature, version):
        pytest.skip("refused: test_what_a_version_lacks_is_refused")
    with EmbeddedBroker() as broker:
        driver = Driver(version, tmp_path, broker)
        first = driver.start(use)
        eventually(
            lambda: first.poll() is not None or len(_read_topic(broker)) >= ROWS_A_BATCH, deadline_s=200
        )
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        assert driver.run(use) == 0, driver.log[-3000:]
        assert sorted(_read_topic(broker)) == sorted(ROWS)
    if use == "FOREACH_BATCH_WITH_TABLE":
        with sqlite3.connect(tmp_path / "rows.db") as database:
            assert sorted(row for (row,) in database.execute("SELECT value FROM out")) == sorted(ROWS)
    if use.endswith("_WITH_LAKE"):
        table = DeltaTable(f"{tmp_path}/rows-table").to_pyarrow_table()
        assert sorted(table["value"].to_pylist()) == sorted(ROWS)


def test_delta_spark_reads_and_changes_the_table_that_a_query_writes(tmp_path: Path) -> None:
    """[LAK-1] [LAK-2] Made, appended to, compacted and updated by it; named as in Spark's catalog."""
    version = next(each for each in ALL if each.startswith(delta_spark.SPARK))
    try:
        delta_spark.JARS.take()
    except Unavailable as exc:
        pytest.skip(str(exc))
    with EmbeddedBroker() as broker:
        driver = Driver(version, tmp_path, broker)
        first = driver.start("DELTA_SPARK")
        eventually(
            lambda: first.poll() is not None or len(_read_topic(broker)) >= ROWS_A_BATCH, deadline_s=200
        )
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        assert driver.run("DELTA_SPARK") == 0, driver.log[-3000:]
        assert sorted(_read_topic(broker)) == sorted(ROWS)
    wanted = sorted([*ROWS, "changed"])
    assert sorted((tmp_path / "read").read_text().splitlines()) == wanted
    assert sorted(DeltaTable(f"{tmp_path}/rows table").to_pyarrow_table()["value"].to_pylist()) == wanted


@pytest.mark.parametrize("version", ALL)
def test_a_batch_is_written_once(version: str, tmp_path: Path) -> None:
    if not has_feature(SparkFeature.BATCH_WRITE, version):
        pytest.skip("refused: test_what_a_version_lacks_is_refused")
    with EmbeddedBroker() as broker:
        driver = Driver(version, tmp_path, broker)
        assert driver.run("BATCH_WRITE") == 0, driver.log[-3000:]
        assert sorted(_read_topic(broker)) == sorted(ROWS)


@pytest.mark.parametrize("version", ALL)
def test_records_are_written_with_a_schema(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[SPK-30] In Avro, with the schema of the columns."""
    if not has_feature(SparkFeature.STREAM_WRITE, version):
        pytest.skip("refused: test_what_a_version_lacks_is_refused")
    with EmbeddedBroker() as broker, SchemaRegistry() as registry:
        monkeypatch.setenv("REGISTRY", registry.url)
        driver = Driver(version, tmp_path, broker)
        assert driver.run("STREAM_WRITE_WITH_SCHEMA") == 0, driver.log[-3000:]
        deserialize = AvroDeserializer(SchemaRegistryClient({"url": registry.url}))
        config = {"bootstrap.servers": broker.bootstrap_servers}
        rows = [deserialize(each.value or b"", None) for each in committed_records(config, "out", PARTITIONS)]
    assert sorted(row["text"] for row in rows) == sorted(ROWS)


@pytest.mark.parametrize("version", ALL)
@pytest.mark.parametrize("use", ["BATCH_READ", "STREAM_READ"])
def test_every_row_is_read_once(version: str, use: str, tmp_path: Path) -> None:
    if not has_feature(SparkFeature[use], version):
        pytest.skip("refused: test_what_a_version_lacks_is_refused")
    with EmbeddedBroker() as broker:
        driver = Driver(version, tmp_path, broker)
        with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
            for row in ROWS:
                producer.send("in", row.encode())
        assert driver.run(use) == 0, driver.log[-3000:]
        assert sorted((tmp_path / "read").read_text().splitlines()) == sorted(ROWS)


@pytest.mark.parametrize(
    ("version", "feature"),
    [(version, feature) for version in ALL for feature in SparkFeature if not has_feature(feature, version)],
    ids=str,
)
def test_what_a_version_lacks_is_refused(version: str, feature: SparkFeature, tmp_path: Path) -> None:
    with EmbeddedBroker() as broker:
        driver = Driver(version, tmp_path, broker)
        assert driver.run(feature.name) != 0
        is_format = feature is not SparkFeature.REGISTER_SERIALIZER
        since = SparkFeature.BATCH_READ.since if is_format and version.startswith("3.") else feature.since
        needed = ".".join(map(str, since))
        assert f"needs PySpark {needed} or later, and this is {version}." in driver.log
        assert _read_topic(broker) == []
