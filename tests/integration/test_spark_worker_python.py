"""Spark's workers run the PySpark that is installed, not the zip that Spark brings for those without."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession

from tallystick.spark.runtime.user_cache import find_user_cache_dir
from tallystick.spark.worker_python import find_worker_python

SHOW = "import os, sys; print(os.environ['PYTHONPATH'], os.environ['a.b'], sys.argv[1:], sys.prefix)"


def test_the_zips_are_left_out_and_nothing_else(tmp_path: Path) -> None:
    """Nor a name in the environment that is none to a shell: functions of users read those."""
    python = find_worker_python(tmp_path / "of a user")
    zips = "/s/python/lib/pyspark.zip:/s/python/lib/py4j-0.10.9.9-src.zip"
    for path, kept in ((f"{zips}:/a b:/c*", "/a b:/c*"), (f"/a:{zips}", "/a"), (zips, ""), ("", "")):
        run = [python, "-c", SHOW, "one word", "$HOME"]
        env = {"PYTHONPATH": path, "a.b": "c"}
        done = subprocess.run(run, capture_output=True, text=True, check=True, env=env)
        assert done.stdout == f"{kept} c ['one word', '$HOME'] {sys.prefix}\n"
    assert find_worker_python(tmp_path / "of a user") == python, "once made, it is used again"


def test_without_an_installed_pyspark_the_zip_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tallystick.spark.worker_python.find_spec", lambda name: None)
    assert find_worker_python(tmp_path) == sys.executable


def test_another_spark_has_another_pyspark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its Java speaks to the workers of its own zip."""
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert find_worker_python(tmp_path) == sys.executable
    monkeypatch.setenv("SPARK_HOME", str(Path(pyspark.__file__).parent))
    assert find_worker_python(tmp_path) != sys.executable


def test_a_python_that_no_first_line_can_name_is_used_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("/of a user/python", "/" + 130 * "p"):
        monkeypatch.setattr(sys, "executable", path)
        assert find_worker_python(tmp_path) == path


def test_a_cache_that_is_of_no_use_is_no_reason_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be written; nothing in it may be run; the account has no folder."""
    (tmp_path / "file").touch()
    assert find_worker_python(tmp_path / "file") == sys.executable
    monkeypatch.setattr("tallystick.spark.runtime.user_cache.os.access", lambda file, mode: False)
    assert find_worker_python(tmp_path) == sys.executable
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert find_user_cache_dir().is_absolute()
    monkeypatch.setattr(Path, "home", no_home)
    assert find_user_cache_dir() == Path("/nonexistent/.cache/tallystick")


def no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a worker."""
    import pyspark

    list(batches)
    yield pa.record_batch({"file": [pyspark.__file__]})


@pytest.mark.slow
def test_workers_import_what_is_installed(spark: SparkSession) -> None:
    found = spark.range(1).mapInArrow(where, "file STRING").collect()
    assert {row.file for row in found} == {pyspark.__file__}
