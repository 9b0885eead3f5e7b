"""Data files of an Iceberg table: rows split by its partition spec, sorted, and described for a manifest.

Tasks do this without the table: `IcebergLayout` is what they need to know of it. The entry of a file in a
manifest needs more than the file tells later: the partition of `bucket` cannot be read from a footer, and
`Table.add_files` refuses such tables. So the task that writes a file says what it has written.

The names used of `pyiceberg.io.pyarrow` are those that its own writer uses for statistics: public, and not
documented. tests/integration/lake/test_lake_iceberg_files.py pins them by reading with filters.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile as ManifestFileEntry
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import PrimitiveType, UUIDType

from tallystick.kernel.value import Value
from tallystick.lake.data_files import AttemptName, DataFileWriter, PartitionKey
from tallystick.lake.delta_statistics import FileStatistics
from tallystick.lake.iceberg_storage import open_task_files
from tallystick.lake.ports import DataFile
from tallystick.lake.schema import TableDefinition

_TRANSFORMS: Final = (
    IdentityTransform,
    BucketTransform,
    TruncateTransform,
    YearTransform,
    MonthTransform,
    DayTransform,
    HourTransform,
    VoidTransform,
)
_METRICS_PREFIX: Final = "write.metadata.metrics."


class IcebergLayout(Value, kw_only=True):
    """Layout of a table's data files; its text is `TableDefinition.layout`.

    folder                    where they are: a path of this host, or a URI
    schema, spec, sort_order  of the table, as Iceberg's JSON
    metrics                   the properties that say which statistics are kept
    """

    folder: str
    schema: str
    spec: str
    sort_order: str
    metrics: Mapping[str, str]


def encode_layout(
    folder: str, schema: Schema, spec: PartitionSpec, order: SortOrder, properties: Mapping[str, str]
) -> str:
    """Return a table's layout as text."""
    metrics = {name: text for name, text in properties.items() if name.startswith(_METRICS_PREFIX)}
    layout = IcebergLayout(
        folder=folder,
        schema=schema.model_dump_json(),
        spec=spec.model_dump_json(),
        sort_order=order.model_dump_json(),
        metrics=dict(sorted(metrics.items())),
    )
    return msgspec.json.encode(layout).decode()


def find_layout_problems(schema: Schema, spec: PartitionSpec) -> Iterator[str]:
    """Yield why data files cannot be partitioned as the table asks."""
    columns = {field.field_id: field for field in schema.fields}
    for field in spec.fields:
        if not isinstance(field.transform, _TRANSFORMS):
            yield f"partition field {field.name} has a transform that is not known here"
        elif isinstance(field.transform, VoidTransform):
            continue
        elif field.source_id not in columns:
            name = schema.find_column_name(field.source_id)
            yield f"partition field {field.name} is of the nested column {name}, which is not supported"
        elif not field.transform.can_transform(columns[field.source_id].field_type):
            kind = columns[field.source_id].field_type
            yield f"partition field {field.name} cannot be computed from {kind}"


