"""Faults between the sink and its lake table, where topic and table are decided together.

Every step of the driver and of a task passes a point (`spark_torture`):

    file-write file-finish      a task's data files: rows on their way, and files that are durable
    lake-claim lake-decide      a commit, before it is sent and when it is answered

At a commit, `lose-answer` makes its outcome unknown, `rival` lets another writer append before it, and
`optimize` compacts the table and removes of its log or of its snapshots what is not needed.

The catalog of an Iceberg table is in the environment, as pyiceberg reads it, so that all processes have it.
"""

import datetime as dt
import os
from collections.abc import Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

import pyarrow as pa
from tests.support.spark_torture import Effects, EndedOneByOne, TorturedStation, strike

from tallystick.client.net.cluster import Cluster
from tallystick.lake.data_files import DataFileWriter
from tallystick.lake.entries import CommitOutcome, LakeEntry
from tallystick.lake.names import is_table_url, parse_table_url
from tallystick.lake.opening import LakeLocation, open_table
from tallystick.lake.ports import DataFile
from tallystick.spark.decisions.store_log import DatabaseParticipants
from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.options.sinks import Sink, to_table, to_topic
from tallystick.spark.protocol.ports import DecisionLogPort, ParticipantsPort
from tallystick.spark.sink.context import SinkContext, get_sink_context
from tallystick.spark.sink.lake_batch import LakeTarget
from tallystick.spark.sink.lake_context import LakeSinkContext

SCHEMA: Final = pa.schema([("id", pa.string())])
RIVAL: Final = "rival"
LAKE_POINTS: Final = tuple(
    f"{name}.{when}" for name in ("lake-claim", "lake-decide") for when in ("before", "after")
)
FILE_POINTS: Final = tuple(
    f"{name}.{when}" for name in ("file-write", "file-finish") for when in ("before", "after")
)


def is_lake(url: str | None) -> bool:
    return url is not None and is_table_url(url)


def locate(url: str) -> LakeLocation:
    return LakeLocation(url=parse_table_url(url), storage_options=tuple(sorted(read_catalog(url).items())))


def find_target(url: str) -> LakeTarget:
    return LakeTarget(location=locate(url), definition=open_table(locate(url)).read_definition())


# ---- other writers, and the table itself


def create_table(kind: str, folder: Path) -> str:
    """Create the table of a format in a folder; return its URL."""
    if kind == "delta":
        from deltalake import DeltaTable

        DeltaTable.create(folder, schema=SCHEMA)
        return f"delta:{folder}"
    name = f"lake{token_hex(4)}"
    folder.mkdir()
    settings = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
    os.environ.update({_catalog_prefix(name) + key.upper(): text for key, text in settings.items()})
    url = f"iceberg:{name}.torture.rows"
    catalog = _load_catalog(url)
    catalog.create_namespace("torture")
    catalog.create_table("torture.rows", schema=SCHEMA)
    return url


def read_catalog(url: str) -> dict[str, str]:
    """Return the properties of an Iceberg table's catalog; none for Delta."""
    prefix = _catalog_prefix(parse_table_url(url).place.partition(".")[0])
    return {
        name.removeprefix(prefix).lower(): text
        for name, text in os.environ.items()
        if name.startswith(prefix)
    }


def _catalog_prefix(name: str) -> str:
    return f"PYICEBERG_CATALOG__{name.upper()}__"


def _load_catalog(url: str) -> Any:
    from pyiceberg.catalog import load_catalog

    return load_catalog(parse_table_url(url).place.partition(".")[0], **read_catalog(url))


def _load_iceberg(url: str) -> Any:
    return _load_catalog(url).load_table(parse_table_url(url).place.partition(".")[2])


def append_as_rival(url: str) -> None:
    rows = pa.table({"id": [RIVAL]}, schema=SCHEMA)
    if url.startswith("iceberg:"):
        _load_iceberg(url).append(rows)
        return
    from deltalake import write_deltalake

    write_deltalake(Path(parse_table_url(url).place), rows, mode="append")


def optimize(url: str) -> None:
    if url.startswith("iceberg:"):
        table = _load_iceberg(url)
        rows = table.scan().to_arrow()
        if rows.num_rows:  # pyiceberg warns of overwriting nothing
            table.overwrite(rows)
        tomorrow = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
        table.maintenance.expire_snapshots().older_than(tomorrow).commit()
        return
    from deltalake import DeltaTable

    delta = DeltaTable(Path(parse_table_url(url).place))
    delta.optimize.compact()
    delta.create_checkpoint()


def read_ids(url: str) -> list[str]:
    """Return the ids of all rows, as another reader sees them."""
    if url.startswith("iceberg:"):
        rows: Any = _load_iceberg(url).scan().to_arrow()
    else:
        from deltalake import DeltaTable

        rows = pa.table(DeltaTable(Path(parse_table_url(url).place)).scan().read_all())
    return list(rows["id"].to_pylist())


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
    table = to_table(url, columns={"id": "value"}, storage_options=read_catalog(url))
    return to_topic(topic, key="value", value="value"), table
