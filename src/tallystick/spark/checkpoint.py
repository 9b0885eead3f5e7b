"""Access to a query's checkpoint, if it is a folder that this process can see, and to our own files in it.

    metadata                 Spark's: the query's id
    offsets/N                Spark's: the sources' offsets at the end of batch N
    state/                   Spark's: exists if the query keeps state
    tallystick/start-*.json  ours: the start offsets of a source
    tallystick/decisions.json  ours: the prefix and the place of the query's decisions
    tallystick/schema-*.json  ours: the id of the schema that a sink writes for a subject

If the first batch is repeated, Spark asks a source for its start offsets again, and by then `latest` may be
another place. Spark's own Kafka source keeps them in the checkpoint (`KafkaMicroBatchStream
.getOrCreateInitialPartitionOffsets`). A Python source does not know the checkpoint's location, so it is an
option.
"""

import json
import os
import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Final

from tallystick.kernel.errors import TallystickError
from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.protocol.decide import DecisionLocation, NewCheckpoint, QueryStart
from tallystick.spark.protocol.offsets import OffsetJson

_LOCAL_URI: Final = re.compile("file:(?://(?:localhost)?(?=/))?(/(?:[^/].*)?)")
_SCHEME: Final = re.compile("[A-Za-z][A-Za-z0-9+.-]*:")
_OWN_FOLDER: Final = "tallystick"
_HEADER_LINES: Final = 2
"""Number of lines before the offsets: the log's version, and the batch's settings (Spark's OffsetSeqLog)."""


class BadCheckpoint(TallystickError):
    """The checkpoint is not a folder that this process can use. Nothing was begun."""


def find_local_folder(location: str) -> Path | None:
    """Return the folder of a `checkpointLocation`: a path, or a URI of Hadoop's local file system; else None.

    Hadoop accepts `file:/a`, `file:///a` and `file://localhost/a`, and does not decode percent signs.
    """
    if (local := _LOCAL_URI.fullmatch(location)) is not None:
        return Path(local[1])
    return None if _SCHEME.match(location) else Path(location)


def read_query_id(location: str | None) -> str | None:
    """Return the query's id; None if it cannot be read."""
    folder = None if location is None else find_local_folder(location)
    if folder is None:
        return None
    try:
        query_id = json.loads((folder / "metadata").read_text())["id"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return query_id if isinstance(query_id, str) else None


def read_end_offsets(location: str | None, batch_id: int) -> str | None:
    """Return the sources' offsets at the end of a batch, a line for each source; None if unreadable."""
    folder = None if location is None else find_local_folder(location)
    if folder is None:
        return None
    try:
        lines = (folder / "offsets" / str(batch_id)).read_text().splitlines()
    except (OSError, ValueError):
        return None
    return "\n".join(lines[_HEADER_LINES:]) or None


def read_query_start(options: SinkOptions, query_id: str | None = None) -> QueryStart | None:
    """Return the beginning of a query under `onNewCheckpoint=resume`; None if the checkpoint is unreadable.

    Args:
        query_id: the query's id, if it is known already.
    """
    location = options.checkpoint
    folder = None if location is None else find_local_folder(location)
    query_id = query_id or read_query_id(location)
    if options.on_new_checkpoint is not NewCheckpoint.RESUME or folder is None or query_id is None:
        return None
    try:
        starts = [path.read_text() for path in sorted((folder / _OWN_FOLDER).glob("start-*.json"))]
        keeps_state = (folder / "state").exists()
    except (OSError, ValueError):
        return None
    ends = read_end_offsets(location, 0) or ""
    return QueryStart(
        query_id=query_id,
        start_offsets=tuple(starts),
        source_count=len(ends.splitlines()),
        is_stateful=keeps_state,
    )


def read_decision_location(location: str | None) -> DecisionLocation | None:
    """Return the location of the query's decisions, as noted in its checkpoint; None without a note.

    Raises: BadCheckpoint.
    """
    path = _find_location_file(location)
    if path is None:
        return None
    try:
        note = json.loads(path.read_text())
        return DecisionLocation(prefix=str(note["prefix"]), location=str(note["place"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise BadCheckpoint(f"{path} cannot be read: {exc!r}. Nothing was begun") from exc


def write_decision_location(location: str | None, home: DecisionLocation) -> None:
    """Note the location of the decisions, if the checkpoint is a query's folder. Raises: BadCheckpoint."""
    path = _find_location_file(location)
    if path is not None and (path.parent.parent / "metadata").is_file():
        _write_atomically(path, json.dumps({"prefix": home.prefix, "place": home.location}))


def _find_location_file(location: str | None) -> Path | None:
    folder = None if location is None else find_local_folder(location)
    return None if folder is None else folder / _OWN_FOLDER / "decisions.json"


def keep_start_offsets(location: str, source: str, find: Callable[[], OffsetJson]) -> OffsetJson:
    """Return a source's start offsets: those kept in the checkpoint, else those of `find` [SPK-3].

    The latter are then kept.

    Args:
        source: a key that differs between the sources of a query.
        find: computes the start offsets of a new query.
    Raises: BadCheckpoint; the errors of `find`.
    """
    folder = find_local_folder(location)
    if folder is None or not (folder / "metadata").is_file():
        raise BadCheckpoint(
            f"checkpointLocation of the source: {location} does not look like this query's checkpoint "
            "folder from this process. Nothing was begun. Give the source the folder that the query "
            "has, if it is on the driver's host; otherwise remove this option and resume.from.prefix"
        )
    path = folder / _OWN_FOLDER / f"start-{sha256(source.encode()).hexdigest()[:16]}.json"
    try:
        offsets: OffsetJson = json.loads(path.read_text())
    except FileNotFoundError:
        offsets = find()
        _write_atomically(path, json.dumps(offsets))
    except (OSError, ValueError) as exc:
        raise BadCheckpoint(f"{path} cannot be read: {exc}. Nothing was begun") from exc
    return offsets


def keep_schema_id(
    location: str | None, subject: str, find: Callable[[], int], *, create: bool = False
) -> int:
    """Return the id of the schema that a query writes for a subject: the one that it began with [SPK-30].

    A repeated batch then has the bytes that it had before, whatever was registered meanwhile. Without a
    checkpoint that this process can see it is that of `find` every time.

    Args:
        create: the folder is the checkpoint, even if the query has not begun.
    Raises: BadCheckpoint; the errors of `find`.
    """
    folder = None if location is None else find_local_folder(location)
    if folder is None or not (create or (folder / "metadata").is_file()):
        return find()
    path = folder / _OWN_FOLDER / f"schema-{sha256(subject.encode()).hexdigest()[:16]}.json"
    try:
        note = json.loads(path.read_text())
        return int(note["id"])
    except FileNotFoundError:
        schema_id = find()
        folder.mkdir(parents=True, exist_ok=True)
        _write_atomically(path, json.dumps({"subject": subject, "id": schema_id}))
        return schema_id
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise BadCheckpoint(f"{path} cannot be read: {exc!r}. Nothing was begun") from exc


def _write_atomically(path: Path, text: str) -> None:
    """Write a file atomically and durably: a crash leaves all of it or nothing."""
    try:
        path.parent.mkdir(exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        with draft.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as exc:
        raise BadCheckpoint(f"{path} cannot be written: {exc}. Nothing was begun") from exc
