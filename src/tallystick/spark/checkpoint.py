"""A query's checkpoint, where it is a folder that this process can see; and what we keep in it.

    metadata                 Spark's: the query's id
    offsets/N                Spark's: the sources' offsets at the end of batch N
    state/                   Spark's: there where the query keeps state
    tallystick/start-*.json  ours: where a source began
    tallystick/decisions.json  ours: under which prefix its batches are decided, and where

Spark asks a source where it begins again when the first batch is repeated, and by then the answer may be
another one. Its own Kafka source keeps its answer in the checkpoint (`KafkaMicroBatchStream
.getOrCreateInitialPartitionOffsets`); a source in Python is not told where that is, so an option says it.
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
from tallystick.spark.protocol.decide import Beginning, Home, NewCheckpoint
from tallystick.spark.protocol.offsets import OffsetJson

_LOCAL: Final = re.compile("file:(?://(?:localhost)?(?=/))?(/(?:[^/].*)?)")
_SCHEME: Final = re.compile("[A-Za-z][A-Za-z0-9+.-]*:")
_OURS: Final = "tallystick"
_HEAD_LINES: Final = 2
"""In front of the offsets: the log's version, and the batch's settings (Spark's OffsetSeqLog)."""


class BadCheckpoint(TallystickError):
    """A checkpoint is no folder that this process can use. Nothing was begun."""


def folder_of(location: str) -> Path | None:
    """The folder of a `checkpointLocation`: a path, or a URI of Hadoop's local file system; else None.

    Hadoop takes `file:/a`, `file:///a` and `file://localhost/a`, and leaves percent signs as they are.
    """
    if (local := _LOCAL.fullmatch(location)) is not None:
        return Path(local[1])
    return None if _SCHEME.match(location) else Path(location)


def query_of(location: str | None) -> str | None:
    """The query's id, where it can be read."""
    folder = None if location is None else folder_of(location)
    if folder is None:
        return None
    try:
        found = json.loads((folder / "metadata").read_text())["id"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) else None


def offsets_after(location: str | None, batch_id: int) -> str | None:
    """The sources' offsets at the end of a batch, a line for each source, where they can be read."""
    folder = None if location is None else folder_of(location)
    if folder is None:
        return None
    try:
        lines = (folder / "offsets" / str(batch_id)).read_text().splitlines()
    except (OSError, ValueError):
        return None
    return "\n".join(lines[_HEAD_LINES:]) or None


def resuming(options: SinkOptions, query_id: str | None = None) -> Beginning | None:
    """How a query begins, where `onNewCheckpoint` is resume and the checkpoint can be read.

    Args:
        query_id: where it is known already.
    """
    location = options.checkpoint
    folder = None if location is None else folder_of(location)
    query_id = query_id or query_of(location)
    if options.on_new is not NewCheckpoint.RESUME or folder is None or query_id is None:
        return None
    try:
        starts = [path.read_text() for path in sorted((folder / _OURS).glob("start-*.json"))]
        keeps_state = (folder / "state").exists()
    except (OSError, ValueError):
        return None
    ends = offsets_after(location, 0) or ""
    return Beginning(
        query_id=query_id, starts=tuple(starts), sources=len(ends.splitlines()), keeps_state=keeps_state
    )


def home_of(location: str | None) -> Home | None:
    """Return where the query's decisions are, by a note in its checkpoint; None where none can be read.

    Raises: BadCheckpoint.
    """
    path = _note(location)
    if path is None:
        return None
    try:
        found = json.loads(path.read_text())
        return Home(prefix=str(found["prefix"]), place=str(found["place"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise BadCheckpoint(f"{path} cannot be read: {exc!r}. Nothing was begun") from exc


def note_home(location: str | None, home: Home) -> None:
    """Note it, where the checkpoint is a folder with a query in it. Raises: BadCheckpoint."""
    path = _note(location)
    if path is not None and (path.parent.parent / "metadata").is_file():
        _write(path, json.dumps({"prefix": home.prefix, "place": home.place}))


def _note(location: str | None) -> Path | None:
    folder = None if location is None else folder_of(location)
    return None if folder is None else folder / _OURS / "decisions.json"


def kept_start(location: str, source: str, find: Callable[[], OffsetJson]) -> OffsetJson:
    """Where a source began, or begins now: what `find` says the first time is kept [SPK-3].

    Args:
        source: what tells the sources of a query apart.
    Raises: BadCheckpoint; what `find` raises.
    """
    folder = folder_of(location)
    if folder is None or not (folder / "metadata").is_file():
        raise BadCheckpoint(
            f"checkpointLocation of the source: {location} is not the folder of this query's checkpoint, as "
            "far as this process can see. Give the source the one that the query has, if that is a folder of "
            "the driver's host; else leave the option out, and resume.from.prefix with it"
        )
    path = folder / _OURS / f"start-{sha256(source.encode()).hexdigest()[:16]}.json"
    try:
        found: OffsetJson = json.loads(path.read_text())
    except FileNotFoundError:
        found = find()
        _write(path, json.dumps(found))
    except (OSError, ValueError) as exc:
        raise BadCheckpoint(f"{path} cannot be read: {exc}. Nothing was begun") from exc
    return found


def _write(path: Path, text: str) -> None:
    """All of it or nothing, whenever the machine stops."""
    try:
        path.parent.mkdir(exist_ok=True)
        fresh = path.with_suffix(f".{os.getpid()}")
        with fresh.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as exc:
        raise BadCheckpoint(f"{path} cannot be written: {exc}. Nothing was begun") from exc
