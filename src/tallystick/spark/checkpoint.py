"""Access to a query's checkpoint and to our own files in it, wherever this process can reach it.

    metadata                 Spark's: the query's id
    offsets/N                Spark's: the sources' offsets at the end of batch N
    state/                   Spark's: exists if the query keeps state
    tallystick/start-*.json  ours: the start offsets of a source, and what it reads
    tallystick/decisions.json  ours: the prefix and the place of the query's decisions
    tallystick/decisions-*.json  the same of a further prefix, of a query with several
    tallystick/schema-*.json  ours: the schema that a sink writes for a subject, and its registry

If the first batch is repeated, Spark asks a source for its start offsets again, and by then `latest` may be
another place. Spark's own Kafka source keeps them in the checkpoint (`KafkaMicroBatchStream
.getOrCreateInitialPartitionOffsets`). A Python source does not know the checkpoint's location, so it is an
option.

On a local disk, files are read here. Anywhere else, and where Hadoop's default file system is another one,
they go through Spark's own file system (`spark.files`, docs/adr/0035). A process that has no way to it, such
as one of Spark Connect's, knows nothing of the checkpoint.
"""

import json
import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final
from uuid import UUID

from tallystick.kernel.errors import TallystickError
from tallystick.kernel.value import Value
from tallystick.spark import files as spark_files
from tallystick.spark.files import served
from tallystick.spark.files.folder import CheckpointFiles, LocalFiles
from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.protocol.decide import DecisionLocation, NewCheckpoint, QueryStart
from tallystick.spark.protocol.offsets import OffsetJson, StartOffsets

_LOCAL_URI: Final = re.compile("file:(?://(?:localhost)?(?=/))?(/(?:[^/].*)?)")
_SCHEME: Final = re.compile("[A-Za-z][A-Za-z0-9+.-]*:")
_OWN_FOLDER: Final = "tallystick"
_START_FILE: Final = re.compile(r"start-.*\.json")
_LOCATION_NAME: Final = "decisions.json"
_LOCATION_FILE: Final = f"{_OWN_FOLDER}/{_LOCATION_NAME}"
_FURTHER_LOCATION_NAME: Final = re.compile(r"decisions-[0-9a-f]{16}\.json")
_NOTE_VERSION: Final = 1
_HEADER_LINES: Final = 2
"""Number of lines before the offsets: the log's version, and the batch's settings (Spark's OffsetSeqLog)."""


class BadCheckpoint(TallystickError):
    """The checkpoint is no place that this process can use. Nothing was begun."""


def find_local_folder(location: str) -> Path | None:
    """Return the folder of a `checkpointLocation`: a path, or a URI of Hadoop's local file system; else None.

    Hadoop accepts `file:/a`, `file:///a` and `file://localhost/a`, and does not decode percent signs.
    """
    if (local := _LOCAL_URI.fullmatch(location)) is not None:
        return Path(local[1])
    return None if _SCHEME.match(location) else Path(location)


def open_checkpoint(location: str | None) -> CheckpointFiles | None:
    """Return the files of a checkpoint; None if this process cannot reach them."""
    if location is None:
        return None
    folder = find_local_folder(location)
    if folder is not None and location.startswith("file:"):
        return LocalFiles(folder)
    system = spark_files.hadoop.find_session_files() or served.find_served_files()
    if folder is not None and (system is None or system.default_is_local):
        return LocalFiles(folder)
    return None if system is None else system.open(location)


