"""Rows of DESCRIBE TABLE EXTENDED, as Spark 4.2 with Delta 4.4 has them."""

import pytest

from tallystick.spark.sink.driver.lake import read_delta_location

COLUMNS = [("value", "string"), ("Location", "string"), ("Provider", "string"), ("", "")]


def describe(provider: str, place: str) -> list[tuple[str, str]]:
    properties = [("Name", "spark_catalog.default.rows"), ("Location", place), ("Provider", provider)]
    return [*COLUMNS, ("# Detailed Table Information", ""), *properties]


@pytest.mark.parametrize(
    ("place", "path"),
    [
        ("file:/lake/my rows", "/lake/my rows"),
        ("file:///lake/rows", "/lake/rows"),
        ("s3://bucket/rows", "s3://bucket/rows"),
    ],
)
def test_the_place_of_a_delta_table(place: str, path: str) -> None:
    """Columns may have the names of properties."""
    assert read_delta_location(describe("delta", place)) == path


@pytest.mark.parametrize("rows", [describe("parquet", "file:/lake/rows"), describe("delta", ""), COLUMNS, []])
def test_what_is_no_delta_table(rows: list[tuple[str, str]]) -> None:
    assert read_delta_location(rows) is None
