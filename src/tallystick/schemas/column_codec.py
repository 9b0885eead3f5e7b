"""Common parts of the formats with schemas: rejected rows with reasons, and columns of the other rows."""

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tallystick.kernel.value import Value
from tallystick.schemas.model import (
    ColumnFormat,
    FindSchema,
    RegistryUnavailable,
    ResolvedSchema,
    SchemaError,
    read_schema_id,
)

REASON_LENGTH_MAX: Final = 500


class DecodedColumn(Value):
    """A decoded column: null where a row has no bytes or cannot be decoded, and why, by row."""

    array: Any
    failures: Mapping[int, str]


class RowRefused(SchemaError):
    """A row cannot be encoded. Attributes: row, its place in the column; why."""

    def __init__(self, row: int, why: str) -> None:
        super().__init__(row, why)
        self.row, self.why = row, why

    def __str__(self) -> str:
        return f"row {self.row} of the column cannot be encoded: {self.why}"


class Undecodable(Exception):
    """A record cannot be decoded; never leaves the column."""


class ColumnDecoder:
    """Decodes columns of one field. For one thread. A format is a subclass with two methods.

    Attributes: type, of the decoded columns.
    """

    format: ColumnFormat

    def __init__(self, unit_type: pa.DataType, column_type: pa.DataType, find_schema: FindSchema) -> None:
        """Initialize with the types, and a lookup of the writers' schemas.

        Args:
            unit_type: with timestamps in the units of the schema.
        """
        self._unit_type, self.type = unit_type, column_type
        self._find_schema = find_schema
        self._writers: dict[int, Any] = {}
        self._missing_ids: dict[int, str] = {}

    def parse_writer(self, schema: ResolvedSchema) -> Any:
        """Return what `read_record` reads by. Raises: SchemaError."""
        raise NotImplementedError

    def read_record(self, data: bytes, writer: Any) -> Any:
        """Return a record for Arrow. Raises: Undecodable, or anything."""
        raise NotImplementedError

    def decode(self, column: pa.Array) -> DecodedColumn:
        """Decode a column of bytes. Raises: RegistryUnavailable."""
        rows: list[Any] = []
        failures: dict[int, str] = {}
        for row, data in enumerate(column.to_pylist()):
            try:
                rows.append(None if data is None else self._decode_record(data))
            except Undecodable as exc:
                rows.append(None)
                failures[row] = str(exc)[:REASON_LENGTH_MAX]
        return DecodedColumn(self._build_column(rows, failures), failures)

    def _decode_record(self, data: bytes) -> Any:
        schema_id = read_schema_id(data)
        if schema_id is None:
            raise Undecodable(f"no schema id: {len(data)} bytes that begin with {data[:5].hex(' ')!r}")
        writer = self._writers.get(schema_id)
        if writer is None:
            writer = self._writers[schema_id] = self._load_writer(schema_id)
        try:
            return self.read_record(data, writer)
        except Undecodable as exc:
            raise Undecodable(f"schema {schema_id}: {exc}") from exc
        except (
            Exception
        ) as exc:  # the libraries raise what they meet: EOFError, IndexError, UnicodeDecodeError
            raise Undecodable(f"schema {schema_id}: {type(exc).__name__}: {exc}") from exc

    def _load_writer(self, schema_id: int) -> Any:
        if schema_id in self._missing_ids:
            raise Undecodable(self._missing_ids[schema_id])
        try:
            schema = self._find_schema(schema_id)
            if schema.format is not self.format:
                raise SchemaError(f"it is of format {schema.format}, and not {self.format}")
            return self.parse_writer(schema)
        except RegistryUnavailable:
            raise
        except SchemaError as exc:  # there is none, or it is of another format: asking again helps no record
            self._missing_ids[schema_id] = f"schema {schema_id}: {exc}"
            raise Undecodable(self._missing_ids[schema_id]) from exc

    def _build_column(self, rows: list[Any], failures: dict[int, str]) -> pa.Array:
        try:
            return self._convert(rows)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            for row, record in enumerate(rows):
                try:
                    self._convert([record])
                except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as exc:
                    rows[row], failures[row] = None, str(exc)[:REASON_LENGTH_MAX]
            return self._convert(rows)

    def _convert(self, rows: list[Any]) -> pa.Array:
        column = pa.array(rows, self._unit_type)
        if self._unit_type == self.type:
            return column
        # Spark has microseconds: what is finer is cut off, what is out of range is refused.
        return pc.cast(column, options=pc.CastOptions(self.type, allow_time_truncate=True))


def get_kind(arrow_type: pa.DataType) -> str:
    """Return what a type is whatever its size: values that do not fit in it are refused one by one."""
    if pa.types.is_timestamp(arrow_type):
        return "timestamp" if arrow_type.tz else "local timestamp"
    for kind in _KINDS:
        if getattr(pa.types, f"is_{kind}")(arrow_type):
            return kind.removeprefix("large_")
    return str(arrow_type)


def fits_kind(column: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether values of a column can be written as this type, those that do not fit being refused.

    A double is no float: most of its values would be rounded, and large ones become infinite.
    """
    kinds = get_kind(column), get_kind(wanted)
    if kinds == ("floating", "floating"):
        return bool(column.bit_width <= wanted.bit_width)
    return kinds[0] == kinds[1] or kinds == ("integer", "floating")


_KINDS: Final = (
    *("boolean", "integer", "floating", "decimal", "struct", "map"),
    *("binary", "large_binary", "string", "large_string", "list", "large_list"),
)
