"""Checkpoints that are no folder in Spark's eyes: the notes in them go through Spark's own file system.

Hadoop's viewfs stands for HDFS and object stores: another scheme, another file system, the same calls. Its
one mount is a folder of the test, so that a test can look at what was written.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from tests.integration.spark.test_spark_sink import ROWS, Place, Records, rows_of

from tallystick import Admin
from tallystick.spark import register
from tallystick.spark.checkpoint import BadCheckpoint, open_checkpoint, read_query_id
from tallystick.spark.files.hadoop import HadoopSystem, find_session_files
from tallystick.spark.sink.driver.foreach_topic import foreach_batch
from tallystick.testing import EmbeddedBroker

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.broker(in_process=False)]


class FarPath:
    """The location of a folder below a mount; it divides like a path."""

    def __init__(self, location: str) -> None:
        self.location = location

    def __truediv__(self, name: str) -> "FarPath":
        return FarPath(f"{self.location}/{name}")

    def __str__(self) -> str:
        return self.location


@pytest.fixture
def far(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[FarPath]:
    """Hadoop keeps a file system by its address, so every test has a table of mounts of its own."""
    name = f"cluster{abs(hash(request.node.name))}"
    (tmp_path / "mounted").mkdir()
    setting = f"fs.viewfs.mounttable.{name}.link./data"
    spark.conf.set(setting, f"file:{tmp_path}/mounted")
    yield FarPath(f"viewfs://{name}/data")
    spark.conf.unset(setting)


class FarPlace(Place):
    """A place whose checkpoints are behind the mount."""

    def __init__(self, spark: SparkSession, broker: EmbeddedBroker, folder: Path, far: FarPath) -> None:
        super().__init__(spark, broker, folder, far.location.split("/")[2])
        register(spark)
        self.far = far
        self.checkpoint = far / "checkpoint"  # type: ignore[assignment]

    def near(self, name: str = "checkpoint") -> Path:
        """Return the folder of a checkpoint, as the mount has it."""
        return self.folder / "mounted" / name

    def lose_commit(self, batch: int) -> None:
        for name in (str(batch), f".{batch}.crc"):
            (self.near() / "commits" / name).unlink(missing_ok=True)

    def ids(self) -> dict[str, object]:
        """Return every transactional id of the prefix, with the identity that may speak for it."""
        with Admin(self.client) as admin:
            listed = admin.list_transactions().all()
            names = [each.transactional_id for found in listed.values() for each in found]
            prefix = self.options["transactional.id.prefix"]
            described = admin.describe_transactions([n for n in names if n.startswith(prefix)]).all()
        return {name: each.writer for name, each in described.items()}


@pytest.fixture
def place(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path, far: FarPath) -> FarPlace:
    return FarPlace(spark, broker, tmp_path, far)


@pytest.mark.gate(0)
def test_a_new_query_is_refused_before_it_fences_the_owner_of_the_prefix(place: FarPlace) -> None:
    place.add(0)
    place.run()
    note = json.loads((place.near() / "tallystick" / "decisions.json").read_text())
    assert note["prefix"] == place.options["transactional.id.prefix"]
    before = place.ids()
    place.checkpoint = place.far / "new"  # type: ignore[assignment]
    with pytest.raises(StreamingQueryException, match=r"nothing of it is written\. UnknownCheckpoint"):
        place.run()
    # A worker of the first run may have opened its next producer since.
    assert place.ids().items() >= before.items()


@pytest.mark.gate(0)
def test_a_batch_whose_decision_is_elsewhere_is_not_written_again(place: FarPlace) -> None:
    """[SPK-29] By the note in the checkpoint, batch 0 too."""
    place.add(0)
    place.run()
    place.lose_commit(0)
    with pytest.raises(StreamingQueryException, match=r"DecisionsMissing.*the checkpoint belongs to"):
        place.run(None, **{"decisions.topic": "others"})
    place.run()
    assert place.written() == rows_of(0)


@pytest.mark.gate(0)
def test_a_deleted_checkpoint_is_resumed(place: FarPlace) -> None:
    """[SPK-3] [SPK-27] The source keeps its start, the sink reads it, and the end of every batch."""
    records = FarRecords(place)
    for batch, name in enumerate(("a", "a", "b")):
        records.add(batch)
        records.run(name)
    assert place.written() == rows_of(0, 1, 2)
    (start,) = (place.near("b") / "tallystick").glob("start-*.json")
    offsets = json.loads(start.read_text())["offsets"]
    assert offsets == {records.topic: {"0": ROWS, "1": ROWS}}  # of two batches


class FarRecords(Records):
    def run(self, checkpoint: str, source: object = None) -> None:
        place = self.place
        assert isinstance(place, FarPlace)
        place.checkpoint = place.far / checkpoint  # type: ignore[assignment]
        place.run(self.frame(**self.resuming()), onNewCheckpoint="resume")

    def resuming(self) -> dict[str, str]:
        return {**super().resuming(), "checkpointLocation": str(self.place.checkpoint)}


@pytest.mark.gate(0)
def test_foreach_batch_resumes_as_well(place: FarPlace) -> None:
    """[SPK-27] In the driver's own Python, which reads the notes itself."""
    records = FarRecords(place)
    for batch, name in enumerate(("a", "a", "b")):
        records.add(batch)
        place.checkpoint = place.far / name  # type: ignore[assignment]
        told = {"onNewCheckpoint": "resume", "checkpointLocation": str(place.checkpoint)}
        write = foreach_batch({**place.options, **told})
        place.finish(records.frame(**records.resuming()).writeStream.foreachBatch(write))
    assert place.written() == rows_of(0, 1, 2)
    assert (place.near("b") / "tallystick" / "decisions.json").exists()