def read_query_id(location: str | None) -> str | None:
    """Return the query's id; None if the query has not begun, or its checkpoint is out of reach.

    Raises: BadCheckpoint if Spark's file system fails. A query whose id is not known would be refused later:
        by its first task, and when it has fenced the owner of the prefix.
    """
    files = open_checkpoint(location)
    if files is None:
        return None
    try:
        query_id = json.loads(files.read("metadata"))["id"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as exc:
        if isinstance(exc, OSError) and not isinstance(files, LocalFiles):
            raise _cannot_read(files, "metadata", exc) from exc
        return None
    return query_id if isinstance(query_id, str) else None


def read_end_offsets(location: str | None, batch_id: int) -> str | None:
    """Return the sources' offsets at the end of a batch, a line for each source; None if unreadable."""
    files = open_checkpoint(location)
    if files is None:
        return None
    try:
        lines = files.read(f"offsets/{batch_id}").splitlines()
    except (OSError, ValueError):
        return None
    return "\n".join(lines[_HEADER_LINES:]) or None


def read_query_start(options: SinkOptions, query_id: str | None = None) -> QueryStart | None:
    """Return the beginning of a query under `onNewCheckpoint=resume`; None if the checkpoint is unreadable.

    Args:
        query_id: the query's id, if it is known already.
    """
    location = options.checkpoint
    if options.on_new_checkpoint is not NewCheckpoint.RESUME:
        return None
    files = open_checkpoint(location)
    query_id = query_id or read_query_id(location)
    if files is None or query_id is None:
        return None
    try:
        names = [name for name in files.list_names(_OWN_FOLDER) if _START_FILE.fullmatch(name)]
        starts = [_read_noted_offsets(files.read(f"{_OWN_FOLDER}/{name}")) for name in names]
        keeps_state = files.exists("state")
    except (OSError, ValueError):
        return None
    ends = read_end_offsets(location, 0) or ""
    return QueryStart(
        query_id=query_id,
        start_offsets=tuple(starts),
        source_count=len(ends.splitlines()),
        is_stateful=keeps_state,
    )


def read_decision_locations(location: str | None, prefix: str) -> tuple[DecisionLocation, ...]:
    """Return where the decisions of a prefix are, as noted in the checkpoint of its query.

    Without a note of this prefix, return those of all others; nothing without any.

    Raises: BadCheckpoint.
    """
    files = open_checkpoint(location)
    if files is None:
        return ()
    for name in (_LOCATION_FILE, _name_location_file(prefix)):
        note = _read_location(files, name)
        if note is not None and note.prefix == prefix:
            return (note,)
    try:
        names = [
            f"{_OWN_FOLDER}/{name}"
            for name in files.list_names(_OWN_FOLDER)
            if name == _LOCATION_NAME or _FURTHER_LOCATION_NAME.fullmatch(name)
        ]
    except OSError as exc:
        raise _cannot_read(files, _OWN_FOLDER, exc) from exc
    return tuple(note for name in names if (note := _read_location(files, name)) is not None)


def write_decision_location(location: str | None, home: DecisionLocation) -> None:
    """Note the location of a prefix's decisions, if the checkpoint is a query's. Raises: BadCheckpoint.

    A note of another prefix stays: it belongs to another sink of the query.
    """
    files = open_checkpoint(location)
    if files is None or not _is_checkpoint(files):
        return
    first = _read_location(files, _LOCATION_FILE)
    is_first = first is None or first.prefix == home.prefix
    name = _LOCATION_FILE if is_first else _name_location_file(home.prefix)
    _write(files, name, json.dumps({"prefix": home.prefix, "place": home.location}))


def _name_location_file(prefix: str) -> str:
    return f"{_OWN_FOLDER}/decisions-{sha256(prefix.encode()).hexdigest()[:16]}.json"


def _read_location(files: CheckpointFiles, name: str) -> DecisionLocation | None:
    try:
        note = json.loads(files.read(name))
        return DecisionLocation(prefix=str(note["prefix"]), location=str(note["place"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise _cannot_read(files, name, exc) from exc


def keep_start_offsets(
    location: str, source: Mapping[str, str], find: Callable[[], StartOffsets], former_key: str | None = None
) -> StartOffsets:
    """Return a source's start offsets: those kept in the checkpoint, else those of `find` [SPK-3].

    The latter are then kept.

    Args:
        source: what the source reads, where and how; it differs between the sources of a query, unless they
            begin at the same offsets.
        find: computes the start offsets of a new query.
        former_key: the key of a note without these words.
    Raises: BadCheckpoint; the errors of `find`.
    """
    files = open_checkpoint(location)
    if files is None or not _is_checkpoint(files):
        raise BadCheckpoint(
            f"checkpointLocation of the source: {location} does not look like this query's checkpoint "
            "folder from this process. Nothing was begun. Give the source the location that the query "
            "has; with Spark Connect it has to be a folder on the server's host. Otherwise remove this "
            "option and resume.from.prefix"
        )
    name = _name_start_note(json.dumps(source, sort_keys=True))
    if (start := _read_start_note(files, name)) is not None:
        return start
    start = _read_former_start(files, location, former_key) or find()
    _write_start_note(files, name, source, start)
    return start


def note_topic_ids(location: str, source: Mapping[str, str], topic_ids: Mapping[str, UUID]) -> None:
    """Note which topics a source reads now under their names, if it has noted where it began.

    Raises: BadCheckpoint.
    """
    files = open_checkpoint(location)
    name = _name_start_note(json.dumps(source, sort_keys=True))
    if files is None or (start := _read_start_note(files, name)) is None:
        return
    start = StartOffsets(offsets=start.offsets, topic_ids={**start.topic_ids, **topic_ids})
    _write_start_note(files, name, source, start)


def read_start(location: str, source: Mapping[str, str]) -> StartOffsets | None:
    """Return the start offsets that a source has kept in the checkpoint, if any. Raises: BadCheckpoint."""
    files = open_checkpoint(location)
    name = _name_start_note(json.dumps(source, sort_keys=True))
    return None if files is None else _read_start_note(files, name)


def _read_start_note(files: CheckpointFiles, name: str) -> StartOffsets | None:
    try:
        note = json.loads(files.read(name))
        return StartOffsets(
            offsets=note["offsets"],
            topic_ids={topic: UUID(topic_id) for topic, topic_id in note["topic_ids"].items()},
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise _cannot_read(files, name, exc) from exc


def _write_start_note(
    files: CheckpointFiles, name: str, source: Mapping[str, str], start: StartOffsets
) -> None:
    topic_ids = {topic: str(topic_id) for topic, topic_id in start.topic_ids.items()}
    note = {"version": _NOTE_VERSION, "source": source, "topic_ids": topic_ids, "offsets": start.offsets}
    _write(files, name, json.dumps(note))


def _name_start_note(key: str) -> str:
    return f"{_OWN_FOLDER}/start-{sha256(key.encode()).hexdigest()[:16]}.json"


def _read_former_start(files: CheckpointFiles, location: str, former_key: str | None) -> StartOffsets | None:
    """Return the offsets of a note that does not say what it is about, if it can only be this source's.

    All sources of one query with the same topics shared such a note, also those of several clusters.

    Raises: BadCheckpoint.
    """
    if former_key is None:
        return None
    name = _name_start_note(former_key)
    try:
        offsets: OffsetJson = json.loads(files.read(name))
        own_names = [each for each in files.list_names(_OWN_FOLDER) if _START_FILE.fullmatch(each)]
        notes = [json.loads(files.read(f"{_OWN_FOLDER}/{each}")) for each in own_names]
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as exc:
        raise _cannot_read(files, name, exc) from exc
    lines = (read_end_offsets(location, 0) or "").splitlines()
    source_count = sum(_shares_topic(_parse_object(line), offsets) for line in lines)
    note_count = sum(not _is_versioned(each) and _shares_topic(each, offsets) for each in notes)
    if not 0 < source_count <= note_count:
        raise BadCheckpoint(
            f"{files}/{name} has the start offsets of a source, and does not say in which cluster, as an "
            f"earlier version wrote them: {source_count} sources of its topics in this query, and "
            f"{note_count} such files. Nothing was begun. Delete the file, and the sources begin where "
            "startingOffsets says, or use a new checkpoint"
        )
    return StartOffsets(offsets=offsets)


def _parse_object(text: str) -> Mapping[str, object]:
    try:
        json_value = json.loads(text)
    except ValueError:
        return {}
    return json_value if isinstance(json_value, dict) else {}


def _shares_topic(offsets: Mapping[str, object], others: OffsetJson) -> bool:
    return any(isinstance(offsets.get(topic), dict) for topic in others)


def _read_noted_offsets(text: str) -> str:
    note = json.loads(text)
    return json.dumps(note["offsets"]) if _is_versioned(note) else text


def _is_versioned(note: Mapping[str, object]) -> bool:
    """Tell a note of ours from one that has the offsets alone, in which each key is a topic."""
    return note.get("version") == _NOTE_VERSION


class SchemaNote(Value, kw_only=True):
    """The schema that a query writes for a subject.

    schema_id    in the registry
    format, fingerprint, registry  its format, what tells it from other schemas, and the registry's URL; empty
                 if an earlier version wrote the note
    """

    subject: str
    schema_id: int
    format: str = ""
    fingerprint: str = ""
    registry: str = ""


def keep_schema(
    location: str | None,
    subject: str,
    find: Callable[[SchemaNote | None], SchemaNote],
    *,
    create: bool = False,
) -> SchemaNote:
    """Return the schema that a query writes for a subject: the one that it began with [SPK-30].

    A repeated batch then has the bytes that it had before, whatever was registered meanwhile. Without a
    checkpoint that this process can see it is that of `find` every time.

    Args:
        find: returns the schema for a note, as the registry has it now; None for the latest one.
        create: the folder is the checkpoint, even if the query has not begun.
    Raises: BadCheckpoint; the errors of `find`.
    """
    files = open_checkpoint(location)
    if files is None or not (create or _is_checkpoint(files)):
        return find(None)
    name = f"{_OWN_FOLDER}/schema-{sha256(subject.encode()).hexdigest()[:16]}.json"
    before = _read_schema_note(files, name)
    note = find(before)
    if note != before:
        fields = {"subject": note.subject, "id": note.schema_id, "format": note.format}
        _write(
            files, name, json.dumps({**fields, "fingerprint": note.fingerprint, "registry": note.registry})
        )
    return note


def _read_schema_note(files: CheckpointFiles, name: str) -> SchemaNote | None:
    try:
        note = json.loads(files.read(name))
        return SchemaNote(
            subject=str(note["subject"]),
            schema_id=int(note["id"]),
            format=str(note.get("format", "")),
            fingerprint=str(note.get("fingerprint", "")),
            registry=str(note.get("registry", "")),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise _cannot_read(files, name, exc) from exc


def _is_checkpoint(files: CheckpointFiles) -> bool:
    try:
        return files.exists("metadata")
    except OSError as exc:
        raise _cannot_read(files, "metadata", exc) from exc


def _write(files: CheckpointFiles, name: str, text: str) -> None:
    """Write a file atomically and durably. Raises: BadCheckpoint."""
    try:
        files.write(name, text)
    except OSError as exc:
        raise BadCheckpoint(f"{files}/{name} cannot be written: {exc}. Nothing was begun") from exc


def _cannot_read(files: CheckpointFiles, name: str, error: Exception) -> BadCheckpoint:
    return BadCheckpoint(f"{files}/{name} cannot be read: {error!r}. Nothing was begun")
