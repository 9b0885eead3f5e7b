"""The application ids of a Delta table: those in its last checkpoint, and those in the log entries since.

A checkpoint keeps every application transaction, so no more than the end of the log is read, however long the
log is kept. Ids are found here also if the commits that they were of are cleaned up.

Source: Delta's protocol, "Last Checkpoint File", "Checkpoints", "Transaction Identifiers".
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tallystick.lake.storage import Storage

LOG_FOLDER: Final = "_delta_log"
LAST_CHECKPOINT: Final = f"{LOG_FOLDER}/_last_checkpoint"
_ATTEMPTS_MAX: Final = 10


def read_application_ids(storage: Storage) -> frozenset[str]:
    """Return the ids of all application transactions of a table. Raises: OSError, ValueError."""
    for _ in range(_ATTEMPTS_MAX):
        pointer = storage.read(LAST_CHECKPOINT)
        ids = _read_ids(storage, {} if pointer is None else json.loads(pointer))
        # What the pointer named may have been cleaned up behind a newer checkpoint meanwhile.
        if storage.read(LAST_CHECKPOINT) == pointer:
            return ids
    raise OSError(f"{LAST_CHECKPOINT} changed {_ATTEMPTS_MAX} times while the log was read")


def _read_ids(storage: Storage, pointer: Mapping[str, Any]) -> frozenset[str]:
    since = pointer.get("version", -1)
    ids: set[str] = set()
    for name in list_checkpoint_files(pointer):
        content = storage.read(f"{LOG_FOLDER}/{name}")
        if content is not None:
            ids.update(_read_checkpoint(name, content))
    for path in storage.list(LOG_FOLDER):
        number = path.removeprefix(f"{LOG_FOLDER}/").removesuffix(".json")
        if number.isdigit() and int(number) > since:
            ids.update(_read_actions(storage.read(path) or b""))
    return frozenset(ids)


def list_checkpoint_files(pointer: Mapping[str, Any]) -> list[str]:
    """Return the names of the files of a checkpoint, which the content of `_last_checkpoint` tells."""
    if not pointer:
        return []
    if "v2Checkpoint" in pointer:
        return [str(pointer["v2Checkpoint"]["path"]).rpartition("/")[2]]
    base = f"{pointer['version']:020d}.checkpoint"
    parts = pointer.get("parts") or 0
    if parts:
        return [f"{base}.{part:010d}.{parts:010d}.parquet" for part in range(1, parts + 1)]
    return [f"{base}.parquet"]


def _read_checkpoint(name: str, content: bytes) -> Iterator[str]:
    if name.endswith(".json"):
        yield from _read_actions(content)
        return
    rows = pq.ParquetFile(pa.BufferReader(content)).read(columns=["txn.appId"])
    if "txn" in rows.column_names:
        yield from (row["appId"] for row in rows["txn"].to_pylist() if row and row["appId"] is not None)


def _read_actions(content: bytes) -> Iterator[str]:
    for line in content.splitlines():
        if line.strip():
            action = json.loads(line)
            if "txn" in action:
                yield action["txn"]["appId"]