def test_files_are_read_and_written_through_hadoop(spark: SparkSession, far: FarPath, tmp_path: Path) -> None:
    """The contract of `CheckpointFiles`, as the folder's has it."""
    files = HadoopSystem(spark).open(str(far))
    assert files.list_names("tallystick") == []
    assert not files.exists("metadata")
    with pytest.raises(FileNotFoundError):
        files.read("metadata")
    for text in ("ä\n", '{"id": "q"}'):
        files.write("metadata", text)
        assert files.read("metadata") == text
    files.write("tallystick/b.json", "1")
    files.write("tallystick/a.json", "2")
    assert files.list_names("tallystick") == ["a.json", "b.json"]
    assert files.exists("metadata")
    assert files.exists("tallystick")
    assert read_query_id(str(far)) == "q"
    assert (tmp_path / "mounted" / "metadata").read_text() == '{"id": "q"}'
    names = {path.name for path in (tmp_path / "mounted" / "tallystick").iterdir()}
    assert {name for name in names if not name.endswith(".crc")} == {"a.json", "b.json"}


def test_a_file_system_that_fails_is_not_taken_for_a_query_that_has_not_begun(spark: SparkSession) -> None:
    with pytest.raises(
        BadCheckpoint, match=r"viewfs://nowhere/data/metadata cannot be read.*Nothing was begun"
    ):
        read_query_id("viewfs://nowhere/data")
    with pytest.raises(BadCheckpoint, match="No FileSystem for scheme"):
        read_query_id("nosuch://bucket/a")


def test_a_location_without_a_scheme_is_on_hadoops_default_file_system(
    spark: SparkSession, far: FarPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On YARN /checkpoints/a is a folder of HDFS."""
    system = find_session_files()
    assert system is not None
    assert system.default_is_local
    assert str(open_checkpoint("/data")) == "/data"
    monkeypatch.setattr(HadoopSystem, "default_is_local", False)
    files = open_checkpoint("/data")
    assert type(files).__name__ == "HadoopFiles"
    assert type(open_checkpoint("file:/data")).__name__ == "LocalFiles"
