"""Projection of a batch to its sinks: one column of structs for each sink, null where the sink gets no row.

So a task runs the plan once for any number of sinks. The last field of a struct is a hash of the others, for
the checksums of rows. Spark computes it from the finished values, so that a nondeterministic expression is
evaluated only once [SPK-22].
"""

from collections.abc import Iterator, Sequence
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, BinaryType, BooleanType, DataType, NullType, StringType

from tallystick.kernel.settings import BadConfig
from tallystick.spark.options.sinks import Sink, ToTable, ToTopic

HASH_COLUMN: Final = "tallystick_hash"
HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"


def name_sink_column(number: int) -> str:
    return f"sink_{number}"


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

    def check(self, expression: str, at: str, kinds: tuple[type[DataType], ...] = ()) -> None:
        """Note a problem if the expression has one, or none of these types."""
        types = self._types
        if expression not in types:  # one of them has a problem, and Spark names the first one alone
            try:
                types = {expression: self._frame.select(f.expr(expression)).schema.fields[0].dataType}
            except PySparkException as exc:
                self._problems.append(f"{at}: {str(exc).strip().splitlines()[0]}")
                return
        data_type = types[expression]
        if kinds and not isinstance(data_type, kinds):
            type_names = " or ".join(kind.typeName() for kind in kinds if kind is not NullType)
            self._problems.append(
                f"{at}: {expression!r} is {data_type.simpleString()}, and must be {type_names}"
            )

    def _read_types(self, expressions: Sequence[str]) -> dict[str, DataType]:
        """Return the types of all expressions; none if they cannot be selected together."""
        try:
            fields = self._frame.select(*map(f.expr, expressions)).schema.fields
        except PySparkException:
            return {}
        if len(fields) != len(expressions):  # a `*` among them
            return {}
        return {text: field.dataType for text, field in zip(expressions, fields, strict=True)}


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
            checker.check(expression, f"{at}: column {name}")
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
    kind = structs.schema[name].dataType
    fields = [f.col(name).getField(field) for field in kind.fieldNames()]  # type: ignore[attr-defined]
    # xxhash64 skips nulls: (null, 1) and (1, null) would have the same hash.
    parts = [part for field in fields for part in (f.isnull(field), field)]
    if isinstance(sink, ToTopic) and sink.headers is None:
        # As if they were a column of nulls: the hash of a record is the same with and without it.
        parts += [f.lit(True), f.lit(None).cast(HEADERS_TYPE)]
    hash_column = f.xxhash64(*parts).alias(HASH_COLUMN)
    columns = [field.alias(field_name) for field, field_name in zip(fields, kind.fieldNames(), strict=True)]  # type: ignore[attr-defined]
    return f.when(f.col(name).isNotNull(), f.struct(*columns, hash_column)).alias(name)