class IcebergFileWriter(DataFileWriter):
    """The writer of one attempt's files of an Iceberg table. It belongs to one thread."""

    def __init__(self, definition: TableDefinition, name: AttemptName) -> None:
        """Bind to the table's folder, which is made if it is not there."""
        layout = msgspec.json.decode(definition.layout, type=IcebergLayout)
        super().__init__(open_task_files(layout.folder, dict(definition.file_options)), definition, name)
        self._schema = Schema.model_validate_json(layout.schema)
        self._spec = PartitionSpec.model_validate_json(layout.spec)
        self._order = SortOrder.model_validate_json(layout.sort_order)
        self._columns = {field.field_id: field for field in self._schema.fields}
        self._plan = compute_statistics_plan(self._schema, dict(layout.metrics))
        self._ids = parquet_path_to_id_mapping(self._schema)
        # Iceberg's specification, "Parquet": a decimal of up to 18 digits is an integer.
        self._parquet_options = {"store_decimal_as_integer": True}

    def _split(self, rows: pa.RecordBatch) -> Iterator[tuple[PartitionKey, pa.RecordBatch]]:
        rows = self._convert(rows)
        if not self._spec.fields or not rows.num_rows:
            yield (None,) * len(self._spec.fields), rows
            return
        fields = [_encode_partition(self._transform(rows, field)) for field in self._spec.fields]
        codes = np.zeros(rows.num_rows, dtype=np.int64)
        for numbers, texts in fields:
            # Made dense after each field, so that many fields do not overflow.
            _, codes = np.unique(codes * len(texts) + numbers, return_inverse=True)
        order = np.argsort(codes, kind="stable")
        bounds = np.flatnonzero(np.diff(codes[order])) + 1
        for places in np.split(order, bounds):
            key = tuple(texts[numbers[places[0]]] for numbers, texts in fields)
            yield key, rows if len(places) == rows.num_rows else rows.take(pa.array(places))

    def _transform(
        self, rows: pa.RecordBatch | pa.Table, field: PartitionField | SortField
    ) -> tuple[pa.DictionaryArray, Sequence[Any], PrimitiveType]:
        """Return what a transform makes of a column: the codes of its rows, and the value of each code."""
        source = self._columns.get(field.source_id)
        kind: Any = None if source is None else source.field_type
        result: Any = PrimitiveType
        if (
            source is None
            or source.name not in rows.schema.names
            or isinstance(field.transform, VoidTransform)
        ):
            return pa.nulls(rows.num_rows, pa.int32()).dictionary_encode(), [], result
        encoded = _as_internal(rows.column(source.name)).dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.unify_dictionaries().combine_chunks()
        apply: Callable[[Any], Any] = field.transform.transform(kind)
        values = encoded.dictionary.to_pylist()
        if isinstance(kind, UUIDType):
            values = [UUID(bytes=value) for value in values]
        result = field.transform.result_type(kind)
        return encoded, [apply(value) for value in values], result

    def _arrange(self, rows: pa.Table) -> pa.Table:
        """Sort a row group as the table's sort order says, where its columns are plain."""
        if self._order.is_unsorted or not self._is_sortable():
            return rows
        keys: list[tuple[str, str]] = []
        columns: dict[str, pa.Array] = {}
        for number, field in enumerate(self._order.fields):
            ranks = self._rank(rows, field)
            columns[f"null {number}"] = ranks.is_null()
            columns[f"value {number}"] = ranks
            nulls_last = field.null_order is NullOrder.NULLS_LAST
            keys.append((f"null {number}", "ascending" if nulls_last else "descending"))
            descending = field.direction is SortDirection.DESC
            keys.append((f"value {number}", "descending" if descending else "ascending"))
        return rows.take(pc.sort_indices(pa.table(columns), sort_keys=keys))

    def _rank(self, rows: pa.Table, field: SortField) -> pa.Array | pa.ChunkedArray:
        """Return values that are in the order of those that a transform makes of a column."""
        name = self._columns[field.source_id].name
        if isinstance(field.transform, IdentityTransform) and name in rows.schema.names:
            return _as_internal(rows.column(name))
        encoded, values, _ = self._transform(rows, field)
        distinct = sorted({value for value in values if value is not None})
        places = {value: place for place, value in enumerate(distinct)}
        ranks = pa.array([places.get(value) for value in (*values, None)], pa.int64())
        return ranks.take(encoded.indices.fill_null(len(values)))

    def _is_sortable(self) -> bool:
        """Return whether this writer can sort as the table wants: not by a nested column, nor by floats."""
        for field in self._order.fields:
            column = self._columns.get(field.source_id)
            if column is None or not isinstance(field.transform, _TRANSFORMS):
                return False
            if types.is_floating(self._definition.schema.field(column.name).type):
                return False
        return True

    def _observe(self, statistics: FileStatistics, rows: pa.Table) -> None:
        """Do nothing: pyiceberg reads a finished file's footer."""

    def _describe(
        self, key: PartitionKey, metadata: pq.FileMetaData, _: FileStatistics
    ) -> tuple[Mapping[str, str | None], str]:
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=metadata, stats_columns=self._plan, parquet_column_mapping=self._ids
        ).to_serialized_dict()
        del statistics["record_count"]
        for name in ("lower_bounds", "upper_bounds"):
            statistics[name] = {number: bound.hex() for number, bound in statistics[name].items()}
        # Row groups are sorted one by one: only a file that has one is sorted as a whole.
        is_sorted = not self._order.is_unsorted and self._is_sortable() and metadata.num_row_groups == 1
        statistics["sort_order_id"] = self._order.order_id if is_sorted else None
        names = [field.name for field in self._spec.fields]
        return dict(zip(names, key, strict=True)), json.dumps(statistics)


def build_manifest_entry(
    file: DataFile, folder: str, schema: Schema, spec: PartitionSpec
) -> ManifestFileEntry:
    """Return the entry of a data file, as a manifest has it.

    Args:
        folder: the URI of the folder of the table's data files.
    """
    statistics = json.loads(file.statistics)
    numbered: dict[str, Any] = {
        name: {int(number): value for number, value in statistics[name].items()}
        for name in ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")
    }
    for name in ("lower_bounds", "upper_bounds"):
        numbered[name] = {int(number): bytes.fromhex(bound) for number, bound in statistics[name].items()}
    kinds: dict[str, Any] = {field.name: field.field_type for field in spec.partition_type(schema).fields}
    values = [
        None if text is None else from_bytes(kinds[name], bytes.fromhex(text))
        for name, text in ((field.name, file.partition[field.name]) for field in spec.fields)
    ]
    entry = ManifestFileEntry.from_args(
        content=DataFileContent.DATA,
        file_path=f"{folder}/{file.path}",
        file_format=FileFormat.PARQUET,
        partition=Record(*values),
        record_count=file.row_count,
        file_size_in_bytes=file.size_bytes,
        split_offsets=statistics["split_offsets"],
        sort_order_id=statistics["sort_order_id"],
        equality_ids=None,
        key_metadata=None,
        **numbered,
    )
    entry.spec_id = spec.spec_id
    return entry


def _as_internal(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return a column as Iceberg computes with it: dates, times and timestamps are integers since 1970."""
    kind = column.type
    if types.is_date(kind):
        return column.cast(pa.int32())
    if types.is_timestamp(kind) or types.is_time(kind):
        return column.cast(pa.int64())
    if isinstance(kind, pa.BaseExtensionType):
        return pc.cast(column, kind.storage_type)
    return column


def _encode_partition(
    transformed: tuple[pa.DictionaryArray, Sequence[Any], PrimitiveType],
) -> tuple[np.ndarray[Any, Any], Sequence[str | None]]:
    """Return the number of each row's partition, and the text of each partition: its value in hexadecimal."""
    encoded, values, kind = transformed
    texts: list[str | None] = [None if value is None else to_bytes(kind, value).hex() for value in values]
    # Several values may be in one partition, and null is one of its own.
    places: dict[str | None, int] = {}
    for text in (*texts, None):
        places.setdefault(text, len(places))
    numbers = np.array([places[text] for text in (*texts, None)], dtype=np.int64)
    codes = encoded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)
    return numbers[codes], list(places)
