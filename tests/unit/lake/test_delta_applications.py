"""Application ids of a Delta table, from the forms of checkpoints that its protocol has."""

import json
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tallystick.lake.delta_applications import list_checkpoint_files, read_application_ids


class MemoryLog:
    """A log folder in memory; what is read may change it."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = dict(files)
        self.newer: list[dict[str, bytes]] = []

    def read(self, path: str) -> bytes | None:
        content = self.files.get(path.removeprefix("_delta_log/"))
        if path.endswith("_last_checkpoint") and self.newer:
            self.files = self.newer.pop()
        return content

    def list(self, folder: str) -> Mapping[str, int]:
        return {f"{folder}/{name}": len(content) for name, content in self.files.items()}


def read_ids(log: Any) -> set[str]:
    return set(read_application_ids(log))


def entry(*ids: str) -> bytes:
    actions = [{"commitInfo": {}}, *({"txn": {"appId": each, "version": 1}} for each in ids)]
    return "\n".join(map(json.dumps, actions)).encode()


def checkpoint(*ids: str) -> bytes:
    rows = pa.table(
        {
            "txn": pa.array(
                [{"appId": each, "version": 1} for each in ids] + [None],
                pa.struct([("appId", pa.string()), ("version", pa.int64())]),
            )
        }
    )
    content = BytesIO()
    pq.write_table(rows, content)
    return content.getvalue()


def name_entry(version: int) -> str:
    return f"{version:020d}.json"


BASE = f"{2:020d}.checkpoint"


@pytest.mark.parametrize(
    ("pointer", "files"),
    [
        ({"version": 2}, {f"{BASE}.parquet": checkpoint("a", "b")}),
        (
            {"version": 2, "parts": 2},
            {
                f"{BASE}.{1:010d}.{2:010d}.parquet": checkpoint("a"),
                f"{BASE}.{2:010d}.{2:010d}.parquet": checkpoint("b"),
            },
        ),
        (
            {"version": 2, "v2Checkpoint": {"path": f"{BASE}.8f2a.json"}},
            {f"{BASE}.8f2a.json": entry("a", "b")},
        ),
        (
            {"version": 2, "v2Checkpoint": {"path": f"{BASE}.8f2a.parquet"}},
            {f"{BASE}.8f2a.parquet": checkpoint("a", "b")},
        ),
    ],
)
def test_a_checkpoint_and_the_entries_behind_it(pointer: dict[str, Any], files: dict[str, bytes]) -> None:
    log = {"_last_checkpoint": json.dumps(pointer).encode(), **files}
    log |= {name_entry(1): entry("gone with the wind"), name_entry(3): entry("c"), name_entry(4): entry()}
    assert set(list_checkpoint_files(pointer)) == set(files)
    assert read_ids(MemoryLog(log)) == {"a", "b", "c"}


def test_a_table_without_a_checkpoint_has_its_whole_log() -> None:
    assert read_ids(MemoryLog({name_entry(0): entry("a"), name_entry(1): entry("b")})) == {"a", "b"}


def test_a_checkpoint_without_applications() -> None:
    content = BytesIO()
    pq.write_table(pa.table({"add": [1]}), content)
    log = {"_last_checkpoint": b'{"version": 2}', f"{BASE}.parquet": content.getvalue()}
    assert read_ids(MemoryLog(log)) == set()


def test_a_log_that_is_cleaned_up_while_it_is_read_is_read_again() -> None:
    old = MemoryLog({name_entry(0): entry("a")})
    new = {"_last_checkpoint": b'{"version": 2}', f"{BASE}.parquet": checkpoint("a", "b")}
    old.newer = [new]
    assert read_ids(old) == {"a", "b"}


def test_a_log_that_never_rests_is_told() -> None:
    log = MemoryLog({})
    log.newer = [{"_last_checkpoint": json.dumps({"version": n}).encode()} for n in range(30)]
    with pytest.raises(OSError, match="changed 10 times"):
        read_ids(log)
