"""Parsed options of the formats of keys and values, for the source and the sink. Pure.

`value.format=avro` with `schema.registry.url` makes a struct of a source's column `value`, and takes one in a
sink. What follows `schema.registry.` is a setting of confluent-kafka's registry client, by its name there.
"""

from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import Final, TypeVar

from tallystick.kernel.value import Value
from tallystick.schemas.model import (
    ColumnFormat,
    FieldFormat,
    RegistrySettings,
    SubjectStrategy,
    find_registry_problems,
)

E = TypeVar("E", bound=Enum)

REGISTRY_PREFIX: Final = "schema.registry."
FIELDS: Final = ("key", "value")


class MalformedAction(StrEnum):
    """The handling of a record that cannot be decoded."""

    FAIL = "fail"  # the query stops and names the record
    NULL = "null"  # a null, and a column `malformed` with the bytes and the reason


class FormatOptions(Value, kw_only=True):
    """The encoding of a query's records.

    registry       settings of the registry's client
    auto_register  register a schema that the registry does not have (sink)
    """

    key: FieldFormat = FieldFormat(field="key")
    value: FieldFormat = FieldFormat(field="value")
    registry: Mapping[str, str] = RegistrySettings()
    on_malformed: MalformedAction = MalformedAction.FAIL
    auto_register: bool = False

    @property
    def fields(self) -> tuple[FieldFormat, ...]:
        """Those of the two that are not bytes."""
        both = (self.key, self.value)
        return tuple(each for each in both if each.format is not ColumnFormat.BYTES)

    @property
    def has_malformed_column(self) -> bool:
        """Whether a source's rows say what could not be decoded."""
        return self.on_malformed is MalformedAction.NULL

    @property
    def changes_columns(self) -> bool:
        """Whether a source's columns are others than those of plain bytes."""
        return bool(self.fields) or self.has_malformed_column


def parse_format_options(texts: Mapping[str, str], problems: list[str]) -> FormatOptions:
    """Parse the options of formats, and add their problems to `problems`.

    Args:
        texts: the options by name in lower case.
    """
    registry = RegistrySettings(
        {n.removeprefix(REGISTRY_PREFIX): t for n, t in texts.items() if n.startswith(REGISTRY_PREFIX)}
    )
    options = FormatOptions(
        key=_parse_field(texts, "key", problems),
        value=_parse_field(texts, "value", problems),
        registry=registry,
        on_malformed=_parse_choice(texts, "onmalformed", "onMalformed", MalformedAction.FAIL, problems),
        auto_register=texts.get("auto.register.schemas", "false").lower() == "true",
    )
    if texts.get("auto.register.schemas", "false").lower() not in ("true", "false"):
        problems.append(f"auto.register.schemas: {texts['auto.register.schemas']!r} is not true or false")
    if any(each.has_schema for each in options.fields):
        problems += find_registry_problems(registry)
    elif registry:
        problems.append(
            "schema.registry.url: has an effect with key.format or value.format avro, json or protobuf alone"
        )
    return options


def _parse_field(texts: Mapping[str, str], field: str, problems: list[str]) -> FieldFormat:
    kind = _parse_choice(texts, f"{field}.format", f"{field}.format", ColumnFormat.BYTES, problems)
    result = FieldFormat(
        field=field,
        format=kind,
        schema=texts.get(f"{field}.schema"),
        message=texts.get(f"{field}.message"),
        subject=texts.get(f"{field}.subject"),
        strategy=_parse_choice(
            texts,
            f"{field}.subject.strategy",
            f"{field}.subject.strategy",
            SubjectStrategy.TOPIC_NAME,
            problems,
        ),
    )
    if not result.has_schema:
        problems += [
            f"{name}: has an effect with {field}.format avro, json or protobuf alone"
            for name in (f"{field}.schema", f"{field}.subject", f"{field}.subject.strategy")
            if name in texts
        ]
    if result.message is not None and kind is not ColumnFormat.PROTOBUF:
        problems.append(f"{field}.message: has an effect with {field}.format protobuf alone")
    return result


def _parse_choice(texts: Mapping[str, str], key: str, name: str, default: E, problems: list[str]) -> E:
    try:
        return type(default)(texts.get(key, default.value))
    except ValueError:
        choices = ", ".join(each.value for each in type(default))
        problems.append(f"{name}: {texts[key]!r} is not one of {choices}")
        return default
