"""URLs of tables, and names of data files."""

import pytest

from tallystick.kernel.ids import is_table_url
from tallystick.kernel.settings import BadConfig
from tallystick.lake.names import (
    NO_OPTIONS,
    DataFileName,
    StorageOptions,
    digest_key,
    digest_owner,
    digest_table,
    find_unsafe_options,
    find_url_problem,
    format_application_id,
    format_data_file_name,
    format_writer_key,
    is_catalog_url,
    parse_application_id,
    parse_data_file_name,
    parse_table_url,
    parse_writer_key,
)
from tallystick.spark.protocol.transactional_ids import find_prefix_problems


def test_the_url_of_a_table() -> None:
    url = parse_table_url("delta:s3://bucket/delays")
    assert (url.format, url.place, str(url)) == ("delta", "s3://bucket/delays", "delta:s3://bucket/delays")
    assert [is_table_url(text) for text in ("delta:/a", "delta", "a.delta", "sqlite:///x", "")] == [
        True,
        False,
        False,
        False,
        False,
    ]


def test_places_that_cannot_be_written() -> None:
    assert find_url_problem("delta:/lake/delays") is None
    assert find_url_problem("delta:file:///lake/delays") is None
    assert find_url_problem("delta:s3://bucket/delays") is None
    assert "or in an object store (s3://" in str(find_url_problem("delta:hdfs://name/delays"))
    assert "or in an object store (s3://" in str(find_url_problem("delta:dbfs:/user/hive/delays"))
    assert "is not the URL of a lake table" in str(find_url_problem("delta:"))


@pytest.mark.parametrize("place", ["sales.delays", "spark_catalog.default.delays"])
def test_a_name_in_sparks_catalog(place: str) -> None:
    url = parse_table_url(f"delta:{place}")
    assert (url.is_catalog_name, url.is_path) == (True, False)
    assert f"a relative one is delta:./{place}" in str(find_url_problem(str(url)))


@pytest.mark.parametrize(
    "text",
    [
        "delta:delays",
        "delta:./a.b",
        "delta:a.b/c",
        "delta:/a.b",
        "delta:a.b.c.d",
        "delta:a.2",
        "iceberg:a.b.c",
    ],
)
def test_what_is_no_name_in_sparks_catalog(text: str) -> None:
    assert not is_catalog_url(text)


@pytest.mark.parametrize("text", ["delta:", "hudi:/a", "delays", ""])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(BadConfig, match="is not the URL of a lake table"):
        parse_table_url(text)


def test_keys_of_writers_are_no_keys_of_queries() -> None:
    key = format_writer_key("payments/1")
    assert (parse_writer_key(key), parse_writer_key("payments/database")) == ("payments/1", None)
    assert any("is not letters" in problem for problem in find_prefix_problems(key))
    assert parse_application_id(format_application_id(key)) == key
    assert parse_application_id("some-job") is None


def test_an_iceberg_table_is_named_by_its_catalog() -> None:
    url = parse_table_url("iceberg:lake.air.flights.delays")
    assert (url.format, url.place, str(url)) == (
        "iceberg",
        "lake.air.flights.delays",
        "iceberg:lake.air.flights.delays",
    )
    assert is_table_url("iceberg:lake.flights.delays")
    assert find_url_problem("iceberg:lake.flights.delays") is None
    assert [parse_table_url(text).is_path for text in ("iceberg:a.b.c", "delta:a", "delta:s3://a")] == [
        False,
        True,
        False,
    ]


@pytest.mark.parametrize(
    "text",
    ["iceberg:delays", "iceberg:flights.delays", "iceberg:a..c", "iceberg:/lake/a.b.c", "iceberg:a.b."],
)
def test_what_names_no_iceberg_table(text: str) -> None:
    with pytest.raises(BadConfig, match="is named by its catalog, namespace and name"):
        parse_table_url(text)
    assert "like iceberg:lake.flights.delays" in str(find_url_problem(text))


def test_the_name_of_a_tag_tells_its_key() -> None:
    assert parse_application_id(format_application_id("p/database")) == "p/database"
    assert parse_application_id("main") is None


def test_the_name_of_a_data_file_tells_key_owner_and_attempt() -> None:
    name = format_data_file_name("t1", "p/database", "7/1", "ab12", 3)
    digests = digest_key("p/database"), digest_owner("7/1"), "ab12"
    assert parse_data_file_name(name) == DataFileName(digest_table("t1"), *digests)
    assert name != format_data_file_name("t1", "p/database", "7/2", "ab12", 3)
    assert name != format_data_file_name("t2", "p/database", "7/1", "ab12", 3)
    old_name = f"tallystick-{digests[0]}-{digests[1]}-ab12-3.parquet"
    assert parse_data_file_name(old_name) == DataFileName(None, *digests)


@pytest.mark.parametrize(
    "name",
    ["part-00000-1f.snappy.parquet", "tallystick-1-2-3-4.parquet", "tallystick-.parquet", "x" * 80, ""],
)
def test_the_names_of_other_writers_are_not_ours(name: str) -> None:
    assert parse_data_file_name(name) is None


@pytest.mark.parametrize(
    ("options", "unsafe"),
    [
        ({"AWS_S3_ALLOW_UNSAFE_RENAME": "true"}, ["aws_s3_allow_unsafe_rename"]),
        (
            {"allow_unsafe_rename": "1", "aws_conditional_put": "disabled"},
            ["allow_unsafe_rename", "aws_conditional_put"],
        ),
        ({"AWS_S3_ALLOW_UNSAFE_RENAME": "false", "aws_conditional_put": "etag"}, []),
        ({"AWS_S3_LOCKING_PROVIDER": "dynamodb"}, ["aws_s3_locking_provider"]),
        ({}, []),
    ],
)
def test_options_under_which_a_commit_overwrites_another(options: dict[str, str], unsafe: list[str]) -> None:
    """[LAK-1]"""
    assert find_unsafe_options(parse_table_url("delta:s3://bucket/t"), options) == unsafe


def test_a_lock_in_dynamodb_concerns_no_folder() -> None:
    """[LAK-1] It may be in the environment of a host for other tables."""
    assert (
        find_unsafe_options(parse_table_url("delta:/lake/t"), {"AWS_S3_LOCKING_PROVIDER": "dynamodb"}) == []
    )


def test_options_print_without_their_texts() -> None:
    options = StorageOptions.build({"b": "hunter2", "a": "x"})
    assert repr(options) == "StorageOptions(a, b)"
    assert (dict(options), StorageOptions.build(None)) == ({"a": "x", "b": "hunter2"}, NO_OPTIONS)
