"""A schema registry, asked through the client of confluent-kafka, which knows logins, TLS and retries.

Schemas are cached by id for the life of the client, since an id never changes its meaning. What the registry
does not know is not remembered here: it may be registered a moment later.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from tallystick import _lazy
from tallystick.schemas.model import (
    ColumnFormat,
    RegistryUnavailable,
    ResolvedSchema,
    SchemaError,
    UnknownSchema,
)

T = TypeVar("T")

_TYPES: Final = {ColumnFormat.AVRO: "AVRO", ColumnFormat.JSON: "JSON", ColumnFormat.PROTOBUF: "PROTOBUF"}
_FORMATS: Final = {name: column_format for column_format, name in _TYPES.items()}
# The client waits without a limit unless it is told one.
_DEFAULTS: Final = {"timeout": "30"}
_NUMBERS: Final = (
    "cache.capacity",
    "cache.latest.ttl.sec",
    "max.retries",
    "retries.max.wait.ms",
    "retries.wait.ms",
    "timeout",
)
_REFERENCES_MAX: Final = 500
_SERIALIZED: Final = "serialized"
"""The format in which a registry answers with the descriptor of a Protobuf file, in place of its text."""


class Registry:
    """Client of one schema registry. Threads may share it; a forked child makes its own."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        """Create the client without connecting.

        Args:
            settings: of `confluent_kafka.schema_registry.SchemaRegistryClient`, as texts.
        Raises: SchemaError for settings it does not take; MissingLibrary.
        """
        self._module = _load_client()
        self._url = settings.get("url", "")
        texts = _DEFAULTS | dict(settings)
        try:
            values = {name: float(text) if name in _NUMBERS else text for name, text in texts.items()}
            self._client = self._module.SchemaRegistryClient(values)
            # The client caches schemas by id, whatever format they were asked for in.
            self._descriptor_client = self._module.SchemaRegistryClient(values)
        except (TypeError, ValueError, OSError) as exc:
            raise SchemaError(f"schema.registry.*: {exc}") from exc

    def find_schema(self, schema_id: int) -> ResolvedSchema:
        """Return the schema of an id. Raises: UnknownSchema; SchemaError."""
        schema = self._ask(f"schema {schema_id}", lambda: self._client.get_schema(schema_id))
        return self._resolve(schema, schema_id)

    def find_latest(self, subject: str) -> ResolvedSchema:
        """Return the latest version of a subject. Raises: UnknownSchema."""
        self._client.clear_latest_caches()
        answer = self._ask(f"subject {subject!r}", lambda: self._client.get_latest_version(subject))
        return self._resolve(answer.schema, answer.schema_id)

    def look_up(self, subject: str, text: str, column_format: ColumnFormat) -> ResolvedSchema:
        """Return a schema with its id, if it is registered under a subject. Raises: UnknownSchema."""
        schema = self._module.Schema(text, _TYPES[column_format])
        answer = self._ask(
            f"this schema under subject {subject!r}", lambda: self._client.lookup_schema(subject, schema)
        )
        return self._build(text, answer.schema_id, column_format)

    def register(self, subject: str, text: str, column_format: ColumnFormat) -> ResolvedSchema:
        """Register a schema under a subject, unless it is there. Raises: SchemaError if it is refused."""
        schema = self._module.Schema(text, _TYPES[column_format])
        schema_id = self._ask(f"subject {subject!r}", lambda: self._client.register_schema(subject, schema))
        return self._build(text, schema_id, column_format)

    def close(self) -> None:
        self._client.close()
        self._descriptor_client.close()

    def _build(self, text: str, schema_id: int, column_format: ColumnFormat) -> ResolvedSchema:
        """Return a registered schema; the text of a Protobuf file gives way to its descriptor."""
        if column_format is ColumnFormat.PROTOBUF:
            return self.find_schema(schema_id)
        return ResolvedSchema(text, schema_id, format=column_format)

    def _resolve(self, schema: Any, schema_id: int) -> ResolvedSchema:
        column_format = _FORMATS.get(schema.schema_type or "AVRO")
        if column_format is None:
            raise SchemaError(
                f"schema {schema_id} is of type {schema.schema_type}, and not {' or '.join(_FORMATS)}"
            )
        if column_format is ColumnFormat.PROTOBUF:
            return self._resolve_protobuf(schema_id)
        references: dict[str, str] = {}
        self._collect_references(schema, references, set())
        return ResolvedSchema(schema.schema_str, schema_id, tuple(references), column_format)

    def _resolve_protobuf(self, schema_id: int) -> ResolvedSchema:
        schema = self._ask(
            f"schema {schema_id} with format={_SERIALIZED}",
            lambda: self._descriptor_client.get_schema(schema_id, fmt=_SERIALIZED),
        )
        references: dict[str, str] = {}
        self._collect_references(schema, references, set(), _SERIALIZED)
        return ResolvedSchema(
            schema.schema_str,
            schema_id,
            tuple(references.values()),
            ColumnFormat.PROTOBUF,
            reference_names=tuple(references),
        )

    def _collect_references(
        self, schema: Any, texts: dict[str, str], visits: set[tuple[str, str, int]], fmt: str | None = None
    ) -> None:
        """Collect the schemas that one refers to: Protobuf's by the names of their files, others by text."""
        client = self._client if fmt is None else self._descriptor_client
        for reference in schema.references or ():
            visit = ("" if fmt is None else reference.name, reference.subject, reference.version)
            if visit in visits:
                continue
            visits.add(visit)
            if len(visits) > _REFERENCES_MAX:
                raise SchemaError(f"a schema refers to more than {_REFERENCES_MAX} others")
            answer = self._ask(
                f"version {reference.version} of subject {reference.subject!r}",
                lambda at=reference: client.get_version(at.subject, at.version, True, fmt),  # type: ignore[misc]
            )
            self._collect_references(answer.schema, texts, visits, fmt)
            text = answer.schema.schema_str
            texts[text if fmt is None else reference.name] = text

    def _ask(self, subject: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except self._module.SchemaRegistryError as exc:
            text = f"the schema registry at {self._url} answered {exc.http_status_code} about {subject}: "
            text += str(exc.error_message)
            if exc.http_status_code == 404:
                raise UnknownSchema(text) from exc
            error = SchemaError if exc.http_status_code in (409, 422, 501) else RegistryUnavailable
            raise error(text) from exc
        except Exception as exc:  # the client raises those of its HTTP library
            text = f"the schema registry at {self._url} cannot be asked about {subject}"
            raise RegistryUnavailable(f"{text}: {type(exc).__name__}: {exc}") from exc


_REGISTRIES: Final[dict[tuple[int, tuple[tuple[str, str], ...]], Registry]] = {}


def get_registry(settings: Mapping[str, str]) -> Registry:
    """Return this process's client for these settings. A forked child does not use its parent's."""
    key = os.getpid(), tuple(sorted(settings.items()))
    if key not in _REGISTRIES:
        _REGISTRIES[key] = Registry(settings)
    return _REGISTRIES[key]


def _load_client() -> Any:
    try:
        return _lazy.load("confluent_kafka.schema_registry")
    except ModuleNotFoundError as exc:
        raise _lazy.MissingLibrary(str(exc.name), "schemas") from exc
