"""Projection of a batch to its sinks: one column of structs for each sink, null where the sink gets no row.

So a task runs the plan once for any number of sinks. The last field of a struct is a hash of the others, for
the checksums of rows. Spark computes it from the finished values, so that a nondeterministic expression is
evaluated only once [SPK-22].
"""

from collections.abc import Iterator, Sequence
from typing import Final, cast

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    MapType,
    NullType,
    StringType,
    StructType,
)

from tallystick.kernel.settings import BadConfig
from tallystick.spark.options.sinks import Sink, ToTable, ToTopic
from tallystick.spark.sink.task.combined_attempt import HASH_COLUMN, name_sink_column

HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"


def project_sinks(frame: DataFrame, sinks: Sequence[Sink]) -> DataFrame:
    """Project a batch to the sinks' columns. Raises: BadConfig with Spark's errors on all expressions."""
    problems: list[str] = []
    checker = _ExpressionChecker(frame, sinks, problems)
    columns = [_build_struct(sink, checker).alias(name_sink_column(n)) for n, sink in enumerate(sinks)]
    if problems:
        raise BadConfig("\n".join(problems))
    structs = frame.select(*columns)
    return structs.select(*(_add_hash(structs, name_sink_column(n), sink) for n, sink in enumerate(sinks)))


class _ExpressionChecker:
    """Checks expressions against a batch, all in one analysis of Spark's if none has a problem."""

    def __init__(self, frame: DataFrame, sinks: Sequence[Sink], problems: list[str]) -> None:
        self._frame, self._problems = frame, problems
        self._types = self._read_types([text for sink in sinks for text in _list_expressions(sink)])

    def check_column(self, expression: str, at: str) -> None:
        """Note a problem if the expression has one, or no hash."""
        data_type = self._find_type(expression, at)
        if data_type is not None and not _has_hash(data_type):
            self._problems.append(
                f"{at}: a map or variant inside {data_type.simpleString()} cannot be hashed by Spark. Write "
                'it as text, with to_json(...); or the batch with format("tallystick"), which hashes maps '
                "in Python"
            )

    def check(self, expression: str, at: str, kinds: tuple[type[DataType], ...] = ()) -> None:
        """Note a problem if the expression has one, or none of these types."""
        data_type = self._find_type(expression, at)
        if data_type is not None and kinds and not isinstance(data_type, kinds):
            type_names = " or ".join(kind.typeName() for kind in kinds if kind is not NullType)
            self._problems.append(
                f"{at}: {expression!r} is {data_type.simpleString()}, and must be {type_names}"
            )

    def _find_type(self, expression: str, at: str) -> DataType | None:
        """Return the type of an expression; None, and a problem, if it has none."""
        if expression in self._types:
            return self._types[expression]
        try:  # one of them has a problem, and Spark names the first one alone
            return self._frame.select(f.expr(expression)).schema.fields[0].dataType
        except PySparkException as exc:
            self._problems.append(f"{at}: {str(exc).strip().splitlines()[0]}")
            return None

    def _read_types(self, expressions: Sequence[str]) -> dict[str, DataType]:
        """Return the types of all expressions; none if they cannot be selected together."""
        try:
            fields = self._frame.select(*map(f.expr, expressions)).schema.fields
        except PySparkException:
            return {}
        if len(fields) != len(expressions):  # a `*` among them
            return {}
        return {text: field.dataType for text, field in zip(expressions, fields, strict=True)}


def _has_hash(kind: DataType) -> bool:
    """Return whether Spark hashes values of a type, or the entries of a map."""
    parts = (kind.keyType, kind.valueType) if isinstance(kind, MapType) else (kind,)
    return not any(map(_has_map, parts))


def _has_map(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_map(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _has_map(kind.elementType)
    return isinstance(kind, MapType) or kind.typeName() == "variant"


def _list_expressions(sink: Sink) -> Iterator[str]:
    if isinstance(sink, ToTable):
        yield from (expression for _, expression in sink.columns or ())
    else:
        yield from (text for text in (sink.key, sink.value, sink.headers) if text is not None)
    if sink.where is not None:
        yield sink.where


def _build_struct(sink: Sink, checker: _ExpressionChecker) -> Column:
    at = f"topic {sink.topic}" if isinstance(sink, ToTopic) else f"table {sink.table}"
    struct = f.struct(*_build_fields(sink, at, checker))
    if sink.where is None:
        return struct
    checker.check(sink.where, f"{at}: where", (BooleanType,))
    return f.when(f.expr(sink.where), struct)


def _build_fields(sink: Sink, at: str, checker: _ExpressionChecker) -> list[Column]:
    if isinstance(sink, ToTable):
        for name, expression in sink.columns or ():
            checker.check_column(expression, f"{at}: column {name}")
        return [f.expr(expression).alias(name) for name, expression in sink.columns or ()]
    text = (StringType, BinaryType, NullType)
    for name, value_expression, kinds in (
        ("key", sink.key, text),
        ("value", sink.value, text),
        ("headers", sink.headers, (ArrayType,)),
    ):
        if value_expression is not None:
            checker.check(value_expression, f"{at}: {name}", kinds)
    row_as_json = f.to_json(f.struct("*"), {"ignoreNullFields": "false"})
    fields = [
        (f.lit(None) if sink.key is None else f.expr(sink.key)).cast("binary").alias("key"),
        (row_as_json if sink.value is None else f.expr(sink.value)).cast("binary").alias("value"),
    ]
    # A list of structs, even one that is null in all rows, costs 7 us a row: after each row Spark asks all
    # vectors of its Arrow batch for their size (spark.sql.execution.arrow.maxBytesPerBatch).
    if sink.headers is not None:
        fields.append(f.expr(sink.headers).cast(HEADERS_TYPE).alias("headers"))
    return fields


def _add_hash(structs: DataFrame, name: str, sink: Sink) -> Column:
    kind = cast(StructType, structs.schema[name].dataType)
    fields = {each.name: f.col(name).getField(each.name) for each in kind.fields}
    # xxhash64 skips nulls: (null, 1) and (1, null) would have the same hash.
    parts = [
        part
        for each in kind.fields
        for part in (f.isnull(fields[each.name]), _prepare_hash(fields[each.name], each.dataType))
    ]
    if isinstance(sink, ToTopic) and sink.headers is None:
        # As if they were a column of nulls: the hash of a record is the same with and without it.
        parts += [f.lit(True), f.lit(None).cast(HEADERS_TYPE)]
    hash_column = f.xxhash64(*parts).alias(HASH_COLUMN)
    columns = [field.alias(field_name) for field_name, field in fields.items()]
    return f.when(f.col(name).isNotNull(), f.struct(*columns, hash_column)).alias(name)


def _prepare_hash(field: Column, kind: DataType) -> Column:
    """Return what xxhash64 takes of a field: of a map, which has no order of its own, its sorted entries."""
    return f.sort_array(f.map_entries(field)) if isinstance(kind, MapType) else field
