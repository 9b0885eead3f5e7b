"""The station of a prefix whose decisions are in a lake table. Imported only for a query with such a table.

It needs the library of the table's format: the extra `delta`.
"""

from collections.abc import Callable
from secrets import token_hex
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tallystick.client.net.cluster import Cluster
from tallystick.kernel.value import Value
from tallystick.lake.data_files import AttemptName, DataFileWriter
from tallystick.lake.errors import SchemaDiffers, UnusableTable
from tallystick.lake.names import parse_table_url
from tallystick.lake.opening import LakeLocation, open_table
from tallystick.lake.schema import TableDefinition, find_added_columns, find_column_problems
from tallystick.lake.storage import open_storage
from tallystick.spark.decisions.lake_row import LakeRow
from tallystick.spark.decisions.store_log import DatabaseDecisionLog, DatabaseParticipants
from tallystick.spark.decisions.topic import DecisionTopic
from tallystick.spark.options.sink_options import TRANSACTION_TIMEOUT_MS, SinkOptions
from tallystick.spark.options.sinks import ToTable
from tallystick.spark.protocol.committable import BatchLease
from tallystick.spark.protocol.decide import TIMEOUT_MARGIN_DIVISOR
from tallystick.spark.protocol.ports import DecisionLogPort, ParticipantsPort
from tallystick.spark.sink.context import SinkContext
from tallystick.spark.sink.projection import HASH_COLUMN, name_sink_column

_ATTEMPT_BYTES: Final = 8


class LakeTarget(Value, kw_only=True):
    """The table of a batch as its tasks need it: they write data files, and do not read the table."""

    location: LakeLocation
    definition: TableDefinition


class LakeSinkContext(SinkContext):
    """A driver's station for a prefix whose decisions are commits of a lake table."""

    def __init__(self, options: SinkOptions, location: LakeLocation) -> None:
        self.lake_row = LakeRow(open_table(location), options.prefix)
        super().__init__(options)

    def create_ports(self, cluster: Cluster) -> tuple[ParticipantsPort, DecisionLogPort]:
        timeout_ms = int(self.options.client.get("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS))
        participants, topic = super().create_ports(cluster)
        notes = topic if isinstance(topic, DecisionTopic) else None
        self.decision_log = DatabaseDecisionLog(
            self.lake_row, timeout_ms // TIMEOUT_MARGIN_DIVISOR // 2, notes=notes
        )
        return DatabaseParticipants(participants, self.lake_row), self.decision_log


CreateLakeContext = Callable[[SinkOptions, LakeLocation], LakeSinkContext]


class OpenLakeContext(Value, kw_only=True):
    """An `OpenContext` to cluster and table; two of them are equal if their parts are."""

    location: LakeLocation
    create: CreateLakeContext = LakeSinkContext

    def __call__(self, options: SinkOptions) -> SinkContext:
        return self.create(options, self.location)


def locate_table(sink: ToTable) -> LakeLocation:
    """Return where the table of a sink is. Raises: BadConfig."""
    return LakeLocation(url=parse_table_url(sink.table), storage_options=sink.storage_options)


def prepare_target(location: LakeLocation, sink: ToTable, rows: DataFrame, number: int) -> LakeTarget:
    """Compare the rows of a batch with the table, on the driver and before the batch begins.

    Args:
        rows: the batch as `project_sinks` has made it.
        number: of the sink.
    Raises: UnusableTable; SchemaDiffers with all problems.
    """
    table = open_table(location)
    kind = rows.schema[name_sink_column(number)].dataType
    assert isinstance(kind, StructType)
    struct = StructType([field for field in kind.fields if field.name != HASH_COLUMN])
    columns = to_arrow_schema(struct)
    definition = table.read_definition()
    if definition.problems:
        raise UnusableTable(f"table {table.url}: {'; '.join(definition.problems)}. Nothing was begun")
    problems = list(find_column_problems(definition, columns, merge_schema=sink.merge_schema))
    if problems:
        raise SchemaDiffers("\n".join(f"table {table.url}: {each}. Nothing was written" for each in problems))
    added = find_added_columns(definition, columns)
    if added.names:
        table.add_columns(TableDefinition(identity=definition.identity, schema=added))
        definition = table.read_definition()
    return LakeTarget(location=location, definition=definition)


def open_data_files(target: LakeTarget, prefix: str, lease: BatchLease) -> DataFileWriter:
    """Return the writer of one attempt's data files."""
    name = AttemptName(key=prefix, owner=str(lease.coordinator), attempt=token_hex(_ATTEMPT_BYTES))
    return DataFileWriter(open_storage(target.location.url), target.definition, name)


def drop_hash(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows without the hash that the projection has added."""
    return rows.select([name for name in rows.schema.names if name != HASH_COLUMN])
