"""Faults between the sink and its lake table, where topic and table are decided together.

Every step of the driver and of a task passes a point (`spark_torture`):

    file-write file-finish      a task's data files: rows on their way, and files that are durable
    lake-claim lake-decide      a commit, before it is sent and when it is answered

At a commit, `lose-answer` makes its outcome unknown, `rival` lets another writer append before it, and
`optimize` compacts the table and removes of its log or of its snapshots what is not needed.
"""

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from tests.support.spark_torture import Effects, EndedOneByOne, TorturedStation, strike
from tests.support.spark_torture_tables import find_format

from tallystick.client.net.cluster import Cluster
from tallystick.lake.data_files import DataFileWriter
from tallystick.lake.entries import CommitOutcome, LakeEntry
from tallystick.lake.names import parse_table_url
from tallystick.lake.opening import LakeLocation, open_table
from tallystick.lake.ports import DataFile
from tallystick.spark.decisions.store_log import DatabaseParticipants
from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.options.sinks import Sink, to_table, to_topic
from tallystick.spark.protocol.ports import DecisionLogPort, ParticipantsPort
from tallystick.spark.sink.driver.context import SinkContext, get_sink_context
from tallystick.spark.sink.driver.lake_context import LakeSinkContext
from tallystick.spark.sink.task.combined_attempt import LakeTarget

LAKE_POINTS: Final = tuple(
    f"{name}.{when}" for name in ("lake-claim", "lake-decide") for when in ("before", "after")
)
FILE_POINTS: Final = tuple(
    f"{name}.{when}" for name in ("file-write", "file-finish") for when in ("before", "after")
)


def locate(url: str) -> LakeLocation:
    place = parse_table_url(url).place
    options = find_format(url).read_options(place)
    return LakeLocation(url=parse_table_url(url), storage_options=tuple(sorted(options.items())))


def find_target(url: str) -> LakeTarget:
    return LakeTarget(location=locate(url), definition=open_table(locate(url)).read_definition())


def append_as_rival(url: str) -> None:
    find_format(url).append_as_rival(parse_table_url(url).place)


def optimize(url: str) -> None:
    find_format(url).optimize(parse_table_url(url).place)


def read_ids(url: str) -> list[str]:
    return find_format(url).read_ids(parse_table_url(url).place)


class TorturedTable:
    """The driver's table: each commit passes its points."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(
        self, version: int, entry: LakeEntry, files: Sequence[DataFile], keys: Sequence[str] = ()
    ) -> CommitOutcome:
        name = "lake-decide" if files else "lake-claim"
        match strike(f"{name}.before"):
            case "rival":
                append_as_rival(self._inner.url)
            case "optimize":
                append_as_rival(self._inner.url)
                optimize(self._inner.url)
        outcome: CommitOutcome = self._inner.commit(version, entry, files, keys)
        if strike(f"{name}.after") == "lose-answer":
            return CommitOutcome.UNKNOWN
        return outcome


class TorturedLakeStation(LakeSinkContext):
    """The driver's station."""

    def create_ports(self, cluster: Cluster) -> tuple[ParticipantsPort, DecisionLogPort]:
        self.lake_row._table = TorturedTable(self.lake_row._table)  # type: ignore[assignment]
        super().create_ports(cluster)
        one_by_one = EndedOneByOne(cluster, self.options, 20_000)
        participants: Any = Effects(DatabaseParticipants(one_by_one, self.lake_row))
        decisions: Any = Effects(self.decision_log)
        return participants, decisions


def disturb_files() -> None:
    """Let the data files of this process and its forks pass their points; repeated calls have no effect."""
    if getattr(DataFileWriter, "is_disturbed", False):
        return
    write, finish = DataFileWriter.write, DataFileWriter.finish

    def tortured_write(self: DataFileWriter, rows: pa.RecordBatch) -> None:
        strike("file-write.before")
        write(self, rows)
        strike("file-write.after")

    def tortured_finish(self: DataFileWriter) -> tuple[DataFile, ...]:
        strike("file-finish.before")
        files = finish(self)
        strike("file-finish.after")
        return files

    DataFileWriter.write = tortured_write  # type: ignore[method-assign]
    DataFileWriter.finish = tortured_finish  # type: ignore[method-assign]
    DataFileWriter.is_disturbed = True  # type: ignore[attr-defined]


def connect_lake_task(options: SinkOptions) -> SinkContext:
    """Return how a task reaches the cluster, with its data files disturbed."""
    disturb_files()
    return get_sink_context(options, TorturedStation)


def sinks(topic: str, url: str) -> tuple[Sink, ...]:
    table = to_table(url, columns={"id": "value"}, storage_options=dict(locate(url).storage_options))
    return to_topic(topic, key="value", value="value"), table
