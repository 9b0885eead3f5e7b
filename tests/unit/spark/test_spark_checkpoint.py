"""Checkpoints in folders, and what a source keeps in one."""

import json
from hashlib import sha256
from pathlib import Path
from uuid import UUID

import pytest

from tallystick.kernel.value import replace
from tallystick.spark.checkpoint import (
    BadCheckpoint,
    SchemaNote,
    find_local_folder,
    keep_schema,
    keep_start_offsets,
    read_decision_locations,
    read_end_offsets,
    read_query_id,
    read_query_start,
    write_decision_location,
)
from tallystick.spark.options.sink_options import SinkOptions
from tallystick.spark.protocol.decide import DecisionLocation, NewCheckpoint, QueryStart
from tallystick.spark.protocol.offsets import StartOffsets

OFFSETS = 'v1\n{"batchWatermarkMs":0}\n{"a":{"0":5}}\n{"b":{"0":1}}\n'
START = StartOffsets(offsets={"a": {"0": 3}}, topic_ids={"a": UUID(int=1)})
OF_A = {"cluster": "1", "topics": "a"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a query whose first batch is planned; its name has what a URI may trip over."""
    folder = tmp_path / "a b%20c:d"
    (folder / "offsets").mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"q"}')
    (folder / "offsets" / "0").write_text(OFFSETS)
    return folder


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/a/b", "/a/b"),
        ("a/b", "a/b"),
        ("file:/a/b", "/a/b"),
        ("file:///a/b", "/a/b"),
        ("file://localhost/a/b", "/a/b"),
        ("file:/a%20b", "/a%20b"),
        ("file://elsewhere/a", None),
        ("s3a://bucket/a", None),
        ("hdfs:/a", None),
    ],
)
def test_the_folder_of_a_location(location: str, path: str | None) -> None:
    """As Hadoop's local file system takes it."""
    assert find_local_folder(location) == (None if path is None else Path(path))


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_what_spark_wrote_is_read(folder: Path, scheme: str) -> None:
    location = f"{scheme}{folder}"
    assert read_query_id(location) == "q"
    assert read_end_offsets(location, 0) == '{"a":{"0":5}}\n{"b":{"0":1}}'
    assert read_end_offsets(location, 1) is None


@pytest.mark.parametrize("location", [None, "/nowhere/at/all", "s3a://bucket/a"])
def test_what_cannot_be_read_is_not_known(location: str | None) -> None:
    assert read_query_id(location) is None
    assert read_end_offsets(location, 0) is None


def test_a_start_is_asked_once_and_kept(folder: Path) -> None:
    """[SPK-3] However often the first batch is repeated, and whatever `latest` is by then."""
    other = StartOffsets(offsets={"a": {"0": 9}})
    answers = iter([START, other, StartOffsets(offsets={"b": {"0": 0}})])
    for _ in range(2):
        assert keep_start_offsets(str(folder), OF_A, lambda: next(answers)) == START
    assert keep_start_offsets(f"file:{folder}", {**OF_A, "cluster": "2"}, lambda: next(answers)) == other
    notes = [json.loads(path.read_text()) for path in (folder / "tallystick").glob("start-*.json")]
    assert sorted(note["source"]["cluster"] for note in notes) == ["1", "2"]


@pytest.mark.parametrize(
    ("ends", "notes", "is_taken"),
    [
        (['{"a":{"0":5}}', '{"b":{"0":1}}'], 1, True),
        (['{"a":{"0":5}}', '{"logOffset":3}', "-"], 1, True),
        (['{"a":{"0":5}}', '{"a":{"0":9}}'], 2, True),
        (['{"a":{"0":5}}', '{"a":{"0":9}}'], 1, False),
        ([], 1, False),
    ],
)
def test_a_start_that_was_kept_without_its_cluster(
    folder: Path, ends: list[str], notes: int, is_taken: bool
) -> None:
    """[SPK-3] It is taken where every source of its topics has one, and it can be no other source's."""
    (folder / "offsets" / "0").write_text("\n".join(["v1", "{}", *ends]))
    own = folder / "tallystick"
    own.mkdir()
    for number in range(notes):
        name = f"start-{sha256(f'key {number}'.encode()).hexdigest()[:16]}.json"
        (own / name).write_text(json.dumps({"a": {"0": 3 + number}}))
    if is_taken:
        for _ in range(2):
            assert keep_start_offsets(str(folder), OF_A, pytest.fail, "key 0").offsets == START.offsets
    else:
        with pytest.raises(BadCheckpoint, match="does not say in which cluster"):
            keep_start_offsets(str(folder), OF_A, pytest.fail, "key 0")
    assert keep_start_offsets(str(folder), {**OF_A, "topics": "b"}, lambda: START, "of b") == START


def test_a_place_that_keeps_no_start_is_refused(folder: Path) -> None:
    """[SPK-3] Rather than to begin somewhere else the next time."""
    for location in ("s3a://bucket/a", str(folder.parent)):
        with pytest.raises(BadCheckpoint, match="not look like this query's checkpoint folder"):
            keep_start_offsets(location, OF_A, lambda: START)
    (folder / "tallystick").write_text("in the way")
    with pytest.raises(BadCheckpoint, match="Nothing was begun"):
        keep_start_offsets(str(folder), OF_A, lambda: START)


def test_how_a_query_begins_is_looked_at_for_resume_alone(folder: Path) -> None:
    """[SPK-27]"""
    keep_start_offsets(str(folder), OF_A, lambda: START)
    options = SinkOptions(
        prefix="p", client={}, on_new_checkpoint=NewCheckpoint.RESUME, checkpoint=f"file:{folder}"
    )
    found = QueryStart(query_id="q", start_offsets=(json.dumps(START.offsets),), source_count=2)
    assert read_query_start(options) == found
    (folder / "state").mkdir()
    assert read_query_start(options, "given") == replace(found, query_id="given", is_stateful=True)
    assert read_query_start(replace(options, on_new_checkpoint=NewCheckpoint.RESTART)) is None
    assert read_query_start(replace(options, checkpoint=None)) is None


def test_each_prefix_has_a_note_of_its_own(folder: Path) -> None:
    """[SPK-29] The first one where earlier versions look for it."""
    homes = [DecisionLocation(prefix=prefix, location="topic t") for prefix in ("a", "b", "c")]
    for home in homes:
        write_decision_location(str(folder), home)
    assert [read_decision_locations(str(folder), home.prefix) for home in homes] == [
        (each,) for each in homes
    ]
    assert sorted(read_decision_locations(str(folder), "d"), key=lambda each: each.prefix) == homes
    moved = DecisionLocation(prefix="a", location="topic u")
    write_decision_location(str(folder), moved)
    assert read_decision_locations(str(folder), "a") == (moved,)
    assert json.loads((folder / "tallystick" / "decisions.json").read_text())["prefix"] == "a"


def test_a_query_keeps_the_schema_that_it_began_with(folder: Path, tmp_path: Path) -> None:
    """[SPK-30] Whatever is registered later."""
    answers = iter((7, 8, 9))

    def find(note: SchemaNote | None) -> SchemaNote:
        return note or SchemaNote(
            subject="s", schema_id=next(answers), format="avro", fingerprint="f", registry="r"
        )

    assert [keep_schema(str(folder), "orders-value", find).schema_id for _ in range(2)] == [7, 7]
    assert keep_schema(str(folder), "orders-key", find).schema_id == 8
    new = tmp_path / "new"
    assert keep_schema("s3a://bucket/a", "orders-value", find).schema_id == 9
    answers = iter((3, 4, 5))
    assert [keep_schema(str(new), "orders-value", find).schema_id for _ in range(2)] == [3, 4]
    assert not new.exists()
    kept = [keep_schema(str(new), "orders-value", find, create=True) for _ in range(2)]
    assert kept[0] == kept[1]
    (path,) = (new / "tallystick").glob("schema-*.json")
    fields = {"subject": "s", "id": 5, "format": "avro", "fingerprint": "f", "registry": "r"}
    assert json.loads(path.read_text()) == fields
    path.write_text('{"subject": "s", "id": 6}')
    old = keep_schema(str(new), "orders-value", find, create=True)
    assert (old.schema_id, old.fingerprint) == (6, "")
    moved = keep_schema(str(new), "orders-value", lambda note: replace(old, schema_id=60), create=True)
    assert keep_schema(str(new), "orders-value", find, create=True) == moved
    path.write_text("{")
    with pytest.raises(BadCheckpoint, match="cannot be read"):
        keep_schema(str(new), "orders-value", find, create=True)
