"""A schema registry for tests: a small part of Confluent's REST API, in memory, on a thread of this process.

    with SchemaRegistry() as registry:
        client = SchemaRegistryClient({"url": registry.url})

It exists because no registry on PyPI runs inside a test, and is no registry to keep schemas in: it has no
authentication and no disk, and forgets everything at the end.

What it answers, for Avro, JSON Schema and Protobuf: registering and looking up schemas, subjects, versions,
schemas by id, compatibility levels and checks. Avro's compatibility is decided by Apache's `avro` package, if
that is installed; other types, and references between schemas, are stored without any check. Deletion,
contexts, modes, exporters and data contracts are not there, and are answered with 404 or 405.

A Protobuf schema is a .proto file, or the base64 of its descriptor, which confluent-kafka registers. Asked
for `format=serialized`, the registry compiles a file with `protoc`, if there is one. Confluent's makes a file
of a descriptor, too; here it stays what it was registered as.

Source: Confluent Platform 8, Schema Registry API reference.
"""

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Final, Self
from urllib.parse import parse_qs, unquote, urlsplit

from tallystick import _lazy
from tallystick.testing.proto_files import RegistryRefusal, compile_proto

SCHEMAS_MAX: Final = 10_000
"""Maximum number of schemas; the next one is refused with 507."""
BODY_BYTES_MAX: Final = 1024 * 1024
"""Maximum size of a request's body; a longer one is refused with 413."""

_LEVELS: Final = (
    "NONE",
    *(f"{way}{reach}" for way in ("BACKWARD", "FORWARD", "FULL") for reach in ("", "_TRANSITIVE")),
)
_TYPES: Final = ("AVRO", "JSON", "PROTOBUF")
_SOCKET_TIMEOUT_S: Final = 30.0

Answer = tuple[int, object]


