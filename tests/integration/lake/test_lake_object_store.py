"""A Delta table in an object store: what S3 has to do, and what is seen when it does not.

What every table promises is in test_lake_contract.py, with the table in S3 among others.
"""

from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.lake_tables import PREFIX, DeltaS3Place, make_rows, read_ids, write_files

from tallystick.kernel.ids import ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tallystick.kernel.settings import BadConfig
from tallystick.lake.entries import CommitOutcome, LakeEntry
from tallystick.lake.errors import UnusableTable
from tallystick.lake.names import parse_table_url
from tallystick.lake.object_storage import PART_BYTES, PROBE_PATH
from tallystick.lake.opening import LakeLocation, open_table
from tallystick.lake.storage import open_storage

pytest.importorskip("deltalake", reason="needs the extra delta")

OWNER = ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(1))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[DeltaS3Place]:
    place = DeltaS3Place(tmp_path)
    yield place
    place.store.ignore_conditions(False)


def entry(name: str) -> LakeEntry:
    return LakeEntry(key=PREFIX, owner=str(OWNER), commit=name)


def test_a_store_that_overwrites_is_refused_before_the_first_commit(place: DeltaS3Place) -> None:
    """[LAK-1] The fence of a driver is the store's "create only if absent": without it there is none."""
    place.store.ignore_conditions()
    table = place.open()
    version = table.read(PREFIX).version
    with pytest.raises(
        UnusableTable, match=r"two writers may commit the same version.*Nothing was committed"
    ):
        table.commit(version, entry("c"), ())
    place.store.ignore_conditions(False)
    assert table.read(PREFIX).version == version
    assert table.commit(version, entry("c"), ()) is CommitOutcome.COMMITTED
    assert PROBE_PATH in place.storage.list("_delta_log"), "the next process asks once"
    assert place.open().storage.find_fence_problem() is None


def test_a_commit_whose_answer_is_lost_is_looked_up(place: DeltaS3Place) -> None:
    """The library sends the request again, and is told that the version is there: it is this very commit."""
    table = place.open()
    version = table.read(PREFIX).version
    lost = place.store.lost_answers
    place.store.lose_answer(f"{version + 1:020d}.json")
    files = write_files(place, OWNER, [1, 2])
    assert table.commit(version, entry("c"), files) is CommitOutcome.COMMITTED
    assert place.store.lost_answers == lost + 1
    assert place.open().read(PREFIX).entry == entry("c")
    assert read_ids(place) == [1, 2]


def test_a_data_file_whose_answer_is_lost_is_uploaded_again(place: DeltaS3Place) -> None:
    lost = place.store.lost_answers
    place.store.lose_answer("tallystick-")
    files = write_files(place, OWNER, [1])
    assert place.store.lost_answers == lost + 1
    assert place.open().find_missing(files) == []
    assert place.storage.size(files[0].path) == files[0].size_bytes


def test_a_large_file_is_uploaded_in_parts(place: DeltaS3Place) -> None:
    writer = place.open_writer(OWNER, "aa")
    count, digits = 300, 2 * PART_BYTES // 100
    names = [token_hex(digits // 2) for _ in range(count)]
    writer.write(pa.record_batch({"id": pa.array(range(count), pa.int64()), "name": names}))
    (file,) = writer.finish()
    assert file.size_bytes > PART_BYTES
    assert place.open().find_missing([file]) == []
    content = place.storage.read(file.path)
    assert content is not None
    assert pq.read_table(pa.BufferReader(content))["name"].to_pylist() == names


def test_what_was_uploaded_by_an_attempt_that_fails_is_removed(place: DeltaS3Place) -> None:
    writer = place.open_writer(OWNER, "aa")
    writer.write(make_rows([1]))
    assert len(writer.finish()) == 1
    writer.discard()
    assert place.storage.list("") == {}


def test_an_upload_that_is_given_up_makes_no_object(place: DeltaS3Place) -> None:
    """Not for a moment, and without the right to remove one."""
    storage = place.storage
    sink = storage.create("tallystick-x.parquet")
    sink.write(b"x" * (PART_BYTES + 1))
    storage.abandon(sink)
    storage.abandon(sink)
    assert storage.size("tallystick-x.parquet") is None


@pytest.mark.gate(4)
@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("AWS_S3_ALLOW_UNSAFE_RENAME", "true", "two drivers may both decide"),
        ("conditional_put", "disabled", "two drivers may both decide"),
        ("AWS_S3_LOCKING_PROVIDER", "dynamodb", "two drivers may both decide"),
        ("aws_secret_acces_key", "x", "'aws_secret_acces_key' is not valid for store 'S3'"),
        ("aws_iam_role_arn", "x", "do not suit obstore, which writes the data files"),
        ("retry_timeout", "soon", r"retry_timeout \[hidden\] is no duration, such as 30s"),
        ("certificate_path", "/none.pem", "No such file"),
    ],
)
def test_options_that_do_not_fence_or_mean_nothing_are_refused(
    place: DeltaS3Place, name: str, text: str, problem: str
) -> None:
    location = LakeLocation(url=parse_table_url(place.url), storage_options=((name, text),))
    with pytest.raises(BadConfig, match=problem):
        open_table(location)


def test_options_of_the_connection_have_every_name_that_delta_rs_takes(place: DeltaS3Place) -> None:
    url = parse_table_url(place.url)
    for name in ("AWS_ALLOW_HTTP", "aws_allow_http", "allow_http", "ALLOW_HTTP"):
        options = {n: t for n, t in place.options.items() if n != "AWS_ALLOW_HTTP"}
        assert open_storage(url, {**options, name: "true", "timeout": "30s"}).list("") == {}


def test_options_of_delta_rs_calls_are_taken(place: DeltaS3Place) -> None:
    more = {"max_retries": "2", "retry_timeout": "1m", "backoff_config.init_backoff": "10ms"}
    more |= {"concurrency_limit": "10", "AWS_S3_ALLOW_UNSAFE_RENAME": "false", "randomize_addresses": "true"}
    assert open_storage(parse_table_url(place.url), {**place.options, **more}).list("") == {}


def test_options_of_the_environment_are_those_of_both_libraries(
    place: DeltaS3Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in place.options.items():
        monkeypatch.setenv(name, text)
    location = LakeLocation(url=parse_table_url(place.url))
    table = open_table(location)
    assert table.commit(table.read(PREFIX).version, entry("e"), ()) is CommitOutcome.COMMITTED
    some = {"AWS_REGION": "us-east-1", "timeout": "20s"}
    assert open_storage(location.url, some).list("_delta_log")


def test_libraries_that_do_not_reach_the_same_place_are_refused(place: DeltaS3Place) -> None:
    table: Any = place.open()
    other = place.store.create_bucket()
    table.storage = open_storage(parse_table_url(f"delta:s3://{other}/lake/table"), place.options)
    with pytest.raises(UnusableTable, match="obstore, which writes its data files, does not find it"):
        table.commit(table.read(PREFIX).version, entry("e"), ())
    with pytest.raises(UnusableTable, match="does not find it"):
        table.add_columns(table.read_definition())


def test_the_bucket_that_is_not_there(place: DeltaS3Place) -> None:
    table = place.open("delta:s3://no-such-bucket/table")
    with pytest.raises(OSError, match=r"^table delta:s3://no-such-bucket/table: .*NoSuchBucket") as raised:
        table.read(PREFIX)
    assert "\n" not in str(raised.value)
    assert "\x1b" not in str(raised.value)
    with pytest.raises(OSError, match=r"NoSuchBucket|bucket"):
        open_storage(parse_table_url("delta:s3://no-such-bucket/table"), place.options).list("")
