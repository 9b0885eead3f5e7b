"""A schema registry, asked through the client of confluent-kafka, which knows logins, TLS and retries.

Schemas are cached by id for the life of the client, since an id never changes its meaning. What the registry
does not know is not remembered here: it may be registered a moment later.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

from tallystick import _lazy
from tallystick.kernel.secret import chain
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
# Without this limit, the client waits for ever.
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
_VERSIONS_MAX: Final = 500
_MESSAGE_LENGTH_MAX: Final = 500
_USER_INFO: Final = "basic.auth.user.info"
# A gateway before the registry answers 404, too, and then nothing is known of the schema.
# Source: Confluent's API reference, "Errors": subject, version and schema not found.
_UNKNOWN_CODES: Final = (40401, 40402, 40403)
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
        texts = _DEFAULTS | take_login(settings)
        self.url = texts.get("url", "")
        try:
            values = {name: float(text) if name in _NUMBERS else text for name, text in texts.items()}
            self._client = self._module.SchemaRegistryClient(values)
            # The client caches schemas by id, whatever format they were asked for in.
            self._descriptor_client = self._module.SchemaRegistryClient(values)
        except (TypeError, ValueError, OSError) as exc:
            raise SchemaError(f"schema.registry.*: {exc}") from chain(exc)

    def find_schema(self, schema_id: int) -> ResolvedSchema:
        """Return the schema of an id. Raises: UnknownSchema; SchemaError."""
        schema = self._ask(f"schema {schema_id}", lambda: self._client.get_schema(schema_id))
        return self._resolve(schema, schema_id)

    def find_latest(self, subject: str) -> ResolvedSchema:
        """Return the latest version of a subject. Raises: UnknownSchema."""
        self._client.clear_latest_caches()
        answer = self._ask(f"subject {subject!r}", lambda: self._client.get_latest_version(subject))
        return self._resolve(answer.schema, answer.schema_id)

    def find_versions(self, subject: str) -> Iterator[ResolvedSchema]:
        """Yield the versions of a subject, the latest first. Raises: UnknownSchema."""
        versions = self._ask(f"subject {subject!r}", lambda: self._client.get_versions(subject))
        for version in sorted(versions, reverse=True)[:_VERSIONS_MAX]:
            answer = self._ask(
                f"version {version} of subject {subject!r}",
                lambda at=version: self._client.get_version(subject, at),  # type: ignore[misc]
            )
            yield self._resolve(answer.schema, answer.schema_id)

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
            text = f"the schema registry at {self.url} answered {exc.http_status_code} about {subject}: "
            text += str(exc.error_message)[:_MESSAGE_LENGTH_MAX]
            if exc.error_code in _UNKNOWN_CODES:
                raise UnknownSchema(text) from exc
            is_refusal = exc.http_status_code in (409, 422, 501) and _is_registrys(exc.error_code)
            if exc.http_status_code == 404:
                text += ". That is no answer of a registry, but of what stands before it, or at another path"
            raise (SchemaError if is_refusal else RegistryUnavailable)(text) from exc
        except Exception as exc:  # the client raises those of its HTTP library
            text = f"the schema registry at {self.url} did not answer about {subject}"
            raise RegistryUnavailable(f"{text}: {type(exc).__name__}: {exc}") from chain(exc)


def take_login(settings: Mapping[str, str]) -> dict[str, str]:
    """Return settings whose URLs have no login, which the client would show wherever it shows them.

    Raises: SchemaError if there are several logins.
    """
    texts = dict(settings)
    urls, logins = [], set()
    for url in texts.get("url", "").split(","):
        parts = urlsplit(url.strip())
        login, at, hosts = parts.netloc.rpartition("@")
        urls.append(urlunsplit(parts._replace(netloc=hosts)) if at else url.strip())
        if at:
            logins.add(unquote(login))
    if not logins:
        return texts
    if len(logins) > 1 or _USER_INFO in texts:
        raise SchemaError(
            "schema.registry.url: the client has one login, in the URL of all its hosts, or in "
            f"schema.registry.{_USER_INFO}. Give it once"
        )
    return {**texts, "url": ",".join(urls), _USER_INFO: logins.pop()}


def _is_registrys(error_code: object) -> bool:
    """Return whether a registry gave this error code: the client makes up -1, or none, for other answers."""
    return isinstance(error_code, int) and error_code > 0


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