class RegistryState:
    """Subjects, versions and schemas, and what is answered about them. For one thread at a time."""

    def __init__(self) -> None:
        self._schemas: list[dict[str, Any]] = []
        self._versions: dict[str, list[int]] = {}
        self._levels: dict[str, str] = {}
        self._global_level = "BACKWARD"

    def answer(self, method: str, path: str, body: Mapping[str, Any], *, serialized: bool = False) -> Answer:
        """Return the status and the JSON of an answer.

        Args:
            path: without its query, still quoted.
            serialized: Protobuf is answered as the base64 of its file's descriptor.
        """
        status, answer = self._answer(method, path, body)
        if serialized and isinstance(answer, dict) and answer.get("schemaType") == "PROTOBUF":
            try:
                return status, {**answer, "schema": self._compile(answer)}
            except RegistryRefusal as refusal:
                return refusal.status, {"error_code": refusal.code, "message": refusal.message}
        return status, answer

    def _compile(self, schema: Mapping[str, Any]) -> str:
        files: dict[str, str] = {}
        self._collect_files(schema, files)
        return compile_proto(schema["schema"], files)

    def _collect_files(self, schema: Mapping[str, Any], files: dict[str, str]) -> None:
        for reference in schema.get("references", ()):
            if reference["name"] not in files:
                at = self._find_version(reference["subject"], str(reference["version"]))
                imported = self._describe(reference["subject"], at)
                files[reference["name"]] = imported["schema"]
                self._collect_files(imported, files)

    def _answer(self, method: str, path: str, body: Mapping[str, Any]) -> Answer:
        parts = [unquote(part) for part in path.strip("/").split("/")]
        try:
            match method, parts:
                case "GET", ["subjects"]:
                    return 200, sorted(self._versions)
                case "GET", ["subjects", subject, "versions"]:
                    return 200, list(range(1, len(self._require_subject(subject)) + 1))
                case "GET", ["subjects", subject, "versions", version]:
                    return 200, self._describe(subject, self._find_version(subject, version))
                case "POST", ["subjects", subject, "versions"]:
                    return 200, self._register(subject, body)
                case "POST", ["subjects", subject]:
                    return 200, self._look_up(subject, body)
                case "POST", ["compatibility", "subjects", subject, "versions", *version]:
                    return 200, self._check(subject, version, body)
                case "GET", ["schemas", "types"]:
                    return 200, list(_TYPES)
                case "GET", ["schemas", "ids", schema_id, *rest]:
                    return 200, self._describe_id(schema_id, rest)
                case "GET" | "PUT", ["config", *subject]:
                    return 200, self._configure(method, subject, body)
                case _:
                    raise RegistryRefusal(404, 404, f"{method} {path}: not in this registry for tests")
        except RegistryRefusal as refusal:
            return refusal.status, {"error_code": refusal.code, "message": refusal.message}

    def _require_subject(self, subject: str) -> list[int]:
        if subject not in self._versions:
            raise RegistryRefusal(404, 40401, f"Subject '{subject}' not found.")
        return self._versions[subject]

    def _find_version(self, subject: str, version: str) -> int:
        count = len(self._require_subject(subject))
        if version in ("latest", "-1"):
            return count
        if not version.isdecimal() or not 1 <= int(version) <= count:
            raise RegistryRefusal(404, 40402, f"Version {version} not found.")
        return int(version)

    def _describe(self, subject: str, version: int) -> dict[str, Any]:
        schema_id = self._versions[subject][version - 1]
        return {"subject": subject, "version": version, "id": schema_id, **self._schemas[schema_id - 1]}

    def _describe_id(self, text: str, rest: list[str]) -> object:
        schema_id = int(text) if text.isdecimal() else 0
        if not 1 <= schema_id <= len(self._schemas):
            raise RegistryRefusal(404, 40403, f"Schema {text} not found")
        uses = [
            {"subject": subject, "version": ids.index(schema_id) + 1}
            for subject, ids in self._versions.items()
            if schema_id in ids
        ]
        match rest:
            case []:
                return self._schemas[schema_id - 1]
            case ["versions"]:
                return uses
            case ["subjects"]:
                return [use["subject"] for use in uses]
            case _:
                raise RegistryRefusal(404, 404, f"{'/'.join(rest)}: not in this registry for tests")

    def _register(self, subject: str, body: Mapping[str, Any]) -> dict[str, Any]:
        schema = _read_schema(body)
        known = self._find_schema(schema)
        versions = self._versions.get(subject, [])
        if known is not None and known in versions:
            return {"id": known, **schema}
        problems = self._find_incompatibilities(subject, schema, range(1, len(versions) + 1))
        if problems:
            text = f"Schema being registered is incompatible with an earlier schema for subject '{subject}'"
            raise RegistryRefusal(409, 409, f"{text}: {'; '.join(problems)}")
        if known is None:
            if len(self._schemas) >= SCHEMAS_MAX:
                raise RegistryRefusal(507, 50701, f"this registry for tests holds {SCHEMAS_MAX} schemas")
            self._schemas.append(schema)
            known = len(self._schemas)
        self._versions.setdefault(subject, []).append(known)
        return {"id": known, **schema}

    def _look_up(self, subject: str, body: Mapping[str, Any]) -> dict[str, Any]:
        versions = self._require_subject(subject)
        known = self._find_schema(_read_schema(body))
        if known is None or known not in versions:
            raise RegistryRefusal(404, 40403, "Schema not found")
        return self._describe(subject, versions.index(known) + 1)

    def _find_schema(self, schema: Mapping[str, Any]) -> int | None:
        """Return the id of an equal schema: one id stands for one schema in all subjects."""
        identity = _build_identity(schema)
        for schema_id, other in enumerate(self._schemas, 1):
            if _build_identity(other) == identity:
                return schema_id
        return None

    def _check(self, subject: str, version: list[str], body: Mapping[str, Any]) -> dict[str, Any]:
        self._require_subject(subject)
        versions = range(1, len(self._versions[subject]) + 1)
        if version:
            number = self._find_version(subject, version[0])
            versions = range(number, number + 1)
        problems = self._find_incompatibilities(subject, _read_schema(body), versions, whole=bool(version))
        return {"is_compatible": not problems, "messages": problems}

    def _find_incompatibilities(
        self, subject: str, schema: Mapping[str, Any], versions: range, *, whole: bool = False
    ) -> list[str]:
        level = self._levels.get(subject, self._global_level)
        if level == "NONE" or schema.get("schemaType", "AVRO") != "AVRO" or "references" in schema:
            return []
        if not whole and not level.endswith("_TRANSITIVE"):
            versions = versions[-1:]
        way = level.removesuffix("_TRANSITIVE")
        problems = []
        for version in versions:
            earlier = self._describe(subject, version)["schema"]
            if way in ("BACKWARD", "FULL"):
                problems += _find_avro_problems(reader=schema["schema"], writer=earlier)
            if way in ("FORWARD", "FULL"):
                problems += _find_avro_problems(reader=earlier, writer=schema["schema"])
        return problems

    def _configure(self, method: str, subject: list[str], body: Mapping[str, Any]) -> dict[str, Any]:
        name = "/".join(subject)
        if method == "GET":
            if name and name not in self._levels:
                text = f"Subject '{name}' does not have subject-level compatibility configured"
                raise RegistryRefusal(404, 40408, text)
            return {"compatibilityLevel": self._levels.get(name, self._global_level)}
        level = str(body.get("compatibility", "")).upper()
        if level not in _LEVELS:
            raise RegistryRefusal(422, 42203, f"Invalid compatibility level: one of {', '.join(_LEVELS)}")
        if name:
            self._levels[name] = level
        else:
            self._global_level = level
        return {"compatibility": level}


