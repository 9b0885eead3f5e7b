"""Spark's workers run the PySpark that is installed, not the zip that Spark brings for those without."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession

from tallystick.spark.worker_python import worker_python

SHOW = "import os, sys; print(os.environ['PYTHONPATH'], sys.argv[1:], os.path.realpath(sys.prefix))"


def test_the_zips_are_left_out_and_nothing_else(tmp_path: Path) -> None:
    python = worker_python(tmp_path / "of a user")
    zips = "/s/python/lib/pyspark.zip:/s/python/lib/py4j-0.10.9.9-src.zip"
    for path, kept in ((f"{zips}:/a b:/c*", "/a b:/c*"), (f"/a:{zips}", "/a"), (zips, ""), ("", "")):
        run = [python, "-c", SHOW, "one word", "$HOME"]
        done = subprocess.run(run, capture_output=True, text=True, check=True, env={"PYTHONPATH": path})
        expected = f"{kept} ['one word', '$HOME'] {Path(sys.prefix).resolve()}\n"
        assert done.stdout == expected
    assert worker_python(tmp_path / "of a user") == python, "once made, it is used again"


def test_without_an_installed_pyspark_the_zip_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tallystick.spark.worker_python.find_spec", lambda name: None)
    assert worker_python(tmp_path) == sys.executable


def test_a_cache_that_cannot_be_written_is_no_reason_to_stop(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert worker_python(tmp_path / "file") == sys.executable


def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a worker."""
    import pyspark

    list(batches)
    yield pa.record_batch({"file": [pyspark.__file__]})


@pytest.mark.slow
def test_workers_import_what_is_installed(spark: SparkSession) -> None:
    found = spark.range(1).mapInArrow(where, "file STRING").collect()
    assert {row.file for row in found} == {pyspark.__file__}
