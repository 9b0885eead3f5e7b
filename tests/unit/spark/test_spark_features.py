"""Which version of PySpark can do what: the table, its errors, and the page that shows it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tallystick.spark.runtime.versions import (
    SparkFeature,
    UnsupportedSpark,
    check_feature,
    find_checkpoint_manager,
    has_feature,
    parse_version,
)

PAGE = Path(__file__).parents[3] / "docs" / "spark.md"


@pytest.mark.parametrize(
    ("text", "version"),
    [("3.5.9", (3, 5)), ("4.3.0", (4, 3)), ("4.10.0.dev1", (4, 10)), ("4.2.0-preview", (4, 2))],
)
def test_versions_are_compared_as_numbers(text: str, version: tuple[int, int]) -> None:
    assert parse_version(text) == version


def test_a_version_that_is_none_is_refused() -> None:
    with pytest.raises(UnsupportedSpark, match="'unknown' cannot be read"):
        parse_version("unknown")


def test_what_a_version_lacks_is_said_with_what_to_do_instead() -> None:
    with pytest.raises(UnsupportedSpark) as refused:
        check_feature(SparkFeature.STREAM_READ, "4.1.4")
    assert str(refused.value) == (
        "spark.readStream.format('tallystick') needs PySpark 4.2 or later, and this is 4.1.4. "
        "Read with Spark's own format('kafka')"
    )


@pytest.mark.parametrize("feature", SparkFeature)
def test_a_feature_is_there_from_its_version_on(feature: SparkFeature) -> None:
    major, minor = feature.since
    check_feature(feature, f"{major}.{minor}.0")
    check_feature(feature, "4.10.0")
    assert not has_feature(feature, f"{major}.{minor - 1}.9" if minor else f"{major - 1}.9.9")


def test_the_page_shows_the_same_table() -> None:
    (header,) = re.findall(r"^\| PySpark \|(.+)\|$", PAGE.read_text(), re.MULTILINE)
    versions = [each.strip() for each in header.split("|")]
    for feature in SparkFeature:
        (cells,) = re.findall(
            rf"^\| `{re.escape(feature.call)}[^|]*`[^|]*\|(.+)\|$", PAGE.read_text(), re.MULTILINE
        )
        shown = [each.strip() for each in cells.split("|")]
        assert shown == ["yes" if has_feature(feature, each) else "no" for each in versions], feature


def test_checkpoints_are_written_by_the_class_that_the_version_has() -> None:
    assert find_checkpoint_manager("4.0.5").endswith(".streaming.FileSystemBasedCheckpointFileManager")
    assert find_checkpoint_manager("4.1.0").endswith(".checkpointing.FileSystemBasedCheckpointFileManager")


WITHOUT_DATA_SOURCES = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in ("pyspark.sql.datasource", "pyspark.sql.streaming.datasource"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
from tallystick.spark import foreach_batch, register, resolve, spark_session, to_table, to_topic
import tallystick.spark.sink.driver.foreach_topic
print("loaded")
"""


@pytest.mark.gate(0)
def test_foreach_batch_needs_no_python_data_sources() -> None:
    """PySpark 3.5 has none."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_DATA_SOURCES], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "loaded"