class SchemaRegistry:
    """A registry on a free port of the loopback address, for as long as the `with` block lasts.

    Attributes: url. `request_count` and `set_status` are for tests of what a client asks and survives.
    """

    def __init__(self) -> None:
        """Create the registry; `start` or `with` opens its port."""
        self.state = RegistryState()
        self.request_count = 0
        self._lock = threading.Lock()
        self._failure_status: int | None = None
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        if self._server is None:
            raise RuntimeError("the registry is not started")
        return f"http://127.0.0.1:{self._server.server_port}"

    def start(self) -> Self:
        handler = type("Handler", (_RequestHandler,), {"handle_request": self._handle})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="tallystick-schema-registry", daemon=True
        )
        self._thread.start()
        return self

    def stop(self) -> None:
        """Close the port. Idempotent."""
        server, self._server = self._server, None
        if server is not None and self._thread is not None:
            server.shutdown()
            self._thread.join()
            server.server_close()

    def set_status(self, status: int | None) -> None:
        """Answer every request with this HTTP status and nothing else; None ends that."""
        self._failure_status = status

    def register(
        self,
        subject: str,
        schema: str,
        schema_type: str = "AVRO",
        references: Mapping[str, str] | None = None,
    ) -> int:
        """Register a schema under a subject, and return its id.

        Args:
            references: the names that the schema imports, or has for its types, and the subjects whose latest
                versions they are.
        Raises: ValueError with the refusal.
        """
        path = f"/subjects/{subject}/versions"
        body: dict[str, Any] = {"schema": schema, "schemaType": schema_type}
        if references:
            body["references"] = [
                {"name": name, "subject": at, "version": self._count_versions(at)}
                for name, at in references.items()
            ]
        status, answer = self._handle("POST", path, body)
        if status != 200 or not isinstance(answer, dict):
            raise ValueError(f"{subject}: {answer}")
        schema_id: int = answer["id"]
        return schema_id

    def _count_versions(self, subject: str) -> int:
        _, versions = self._handle("GET", f"/subjects/{subject}/versions", {})
        return len(versions) if isinstance(versions, list) else 0

    def _handle(self, method: str, path: str, body: Mapping[str, Any], *, serialized: bool = False) -> Answer:
        with self._lock:
            self.request_count += 1
            if self._failure_status is not None:
                return self._failure_status, {"error_code": self._failure_status, "message": "set by a test"}
            return self.state.answer(method, path, body, serialized=serialized)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class _RequestHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"  # a connection for each request, so that none outlives the registry
    timeout = _SOCKET_TIMEOUT_S
    handle_request: ClassVar[Callable[..., Answer]]

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        self._read_and_answer()

    def do_PUT(self) -> None:
        self._read_and_answer()

    def _read_and_answer(self) -> None:
        text = self.headers.get("Content-Length", "")
        length = int(text) if text.isdecimal() else 0
        if length > BODY_BYTES_MAX:
            self._send(413, {"error_code": 413, "message": f"a body of {length} bytes"})
            return
        try:
            body = json.loads(self.rfile.read(length) or b"{}")
        except ValueError:
            body = None
        if isinstance(body, dict):
            self._answer(body)
        else:
            self._send(400, {"error_code": 400, "message": "the body is no JSON object"})

    def _answer(self, body: Mapping[str, Any]) -> None:
        url = urlsplit(self.path)
        serialized = parse_qs(url.query).get("format") == ["serialized"]
        self._send(*type(self).handle_request(self.command, url.path, body, serialized=serialized))

    def _send(self, status: int, answer: object) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Log nothing: a test's output is its own."""


def _read_schema(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is kept of a schema. Raises: RegistryRefusal if it is none."""
    schema, kind = body.get("schema"), body.get("schemaType") or "AVRO"
    if not isinstance(schema, str) or kind not in _TYPES:
        raise RegistryRefusal(422, 42201, f"Invalid schema of type {kind!r}: {schema!r}")
    if kind != "PROTOBUF":
        try:
            json.loads(schema)
        except ValueError as exc:
            raise RegistryRefusal(422, 42201, f"Invalid schema: {exc}") from exc
    kept = {"schema": schema} if kind == "AVRO" else {"schema": schema, "schemaType": kind}
    return {**kept, "references": body["references"]} if body.get("references") else kept


def _build_identity(schema: Mapping[str, Any]) -> tuple[object, ...]:
    """Return what is equal for equal schemas: spaces in JSON do not matter."""
    kind, text = schema.get("schemaType", "AVRO"), schema["schema"]
    content = text if kind == "PROTOBUF" else json.dumps(json.loads(text))
    return kind, content, json.dumps(schema.get("references"))


def _find_avro_problems(*, reader: str, writer: str) -> list[str]:
    """Return why a reader cannot read what a writer writes; nothing without Apache's `avro` package."""
    try:
        avro_schema, checks = _lazy.load("avro.schema"), _lazy.load("avro.compatibility")
    except ImportError:
        return []
    try:
        parsed = avro_schema.parse(reader), avro_schema.parse(writer)
    except avro_schema.SchemaParseException as exc:
        raise RegistryRefusal(422, 42201, f"Invalid schema: {exc}") from exc
    result = checks.ReaderWriterCompatibilityChecker().get_compatibility(*parsed)
    if result.compatibility is checks.SchemaCompatibilityType.compatible:
        return []
    return [str(message) for message in result.messages] or ["incompatible"]
