"""Spark data source `format("tallystick")`: the entry point of Spark's readers and writers.

Spark pickles this class by reference, and the subclass that `register` makes by value, so every Python worker
must be able to import tallystick. Spark calls an instance in workers of the driver. For the tasks of a batch
it makes a new instance, asks it for a writer, and pickles the writer. To commit or abort a streaming batch it
unpickles an instance, and asks that for another writer. So only a new instance begins batches.

Readers and writers are imported on demand: Spark starts a process for each call, and each process imports
this module. The keys of options arrive in lower case. Names of the hooks' arguments are part of Spark's
contract.

Source: PySpark 4.1 to 4.3, sql/worker/write_into_data_source.py, python_streaming_sink_runner.py.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import pyspark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tallystick.spark import sink, source
from tallystick.spark.files.served import FilesAddress, use_served_files
from tallystick.spark.options.source_options import parse_source_options
from tallystick.spark.runtime.versions import SparkFeature, check_feature

NAME: Final = "tallystick"

# The columns of Spark's own Kafka source. Their Arrow types are apart, in `source.task_reader`: Spark asks
# for the schema in a process that reads nothing.
_COLUMNS: Final = (
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
)
_HEADER_TYPE: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


def build_spark_schema(*, headers: bool, types: Mapping[str, DataType] = MappingProxyType({})) -> StructType:
    """Return the schema. Source: Spark 4.3 KafkaRecordToRowConverter.kafkaSchema.

    Args:
        types: of columns that decoding changes, or adds at the end.
    """
    header_fields = [StructField("headers", ArrayType(_HEADER_TYPE))] if headers else []
    fields = [*_COLUMNS, *header_fields]
    names = {field.name for field in fields}
    fields = [StructField(field.name, types.get(field.name, field.dataType)) for field in fields]
    return StructType([*fields, *(StructField(n, each) for n, each in types.items() if n not in names)])


class KafkaDataSource(DataSource):
    """Kafka's records as rows, and rows as Kafka's records.

    Attributes:
        files_address: where the driver's Python serves checkpoints; None where it does not, as under Connect.
        is_new: false for an instance that was unpickled.
    """

    files_address: FilesAddress | None = None

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self.is_new = True

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "is_new": False}

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        """Return the columns of Spark's own Kafka source. Raises: BadConfig, as early as `load()`."""
        options = parse_source_options(self.options)
        types: Mapping[str, DataType] = {}
        if options.formats.changes_columns:  # the libraries are loaded for such queries alone
            types = source.decoding.resolve_column_types(options)
        return build_spark_schema(headers=options.include_headers, types=types)

    def reader(self, schema: StructType) -> DataSourceReader:
        return source.batch_reader.BatchReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 -- Spark's name
        check_feature(SparkFeature.STREAM_READ, pyspark.__version__)
        use_served_files(self.files_address)  # not the reader's, which goes to the tasks
        return source.stream_reader.StreamReader(self.options, schema=schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        check_feature(SparkFeature.BATCH_WRITE, pyspark.__version__)
        return sink.writers.begin_batch_write(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        check_feature(SparkFeature.STREAM_WRITE, pyspark.__version__)
        use_served_files(self.files_address)
        return sink.writers.create_stream_writer(self.options, schema, begins=self.is_new)
